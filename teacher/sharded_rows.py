"""Private rows in shards, for a teacher with the same guarantee and the same answers.

Noise, sampling bits and the ledger stay in the teacher's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..wall.labels import LabelSpace
from ..wall.messages import ExtractorSpec
from .classifiers.linear_ensemble import Ensemble, shard_key, train_by_shard
from .features.embedder import Embedder, unit_length
from .ledger.ledger import Ledger
from .mechanisms.base import Mechanism
from .mechanisms.voters import Voters
from .private_rows import PrivateRows
from .records import record_updates
from .records.sources import Records
from .shards.config import ScaleConfig
from .shards.shards import ShardedIndex, Shards, Stream


class ShardedRows(PrivateRows):
    """Records in shards on disk; this process holds none of them.

    Args:
        stream: the private rows, block by block; read when they are not in shards yet.
        scale: how many shards, and who searches them.
        input_shape: of a raw row, public.

    The others are those of PrivateRows. Raises InvalidInput where a mechanism of the plan needs all
    rows in one process.
    """

    def __init__(
        self,
        stream: Stream,
        ledger: Ledger,
        space: LabelSpace,
        mechanisms: Sequence[Mechanism],
        *,
        scale: ScaleConfig,
        input_shape: tuple[int, ...],
        directory: Path,
        device: str,
        **place: Any,
    ) -> None:
        for mechanism in mechanisms:
            mechanism.require_sharded()
        assert ledger.state.plan is not None
        unit = ledger.state.plan.unit
        self._shards = shards = Shards(directory, scale, stream, input_shape, device, unit)
        place |= {"directory": directory, "device": device}
        super().__init__(lambda: shards.like, ledger, space, mechanisms, **place)

    def records(self) -> Records:
        """No records: the shards take them in, once."""
        if self._records is None:
            self._shards.open(self._progress)
            self._records = self.updated()
        return self._records

    def of(self, ids: np.ndarray) -> Records:
        self.records()
        return self._shards.rows_of(ids)

    def owned(self, owners: np.ndarray) -> Records:
        self.records()
        return self._shards.rows_of(owners, owners=True)

    def updated(self) -> Records:
        """No records, once the shards have the custodian's updates."""
        like = self._shards.like
        self._shards.apply(
            *self._ledger.in_custody(lambda connection: record_updates.changes(connection, like))
        )
        return like

    def embed_ahead(self, *_: object) -> bool:
        """Nothing: the shards embed block by block on their own, and keep each block."""
        return True

    def prepare(self, spec: ExtractorSpec, embedder: Embedder) -> Voters:
        """Embed block by block in the shards; PATE's linear classifiers are trained here."""
        self.records()
        index = self._shards.index(spec, embedder.probe, self.batch_size, self.embedding)
        return Voters(
            index,
            index.labels,
            self._space.outputs,
            np.zeros((0, index.dimensions), dtype=np.int8),
            unit_length(spec, index.dimensions),
            {size: self._trained(index, size) for size in self.sizes("linear")},
            landmarks=spec.landmarks,
        )

    def _trained(self, index: ShardedIndex, teachers: int) -> Ensemble:
        """Trains one classifier at a time, so that only its records are here."""
        key = shard_key(self.directory)

        def part(number: int) -> tuple[np.ndarray, np.ndarray]:
            features, labels = index.part(key, teachers, number)
            return features, self._space.expand(labels)

        return train_by_shard(
            part,
            dimensions=index.dimensions,
            num_classes=self._space.outputs,
            teachers=teachers,
            progress=self.training,
        )
