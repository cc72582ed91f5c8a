"""One shard of the private rows: its files, features and index, in this process or a Ray actor.

Its arrays on disk grow by blocks, and an interrupted writer resumes after the last complete one.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ...wall.devices import device_of
from ...wall.errors import LabelwallError
from ...wall.features.embedder import Embedder
from ...wall.files import write_file
from ...wall.messages import ExtractorSpec, blank_inputs
from ..classifiers.linear_ensemble import shard_numbers
from ..private_files import log_failure
from ..records.private_records import Records
from ..search.accelerators import index_on
from ..search.cpu import ExactIndex
from ..search.index import Count
from ..search.kernels import Similar

ROOT = Path(__file__).parents[2]
PERSONS = "persons"  # one more column where the unit of privacy is a person
ROWS = "rows"  # folder of the raw rows
JOURNAL = "journal.json"
# At most, for the rows that are ingested, embedded or copied together.
BLOCK = 16_384
BLOCK_BYTES = 1 << 26
# A constant text, since it crosses processes and logs. The custodian's directory has more.
FAILED = "a shard of the private rows failed."


class ShardFailed(LabelwallError):
    """Some task of a shard failed."""


class ShardSummary(NamedTuple):
    """A shard's embedded rows. ``cuts``: every so many-th id, from the first on, int64 [m]."""

    rows: int
    dimensions: int
    cuts: np.ndarray


class Journal(NamedTuple):
    """The state on disk."""

    done: int = 0  # how much of the source has been read, in its own unit
    rows: int = 0  # of every array
    complete: bool = False  # no more rows follow


@cache
def program() -> str:
    """SHA-256 (hex) of the source files of this process's private side and wall."""
    digest = hashlib.sha256()
    for package in ("teacher", "wall"):
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT).as_posix()} ".encode() + path.read_bytes())
    return digest.hexdigest()


