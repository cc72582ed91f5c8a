"""A teacher whose private rows lie in shards. What it charges, draws, records and answers is the Teacher's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from labelwall.teacher.features.embedder import Embedder
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.pate.linear_ensemble import Ensemble, shard_key, train_by_shard
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.records import record_updates as updates
from labelwall.teacher.records.sources import Records
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.teacher.shards.index import ShardedIndex
from labelwall.teacher.shards.shards import Shards, Stream
from labelwall.teacher.teacher import Progress, Teacher, quiet
from labelwall.wall.labels.attributes import unpack
from labelwall.wall.messages import ExtractorSpec


class ShardedTeacher(Teacher):
    """A Teacher with the same guarantee and the same answers; noise, sampling bits and ledger stay in this process.

    Args:
        stream: the private rows, block by block; read when they are not in shards yet.
        scale: how many shards, and who searches them.
        input_shape: of a raw row, public.
        ledger, directory, num_classes, entropy, batch_size, workers, device, progress: as the Teacher's.

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
        progress: Progress = quiet,
    ) -> None:
        self._shards = Shards(directory, scale, stream, input_shape, device)
        nothing = self._shards.like
        super().__init__(
            lambda: nothing,
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

    def _opened(self) -> Records:
        """Take the rows in, once; none of them is held in this process."""
        if self._records is None:
            self._shards.open(self._progress)
            self._apply()
            self._records = self._shards.like
        return self._records

    def _among(self, ids: np.ndarray) -> Records:
        self._opened()
        return self._shards.rows_of(ids)

    def _take_in(self, records: Records) -> None:
        spec, self._spec = self._spec, None  # whatever fails below, no record that left votes again
        self._apply()
        self._spec = spec
        self._hold(self._shards.like)

    def _leave_out(self, ids: np.ndarray) -> None:
        self._take_in(self._shards.like)

    def _apply(self) -> None:
        like = self._shards.like
        form = like.inputs.dtype, like.inputs.shape[1:]
        self._shards.apply(
            *self._ledger.in_custody(lambda connection: updates.changes(connection, *form))
        )

    def _embed(self, spec: ExtractorSpec, embedder: Embedder) -> None:
        self._opened()
        index = self._shards.index(spec, embedder.probe, self._batch_size, self._embedding)
        self._index, self._labels = index, index.labels
        self._ensembles, self._networks = (
            {size: self._trained(index, size) for size in self._ensemble_sizes("linear")},
            {},
        )
        if self._individual:
            self._serials = self._ledger.enrol(index.ids)

    def _trained(self, index: ShardedIndex, teachers: int) -> Ensemble:
        """PATE's classifiers, trained here: of each the records come together from all shards, and go again."""
        key = shard_key(self._directory)

        def part(number: int) -> tuple[np.ndarray, np.ndarray]:
            features, labels = index.part(key, teachers, number)
            return features, unpack(labels, self._num_classes) if self._attributes else labels

        sizes = {
            "dimensions": index.dimensions,
            "num_classes": self._num_classes,
            "teachers": teachers,
        }
        return train_by_shard(part, **sizes, progress=self._training)
