"""The private rows in shards: ingested as a stream, embedded, updated; one exact index of all.

A teacher over them has the same guarantee and the same answers. Noise, sampling bits and the ledger
stay in its process.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.features.embedder import unit_length
from ...wall.files import write_file
from ...wall.labels import LabelSpace
from ...wall.messages import ExtractorSpec, blank_inputs
from ..classifiers.linear_ensemble import Ensemble, shard_key, shard_numbers, train_by_shard
from ..ledger.ledger import Ledger
from ..mechanisms.base import Charging, Mechanism
from ..mechanisms.voters import Voters
from ..private_rows import PrivateRows
from ..records import record_updates, row_names
from ..records.embedding_cache import forget_shards
from ..records.private_records import NUMBERS, Records
from ..search.cpu import ROW_BITS, ROW_MASK
from ..search.index import Count, Index
from ..search.kernels import Select, Similar
from .pools import RayPool, ShardPool
from .scale_config import ScaleConfig
from .worker import ROWS, ShardSummary, append, block_rows, columns_of, finish, journal

# (rows in a block, rows to skip) -> (rows read so far, of how many, the valid ones of a block)
Stream = Callable[[int, int], Iterator[tuple[int, int, Records]]]
APPLIED = "applied"  # file with a digest of the updates that the shards contain
# File with what the stream's source and the form of its rows were when it was begun
SOURCE = "source"
MERGED_ROWS = 1 << 18  # rows of all shards whose ids are in memory together, at most


class ShardedRows(PrivateRows):
    """Records in shards on disk; this process holds none of them.

    A record's shard depends on its id and the custodian's key alone; where the unit of privacy is a
    person, on its person's, so that a person's rows lie in one shard.

    Memory: four blocks of rows during ingestion; a block and its features in each worker that
    embeds; afterwards the features, read through the system's cache, and ``ShardedIndex``.

    Args:
        stream: the private rows, block by block; read when they are not in shards yet.
        scale: how many shards, and who searches them.
        input_shape: of a raw row, public.
        source: a digest of what the stream reads. Ingestion that stopped goes on if it is the same,
            and begins anew otherwise: its rows have other places in the stream.
        directory: the custodian's, which every worker sees under the same path.

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
        source: Callable[[], str],
        directory: Path,
        **place: Any,
    ) -> None:
        for mechanism in mechanisms:
            mechanism.require_sharded()
        assert ledger.state.plan is not None
        none = np.zeros(0, dtype=np.int64)
        persons = none if ledger.state.plan.unit == "person" else None
        like = self._like = Records(blank_inputs(input_shape, 0), none, none, persons)
        super().__init__(lambda: like, ledger, space, mechanisms, directory=directory, **place)
        self._stream, self._scale, self._key = stream, scale, shard_key(directory)
        self._source = source
        self._prepaid = any(each.charging is Charging.PREPAID for each in mechanisms)
        self._root = directory / f"shards-{scale.shards}"
        self._folders = [self._root / f"{number:04d}" for number in range(scale.shards)]

    @cached_property
    def _pool(self) -> ShardPool:
        """The workers, after the rows that were in no shard yet are ingested."""
        forget_shards(self.directory, self._root)
        self._ingest()
        if self._scale.backend == "ray":
            return RayPool(self._folders, self._scale, self.device)
        return ShardPool(self._folders, self.device)

    def records(self) -> Records:
        """No records: the shards take them in, once."""
        if self._records is None:
            self._records = self.updated()
        return self._records

    def of(self, ids: np.ndarray, owners: bool = False) -> Records:
        records = self.records()
        column = "persons" if owners and records.persons is not None else "ids"
        for found in self._pool.ask("rows_of", ids, self._like, column):
            records = records.joined(found)
        return records

    def updated(self) -> Records:
        """No records, once the shards have the custodian's updates."""
        pool, like = self._pool, self._like
        named, added = self._ledger.in_custody(
            lambda connection: record_updates.changes(connection, like, self._space.num_labels)
        )
        columns = (named, added.inputs, added.labels, added.ids)
        digest = hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()
        path = self._root / APPLIED
        if len(named) and not (path.exists() and path.read_text() == digest):
            where = shard_numbers(added.owners, self._key, pool.size)
            parts = [np.flatnonzero(where == number) for number in range(pool.size)]
            pool.ask_each("amend", [(named, added.take(rows)) for rows in parts])
            path.write_text(digest)
        return like

    def embed_ahead(self, *_: object) -> bool:
        """Nothing: the shards embed block by block on their own, and keep each block."""
        return True

    def prepare(self, spec: ExtractorSpec) -> Voters:
        """Embed what is not embedded yet, a block in every shard at a time, and index all rows.

        PATE's linear classifiers are trained here.
        """
        self.embedder(spec)  # what does not fit is named here: shards say nothing of a failure
        self.records()
        done, rows = -1, 0
        while done < rows:
            parts = self._pool.ask("embed_block", spec)
            done, rows = sum(shard[0] for shard in parts), sum(shard[1] for shard in parts)
            self.embedding(done, rows)
        index = ShardedIndex(self._pool, spec.sha256(), self._space.num_labels)
        return Voters(
            index,
            index.labels,
            self._space.outputs,
            np.zeros((0, index.dimensions), dtype=np.int8),
            unit_length(spec, index.dimensions),
            {size: self._trained(index, size) for size in self.sizes("linear")},
            landmarks=spec.landmarks,
        )

    def _ingest(self) -> None:
        """Write the stream's rows to their shards.

        An interrupted process resumes at the first block that some shard does not have on disk.
        """
        rows = [folder / ROWS for folder in self._folders]
        missing = [number for number, folder in enumerate(rows) if not journal(folder).complete]
        path, like = self._root / SOURCE, self._like.inputs
        stored = path.read_text() if path.exists() else ""
        # Labels and inputs are in the form that public rows gave when they were stored
        form = repr((self._space, like.dtype.str, like.shape[1:]))
        form = hashlib.sha256(form.encode("utf-8", "surrogateescape")).hexdigest()
        if not missing and stored.endswith(form):
            return
        if stored != (source := f"{self._source()} {form}"):
            missing = list(range(len(rows)))  # finished ones have rows by the former places
            for folder in rows:
                shutil.rmtree(folder, ignore_errors=True)
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(path, source)
        start = min(journal(rows[number]).done for number in missing)
        # A shard that is ingested again contains removed records again.
        (self._root / APPLIED).unlink(missing_ok=True)
        for done, total, records in self._stream(block_rows(self._like.inputs.shape[1:]), start):
            self._require_same_names(records)
            where = shard_numbers(records.owners, self._key, len(rows))
            for number in missing:
                if journal(rows[number]).done < done:
                    own = records.take(np.flatnonzero(where == number))
                    append(rows[number], columns_of(own), done)
            # In percent: the number of rows is private.
            self._progress("taking in private rows (percent)", 100 * done // total, 100)
        for number in missing:
            finish(rows[number])

    def _require_same_names(self, records: Records) -> None:
        """Raise InvalidInput for budgets by numbers, LedgerMismatch if ids are others than before.

        ``records``: a block, of which nothing but its form counts.
        """
        if self._prepaid and records.names == NUMBERS:
            rule = "0 for ind_knn and rows without ids (data.id; private_id of arrays)"
            raise InvalidInput("scale.shards", rule, self._scale.shards)
        names, budgets = records.names, self.enrolled()
        self._ledger.in_custody(lambda opened: row_names.require_names(opened, names, budgets))

    def _trained(self, index: "ShardedIndex", teachers: int) -> Ensemble:
        """Trains one classifier at a time, so that only its records are here."""
        parts = (index.part(self._key, teachers, number) for number in range(teachers))
        shards = ((features, self._space.expand(labels)) for features, labels in parts)
        return train_by_shard(shards, self._space.outputs, teachers, self.training)


class ShardedIndex(Index):
    """The records of all shards, by ascending id.

    It stores 4 bytes a record (its row) and a label in 1, 2, 4 or 8 (20 more with persons), and no
    features. Ids are 8 more once they are asked for, which only Ind-KNN and tests' tapes do. The n
    records are those with finite features under ``extractor`` (its hash) in every shard.

    ``num_labels``: how many codes there are. ``labels``: codes [n], of the narrowest signed
    integers that hold all of them, whichever the records have: widen them before calculating.
    """

    def __init__(self, pool: ShardPool, extractor: str, num_labels: int) -> None:
        self._pool, self._extractor = pool, extractor
        every = max(1, MERGED_ROWS // (2 * pool.size))
        parts: list[ShardSummary] = pool.ask("summary", extractor, every)
        self.dimensions = parts[0].dimensions
        self._rows = [np.empty(shard.rows, dtype=np.int32) for shard in parts]  # [shard][its row]
        self.labels = np.empty(len(self), dtype=np.min_scalar_type(-num_labels))
        # Between two limits lie ``size`` cuts: at most 2 * size * every <= MERGED_ROWS rows.
        limits = np.sort(np.concatenate([shard.cuts for shard in parts]))[:: pool.size].tolist()
        persons = self._merge(limits)
        super().__init__(np.concatenate(persons) if persons else None)

    def _merge(self, limits: list[int]) -> list[np.ndarray]:
        """Fill rows and labels in the order of ids, range by range; returns the persons, if any.

        ``limits``: the ranges' lowest ids, ascending.
        """
        done, persons = [0] * self._pool.size, []
        for low, high in zip(limits, [*limits, None][1:], strict=True):
            first = sum(done)
            parts = self._pool.ask("rows_between", self._extractor, low, high)
            ids, labels = (np.concatenate([shard[column] for shard in parts]) for column in (0, 1))
            order = np.argsort(ids, kind="stable")
            self.labels[first : first + len(ids)] = labels[order]
            rows = np.empty(len(ids), dtype=np.int32)
            rows[order] = np.arange(first, first + len(ids), dtype=np.int32)
            for shard, (own_ids, *_) in enumerate(parts):
                own, rows = rows[: len(own_ids)], rows[len(own_ids) :]
                self._rows[shard][done[shard] : done[shard] + len(own)] = own
                done[shard] += len(own)
            owners = [own for *_, own in parts if own is not None]
            persons += [np.concatenate(owners)[order]] if owners else []
        return persons

    @cached_property
    def ids(self) -> np.ndarray:  # type: ignore[override]
        ids = np.empty(len(self), dtype=np.int64)
        of_shards = self._pool.ask("rows_between", self._extractor)
        for rows, (own, *_) in zip(self._rows, of_shards, strict=True):
            ids[rows] = own
        return ids

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        similar = []
        of_shards = self._pool.ask("similar", self._extractor, queries, select, hashing)
        for parts in zip(*of_shards, strict=True):
            rows = [own[shard.rows] for own, shard in zip(self._rows, parts, strict=True)]
            weights = np.concatenate([shard.weights for shard in parts])
            similar.append(Similar(np.concatenate(rows).astype(np.int32), weights))
        return similar

    def total(self, count: Count, labels: np.ndarray) -> np.ndarray:
        """The sum over all shards. Raises ValueError for labels other than the shards' own."""
        if labels is not self.labels:
            raise ValueError("counts over shards are of their own labels")
        first, *others = self._pool.ask("total", self._extractor, count)
        return sum(others, start=first)

    def part(self, key: bytes, teachers: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(features int8 [m, d], labels int64 [m]) of a PATE teacher's records, by ascending id."""
        parts = self._pool.ask("part", self._extractor, key, teachers, number)
        features, labels, ids = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(ids, kind="stable")
        return features[order], labels[order]

    def _search(self, queries: np.ndarray, width: int) -> np.ndarray:
        """Ask each shard for slightly more than its share, and again for all where that is too few.

        A merged list is complete if it ends before the end of every shard's truncated list.
        """
        for total in (len(self), None):
            parts = self._pool.ask("nearest", self._extractor, queries, width, total)
            keys, ends = [], []
            for own, (rows, distances) in zip(self._rows, parts, strict=True):
                keys.append((distances.astype(np.int64) << ROW_BITS) | own[rows])
                if rows.shape[1] < min(width, len(own)):
                    ends.append(keys[-1][:, -1])
            merged = np.sort(np.concatenate(keys, axis=1), axis=1)[:, :width]
            if not width or all((end >= merged[:, -1]).all() for end in ends):
                break
        return merged & ROW_MASK