class Shard:
    """The rows in ``directory``. All state is in its files, so a restarted worker resumes.

    ``threads``: of torch, for a worker process; None keeps this process's number. ``device``: type
    of the device that computes.
    """

    def __init__(self, directory: str, threads: int | None = None, device: str = "cpu") -> None:
        self._directory, self._device = Path(directory), device
        self._rows = self._directory / ROWS
        # Caches, the first two by what they were computed for.
        self._loaded: tuple[str, ExactIndex, np.ndarray] | None = None
        self._parted: tuple[tuple[str, bytes, int], np.ndarray] | None = None
        self._sorted: np.ndarray | None = None
        if threads is not None:
            import torch

            torch.set_num_threads(threads)

    def do(self, name: str, *arguments: object) -> Any:
        """The result of one of TASKS, which may be repeated.

        Raises ShardFailed for any failure: its cause may depend on a record.
        """
        try:
            return TASKS[name](self, *arguments)
        except Exception:
            log_failure(self._directory)
        raise ShardFailed(FAILED)

    def view(self) -> tuple[str, Journal]:
        """The digest of the code that this worker runs, and the journal of the rows that it sees.

        The journal has no rows if the worker cannot read and write the directory.
        """
        usable = os.access(self._directory, os.R_OK | os.W_OK | os.X_OK)
        return program(), journal(self._rows) if usable else Journal()

    def embed_block(self, spec: ExtractorSpec) -> tuple[int, int]:
        """Embed the next rows that have no features yet: (rows done, rows).

        Features are stored by ascending id, the first of each id, if they are finite.
        """
        folder, order = self._folder(spec.sha256()), self._order()
        done = journal(folder).done
        if not journal(folder).complete:
            rows = order[done : done + block_rows(spec.input_shape)]
            none = blank_inputs(spec.input_shape, 0)
            inputs = read(self._rows, "inputs")[rows] if len(order) else none
            features, finite = Embedder(spec, device=self._device).embed(inputs)
            done += len(rows)
            names = ["labels", "ids", *([PERSONS] if has(self._rows, PERSONS) else [])]
            kept = {name: self._column(name)[rows[finite]] for name in names}
            append(folder, {"features": features[finite], **kept}, done)
            if done == len(order):
                finish(folder)
                self._sorted = None
        return done, len(order)

    def _index(self, extractor: str) -> tuple[ExactIndex, np.ndarray]:
        """The index of the embedded rows and their labels, int64 [n], mapped from files."""
        if self._loaded is None or self._loaded[0] != extractor:
            folder = self._folder(extractor)
            persons = read(folder, PERSONS) if has(folder, PERSONS) else None
            features, ids, labels = (read(folder, name) for name in ("features", "ids", "labels"))
            index = index_on(device_of(self._device), features, ids, persons)
            self._loaded = extractor, index, labels
        return self._loaded[1], self._loaded[2]

    def summary(self, extractor: str, every: int) -> ShardSummary:
        """``every``: rows from one cut to the next."""
        index, _ = self._index(extractor)
        return ShardSummary(len(index), index.dimensions, index.ids[::every])

    def rows_between(
        self, extractor: str, low: int | None = None, high: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """(ids, labels, persons), int64 [m] each, of embedded rows with ``low`` <= id < ``high``.

        By ascending id. A bound of None is none, as are the persons where rows have none.
        """
        index, labels = self._index(extractor)
        start = 0 if low is None else np.searchsorted(index.ids, low)
        stop = len(index) if high is None else np.searchsorted(index.ids, high)
        persons = None if index.persons is None else index.persons[start:stop]
        return index.ids[start:stop], labels[start:stop], persons

    def nearest(
        self, extractor: str, queries: np.ndarray, m: int, total: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(rows, squared distances) of this shard's nearest, by (distance, id): int32 [q, w] each.

        w is slightly more than the shard's share of ``m`` among ``total`` records, or min(m, n) for
        a ``total`` of None.
        """
        index = self._index(extractor)[0]
        width = min(m, len(index))
        if total is not None:
            share = m * len(index) / max(1, total)
            width = min(width, math.ceil(share + 6 * math.sqrt(share) + 8))
        rows, distances = index.nearest(queries, width)
        return rows.astype(np.int32), distances

    def similar(self, extractor: str, *arguments: Any) -> list[Similar]:
        """Rows of the shard that ``ExactIndex.similar`` selects for each query."""
        return self._index(extractor)[0].similar(*arguments)

    def total(self, extractor: str, count: Count) -> np.ndarray:
        return count(*self._index(extractor))

    def part(
        self, extractor: str, key: bytes, teachers: int, number: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(features int8 [m, d], labels, ids int64 [m]) of this shard's rows of a PATE teacher."""
        index, labels = self._index(extractor)
        if self._parted is None or self._parted[0] != (extractor, key, teachers):
            owners = index.ids if index.persons is None else index.persons
            self._parted = (extractor, key, teachers), shard_numbers(owners, key, teachers)
        rows = np.flatnonzero(self._parted[1] == number)
        return read(self._folder(extractor), "features")[rows], labels[rows], index.ids[rows]

    def rows_of(
        self, ids: np.ndarray, like: Records, column: Literal["ids", "persons"] = "ids"
    ) -> Records:
        """Rows of which ``column`` is in ``ids`` (int64 [m]). ``like``: empty, of their form."""
        order = self._order()
        places = np.sort(order[np.isin(self._column(column)[order], ids)])
        if not len(places):
            return like
        return Records(*(self._column(name)[places] for name in columns_of(like)))

    def amend(self, named: np.ndarray, added: Records) -> None:
        """Remove the rows of ids or persons ``named`` (int64 [m]), add ``added``, delete outdated
        features.

        May be repeated after an interruption at any point: the rows are the old ones, the new ones,
        or the new ones still to be renamed.
        """
        rows, scratch, old = (self._rows.with_suffix(end) for end in ("", ".part", ".old"))
        if not rows.exists() and journal(scratch).complete:
            scratch.rename(rows)
        for path in (scratch, old):
            if path.exists():
                shutil.rmtree(path)
        names = columns_of(added)
        columns = {name: read(rows, name) for name in names} if journal(rows).rows else {}
        ids = columns["ids"] if columns else np.zeros(0, dtype=np.int64)
        kept = np.flatnonzero(~(np.isin(ids, named) | np.isin(columns.get(PERSONS, ids), named)))
        if len(kept) == len(ids) and len(added.ids) == 0:
            return
        self._loaded = self._sorted = self._parted = None
        size = block_rows(added.inputs.shape[1:])
        for start in range(0, len(kept), size):
            chosen = kept[start : start + size]
            block = {name: column[chosen] for name, column in columns.items()}
            append(scratch, block, start + len(chosen))
        append(scratch, columns_of(added), len(kept) + len(added.ids))
        finish(scratch)
        for features in self._directory.glob("features-*"):
            shutil.rmtree(features)
        rows.rename(old)
        scratch.rename(rows)
        shutil.rmtree(old)

    def _order(self) -> np.ndarray:
        """Places of the rows by ascending id, the first of each id: int64 [n]."""
        if self._sorted is None:
            self._sorted = np.unique(self._column("ids"), return_index=True)[1]
        return self._sorted

    def _column(self, name: str) -> np.ndarray:
        return read(self._rows, name) if journal(self._rows).rows else np.zeros(0, dtype=np.int64)

    def _folder(self, extractor: str) -> Path:
        return self._directory / f"features-{extractor}-{self._device}"


def columns_of(records: Records) -> dict[str, np.ndarray]:
    """The arrays of some records by their names on disk."""
    columns = {"inputs": records.inputs, "labels": records.labels, "ids": records.ids}
    return columns if records.persons is None else {**columns, PERSONS: records.persons}


def block_rows(shape: tuple[int, ...]) -> int:
    return max(1, min(BLOCK, BLOCK_BYTES // blank_inputs(shape, 1).nbytes))


def journal(directory: Path) -> Journal:
    path = directory / JOURNAL
    return Journal(**json.loads(path.read_text())) if path.exists() else Journal()


def append(directory: Path, blocks: Mapping[str, np.ndarray], done: int) -> None:
    """Add rows to the arrays NAME.npy.

    Each block is [n, ...] of the same n, and an array's blocks have the same dtype and row shape.
    All of it is on disk when this returns. A crash before that leaves the former rows unchanged.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = journal(directory)
    rows = before.rows + len(next(iter(blocks.values())))
    for name, block in blocks.items():
        path, row_shape = directory / f"{name}.npy", block.shape[1:]
        header = {"descr": block.dtype.str, "fortran_order": False, "shape": (rows, *row_shape)}
        with path.open("r+b" if path.exists() else "w+b") as file:
            # numpy pads the header: its length does not depend on the number of rows.
            np.lib.format.write_array_header_1_0(file, header)
            row_bytes = block.dtype.itemsize * int(np.prod(row_shape))
            file.seek(before.rows * row_bytes, os.SEEK_CUR)  # overwrites a torn block
            file.write(np.ascontiguousarray(block).data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    write_file(directory / JOURNAL, json.dumps(Journal(done, rows)._asdict()))


def finish(directory: Path) -> None:
    """Record that no more rows follow."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(directory / JOURNAL, json.dumps({**journal(directory)._asdict(), "complete": True}))


def has(directory: Path, name: str) -> bool:
    return (directory / f"{name}.npy").exists()


def read(directory: Path, name: str) -> np.ndarray:
    """An array, mapped into memory. Only what is used is read, and nothing is written back."""
    mapped: np.ndarray = np.load(directory / f"{name}.npy", mmap_mode="c", allow_pickle=False)
    return np.asarray(mapped)


# What a pool may ask of a shard. Another name is refused.
_TASKS = (Shard.view, Shard.embed_block, Shard.summary, Shard.rows_between, Shard.nearest)
_MORE = (Shard.similar, Shard.total, Shard.part, Shard.rows_of, Shard.amend)
TASKS: dict[str, Callable[..., Any]] = {task.__name__: task for task in (*_TASKS, *_MORE)}
