"""The private rows in shards: ingested as a stream, embedded, updated and searched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ...wall.messages import ExtractorSpec
from ...wall.progress import Progress, TaskProgress
from ...wall.unit import Unit
from ..classifiers.linear_ensemble import shard_key, shard_numbers
from ..features.cache import forget_shards
from ..records.sources import Records
from .config import ScaleConfig
from .growing import append, finish, journal
from .index import ShardedIndex
from .pools import LocalPool, Pool, RayPool
from .worker import ROWS, block_rows, columns_of

# (rows in a block, rows to skip) -> (rows read so far, of how many, the valid ones of a block)
Stream = Callable[[int, int], Iterator[tuple[int, int, Records]]]
APPLIED = "applied"  # file with a digest of the updates that the shards contain


class Shards:
    """Private rows by a keyed hash of their ids, or of their persons.

    A record's shard depends on its id and the custodian's key alone; where the ``unit`` of privacy
    is a person, a person's rows lie in one shard. ``directory``: the
    custodian's; every worker sees it under the same path. ``input_shape``: of a row. ``device``:
    type of the device that computes in every worker.

    Memory: four blocks of rows during ingestion; a block and its features in each worker that
    embeds; afterwards the features, read through the system's cache, and ``ShardedIndex``.
    """

    def __init__(
        self,
        directory: Path,
        config: ScaleConfig,
        stream: Stream,
        input_shape: tuple[int, ...],
        device: str = "cpu",
        unit: Unit = "row",
    ) -> None:
        self._directory, self._config = directory, config
        self._stream, self._device = stream, device
        self._root = directory / f"shards-{config.shards}"
        self._folders = [self._root / f"{number:04d}" for number in range(config.shards)]
        self._key = shard_key(directory)
        dtype = np.uint8 if len(input_shape) == 3 else np.float32
        none = np.zeros(0, dtype=np.int64)
        persons = none if unit == "person" else None
        self.like = Records(np.zeros((0, *input_shape), dtype=dtype), none, none, persons)
        self._pool: Pool | None = None

    def open(self, progress: Progress) -> None:
        """Ingest the rows that are not in shards yet, and start the workers."""
        if self._pool is not None:
            return
        forget_shards(self._directory, self._root)
        self._ingest(progress)
        if self._config.backend == "ray":
            self._pool = RayPool(self._folders, self._config, self._device)
        else:
            self._pool = LocalPool(self._folders, self._device)

    def apply(self, named: np.ndarray, added: Records) -> None:
        """Make the shards contain the source's rows without the ids ``named``, and ``added``.

        ``named``: int64 [m]. Durable.
        """
        columns = (named, added.inputs, added.labels, added.ids)
        digest = hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()
        path = self._root / APPLIED
        if not len(named) or (path.exists() and path.read_text() == digest):
            return
        where = shard_numbers(added.owners, self._key, len(self._folders))
        parts = [np.flatnonzero(where == number) for number in range(len(self._folders))]
        self._workers.ask_each("amend", [(named, added.take(part)) for part in parts])
        path.write_text(digest)

    def rows_of(self, ids: np.ndarray) -> Records:
        """The records among ``ids`` (int64 [m]) that exist."""
        return self._rows_of(ids, "ids")

    def rows_of_owners(self, owners: np.ndarray) -> Records:
        """The records among ``owners`` (int64 [m]: ids, or persons) that exist."""
        return self._rows_of(owners, "ids" if self.like.persons is None else "persons")

    def _rows_of(self, ids: np.ndarray, column: str) -> Records:
        records = self.like
        for part in self._workers.ask("rows_of", ids, self.like, column):
            records = records.joined(part)
        return records

    def index(
        self,
        spec: ExtractorSpec,
        probe: np.ndarray | None,
        batch_size: int,
        progress: TaskProgress,
    ) -> ShardedIndex:
        """Embed the rows that are not embedded yet, one block in every shard at a time.

        Returns their index. ``progress`` counts rows.
        """
        done, rows = -1, 0
        while done < rows:
            parts = self._workers.ask("embed_block", spec, probe, batch_size)
            done, rows = sum(part[0] for part in parts), sum(part[1] for part in parts)
            progress(done, rows)
        return ShardedIndex(self._workers, spec.sha256())

    @property
    def _workers(self) -> Pool:
        assert self._pool is not None
        return self._pool

    def _ingest(self, progress: Progress) -> None:
        """Write the stream's rows to their shards.

        An interrupted process resumes at the first block that some shard does not have on disk.
        """
        rows = [folder / ROWS for folder in self._folders]
        missing = [number for number, folder in enumerate(rows) if not journal(folder).complete]
        if not missing:
            return
        start = min(journal(rows[number]).done for number in missing)
        # A shard that is ingested again contains removed records again.
        (self._root / APPLIED).unlink(missing_ok=True)
        for done, total, records in self._stream(block_rows(self.like.inputs.shape[1:]), start):
            where = shard_numbers(records.owners, self._key, len(rows))
            for number in missing:
                if journal(rows[number]).done < done:
                    part = records.take(np.flatnonzero(where == number))
                    append(rows[number], columns_of(part), done)
            # In percent: the number of rows is private.
            progress("taking in private rows (percent)", 100 * done // total, 100)
        for number in missing:
            finish(rows[number])
