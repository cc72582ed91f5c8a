"""A teacher whose private rows lie in shards. Everything but the rows is the Teacher's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..wall.messages import ExtractorSpec
from ..wall.progress import Progress, no_progress
from .classifiers.linear_ensemble import Ensemble, shard_key, train_by_shard
from .features.embedder import Embedder
from .ledger.ledger import Ledger
from .noise.entropy import Entropy
from .private_rows import Prepared, PrivateRows
from .records import record_updates
from .records.sources import Records
from .shards.config import ScaleConfig
from .shards.index import ShardedIndex
from .shards.shards import Shards, Stream
from .teacher import Teacher


class ShardedRows(PrivateRows):
    """Records in shards on disk; this process holds none of them."""

    def open(self, shards: Shards) -> ShardedRows:
        """These rows, which lie in ``shards``."""
        self._shards = shards
        return self

    def records(self) -> Records:
        """No records: the shards take them in, once."""
        if self._records is None:
            self._shards.open(self._place.progress)
            self._apply()
            self._records = self._shards.like
        return self._records

    def of(self, ids: np.ndarray) -> Records:
        """The records of ``ids`` (int64 [n]) that there are, from their shards."""
        self.records()
        return self._shards.rows_of(ids)

    def owned(self, owners: np.ndarray) -> Records:
        """The records of ``owners`` (int64 [n]) that there are, from their shards."""
        self.records()
        return self._shards.rows_of_owners(owners)

    def with_stored(self, records: Records) -> Records:
        """No records: the shards take in what was stored."""
        return self.without(records.ids)

    def without(self, ids: np.ndarray) -> Records:
        """No records: the shards leave out what was deleted."""
        self._apply()
        return self._shards.like

    def embed_ahead(self, *_: object) -> bool:
        """Nothing: the shards embed block by block on their own, and keep each block."""
        return True

    def prepare(self, spec: ExtractorSpec, embedder: Embedder) -> Prepared:
        """Embed block by block in the shards; PATE's linear classifiers are trained here."""
        self.records()
        place = self._place
        index = self._shards.index(spec, embedder.probe, place.batch_size, place.embedding)
        ensembles = {size: self._trained(index, size) for size in self._sizes("linear")}
        return Prepared(index, index.labels, ensembles, {})

    def _apply(self) -> None:
        like = self._shards.like
        self._shards.apply(
            *self._ledger.in_custody(lambda connection: record_updates.changes(connection, like))
        )

    def _trained(self, index: ShardedIndex, teachers: int) -> Ensemble:
        """Trains one classifier at a time, so that only its records are here."""
        key = shard_key(self._place.directory)

        def part(number: int) -> tuple[np.ndarray, np.ndarray]:
            features, labels = index.part(key, teachers, number)
            return features, self._space.expand(labels)

        return train_by_shard(
            part,
            dimensions=index.dimensions,
            num_classes=self._space.outputs,
            teachers=teachers,
            progress=self._place.training,
        )


class ShardedTeacher(Teacher):
    """A Teacher with the same guarantee and the same answers.

    Noise, sampling bits and the ledger stay in this process.

    Args:
        stream: the private rows, block by block; read when they are not in shards yet.
        scale: how many shards, and who searches them.
        input_shape: of a raw row, public.
        ledger, directory, num_classes, entropy, batch_size, workers, device, progress: as the
            Teacher's.

    Raises InvalidInput where a mechanism of the plan needs all rows in one process.
    """

    def __init__(
        self,
        stream: Stream,
        ledger: Ledger,
        directory: Path,
        num_classes: int,
        entropy: Entropy,
        *,
        scale: ScaleConfig,
        input_shape: tuple[int, ...],
        batch_size: int = 256,
        workers: int = 1,
        device: str = "cpu",
        progress: Progress = no_progress,
    ) -> None:
        assert ledger.state.plan is not None
        unit = ledger.state.plan.unit
        self._shards = Shards(directory, scale, stream, input_shape, device, unit)
        super().__init__(
            lambda: self._shards.like,
            ledger,
            directory,
            num_classes,
            entropy,
            batch_size=batch_size,
            workers=workers,
            device=device,
            progress=progress,
        )
        for mechanism in self._mechanisms:
            mechanism.require_sharded()

    def _private_rows(self, open_records: Callable[[], Records]) -> PrivateRows:
        needs = [need for mechanism in self._mechanisms for need in mechanism.needs]
        rows = ShardedRows(open_records, self._ledger, self._place, self._space, needs)
        return rows.open(self._shards)
