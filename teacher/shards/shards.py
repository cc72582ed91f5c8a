"""The private rows in shards: taken in as a stream, embedded shard by shard, changed by the custodian, searched together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from labelwall.teacher.features.cache import forget_shards
from labelwall.teacher.mechanisms.pate.linear_ensemble import shard_key, shard_numbers
from labelwall.teacher.records.sources import Records
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.teacher.shards.growing import append, finish, journal
from labelwall.teacher.shards.index import ShardedIndex
from labelwall.teacher.shards.pools import LocalPool, Pool, RayPool
from labelwall.teacher.shards.requests import Amend, EmbedBlock, RowsOf
from labelwall.teacher.shards.worker import COLUMNS, ROWS, Request, block_rows
from labelwall.wall.messages import ExtractorSpec

# (rows in a block, rows to leave out) -> (rows found by then, of how many, the good ones of a block)
Stream = Callable[[int, int], Iterator[tuple[int, int, Records]]]
Progress = Callable[[str, int, int], None]
T = TypeVar("T")
APPLIED = "applied"  # digest of the updates that the shards hold


class Shards:
    """Private rows by keyed hash of their ids: which shard holds a record depends on nothing but its id and the custodian's key.

    ``directory``: the custodian's; every worker sees it under the same path. ``input_shape``: of a row. Memory: four blocks of
    rows while they are taken in; a block, and what an extractor makes of it, in each worker that embeds; afterwards the features,
    read through the system's cache, and ``ShardedIndex``. ``device``: type of the one that computes in every worker.
    """

    def __init__(
        self,
        directory: Path,
        config: ScaleConfig,
        stream: Stream,
        input_shape: tuple[int, ...],
        device: str = "cpu",
    ) -> None:
        self._directory, self._config, self._stream, self._device = (
            directory,
            config,
            stream,
            device,
        )
        self._root = directory / f"shards-{config.shards}"
        self._folders = [self._root / f"{number:04d}" for number in range(config.shards)]
        self._key = shard_key(directory)
        dtype = np.uint8 if len(input_shape) == 3 else np.float32
        nobody = np.zeros(0, dtype=np.int64)
        self.like = Records(np.zeros((0, *input_shape), dtype=dtype), nobody, nobody)
        self._pool: Pool | None = None

    def open(self, progress: Progress) -> None:
        """Take in the rows, as far as that is not done, and start the workers."""
        if self._pool is not None:
            return
        forget_shards(self._directory, self._root)
        self._take_in(progress)
        ray = self._config.backend == "ray"
        self._pool = (
            RayPool(self._folders, self._config, self._device)
            if ray
            else LocalPool(self._folders, self._device)
        )

    def apply(self, named: np.ndarray, added: Records) -> None:
        """Make the shards hold the data source's rows less those ``named`` (int64 [m] ids), and ``added``. Durable."""
        digest = hashlib.sha256(
            b"".join(column.tobytes() for column in (named, added.inputs, added.labels, added.ids))
        ).hexdigest()
        path = self._root / APPLIED
        if not len(named) or (path.exists() and path.read_text() == digest):
            return
        where = shard_numbers(added.ids, self._key, len(self._folders))
        parts = [np.flatnonzero(where == number) for number in range(len(self._folders))]
        self._ask([Amend(named, _rows(added, part)) for part in parts])
        path.write_text(digest)

    def rows_of(self, ids: np.ndarray) -> Records:
        """The records of some ids (int64 [m]), those that there are."""
        found = self.like
        for part in self._ask([RowsOf(ids, self.like)] * len(self._folders)):
            found = found.joined(part)
        return found

    def index(
        self,
        spec: ExtractorSpec,
        probe: np.ndarray | None,
        batch_size: int,
        progress: Callable[[int, int], None],
    ) -> ShardedIndex:
        """Embed what is not embedded yet, a block in every shard at a time, and search it. ``progress(rows done, rows)``."""
        done, rows = -1, 0
        while done < rows:
            parts = self._ask([EmbedBlock(spec, probe, batch_size)] * len(self._folders))
            done, rows = sum(part[0] for part in parts), sum(part[1] for part in parts)
            progress(done, rows)
        assert self._pool is not None
        return ShardedIndex(self._pool, len(self._folders), spec.sha256())

    def _ask(self, requests: Sequence[Request[T]]) -> list[T]:
        assert self._pool is not None
        return self._pool.ask(requests)

    def _take_in(self, progress: Progress) -> None:
        """Rows of the stream to their shards. A killed process goes on at the first block that a shard has not on disk."""
        rows = [folder / ROWS for folder in self._folders]
        missing = [number for number, folder in enumerate(rows) if not journal(folder).complete]
        if not missing:
            return
        start = min(journal(rows[number]).done for number in missing)
        (self._root / APPLIED).unlink(
            missing_ok=True
        )  # a shard that is taken in again holds what was removed
        for found, total, records in self._stream(block_rows(self.like.inputs.shape[1:]), start):
            where = shard_numbers(records.ids, self._key, len(rows))
            for number in missing:
                if journal(rows[number]).done < found:
                    part = _rows(records, np.flatnonzero(where == number))
                    append(
                        rows[number],
                        dict(zip(COLUMNS, (part.inputs, part.labels, part.ids), strict=True)),
                        found,
                    )
            progress(
                "taking in private rows (percent)", 100 * found // total, 100
            )  # their number is private
        for number in missing:
            finish(rows[number])


def _rows(records: Records, rows: np.ndarray) -> Records:
    return Records(records.inputs[rows], records.labels[rows], records.ids[rows])
