"""Private records: the only file that opens them.

Bad rows are dropped here, silently, before anything else sees them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...wall.datasets import readers
from ...wall.datasets.base import Rows
from ...wall.datasets.folder import labels_of, persons_of
from ...wall.datasets.registry import published
from ...wall.datasets.sources import DataConfig, Task
from ...wall.datasets.table import ID, encode, one_file, scaling
from ...wall.datasets.tables import read_table, texts
from ...wall.errors import InvalidInput, MissingData, shape_text
from ...wall.progress import TaskProgress
from ...wall.unit import Unit
from .persons import NOBODY, codes_in, codes_of, row_ids

PERSON = "private_person"  # of an npz file: whose a row is
# Verdicts: what is wrong with a row, at most one thing each.
GOOD, UNREADABLE, NOT_FINITE, UNKNOWN_CLASS, REPEATED_ID, NO_PERSON = range(6)


@dataclass(frozen=True, eq=False)
class Records:
    """The custodian's usable rows. Nothing of them prints; their number is private, too.

    ``inputs``: uint8 [n, h, w, c] or float32 [n, d], finite. ``labels``: int64 [n], codes of the
    task's label space.
    ``ids``: int64 [n], distinct. n may be 0.

    An id is an attribute of the row: its position in the published file; private_id of an npz, or
    its row number there when the file was written without (rows are then only ever appended); a
    hash of an image's relative path.

    ``persons``: int64 [n], codes of the rows' persons; None where the unit of privacy is a row. An
    id is then one of person and row together (teacher/records/persons.py).
    """

    inputs: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    ids: np.ndarray = field(repr=False)
    persons: np.ndarray | None = field(default=None, repr=False)

    @property
    def owners(self) -> np.ndarray:
        """The record that each row belongs to: its person, or itself. int64 [n]."""
        return self.ids if self.persons is None else self.persons

    def take(self, rows: slice | np.ndarray) -> Records:
        """A selection of the rows."""
        persons = None if self.persons is None else self.persons[rows]
        return Records(self.inputs[rows], self.labels[rows], self.ids[rows], persons)

    def joined(self, more: Records) -> Records:
        """These rows, then those of ``more``: of the same kind, with other ids."""
        return Records(
            np.concatenate([self.inputs, more.inputs]),
            np.concatenate([self.labels, more.labels]),
            np.concatenate([self.ids, more.ids]),
            None if self.persons is None else np.concatenate([self.persons, more.owners]),
        )


@dataclass(frozen=True, eq=False, repr=False)
class Ingested:
    """All rows as found, for the custodian's preview alone; `run` sees ``records``.

    ``verdicts``: uint8 [n_found], GOOD or what is wrong. ``inputs`` [n_found, ...], ``labels``,
    ``ids`` int64 [n_found].
    ``sizes``: int32 [n_found, 2], widths and heights as stored (pixels, 0 where unreadable), for
    image folders alone.
    ``other_files``: files of an image folder whose names are not an image's, a count.
    ``persons``: int64 [n_found], where the unit of privacy is a person.
    """

    inputs: np.ndarray
    labels: np.ndarray
    ids: np.ndarray
    verdicts: np.ndarray
    sizes: np.ndarray | None = None
    other_files: int = 0
    persons: np.ndarray | None = None

    @property
    def records(self) -> Records:
        """The good rows; no copy of a large array where all are good."""
        good = self.verdicts == GOOD
        rows = slice(None) if good.all() else good
        return Records(self.inputs, self.labels, self.ids, self.persons).take(rows)


def open_records(
    config: DataConfig, task: Task, progress: TaskProgress | None = None, unit: Unit = "row"
) -> Records:
    """The private rows of a data set without bad rows.

    This is the only way from a configuration to private rows.

    Dropped: images that can not be decoded, vectors that are not finite, labels outside the public
    classes, values that are no numbers, ids seen before among the good rows; where the ``unit`` is
    a person, rows without one, and ids seen before among that person's rows. Every row is judged by
    itself, except that the first of several good rows with one id stays: rows of one id are one
    record. No count, warning or error depends on what rows hold.
    ``progress`` hears (percent, 100): the number of records is private.

    Raises InvalidInput, MissingData for settings: a missing file or array, a dtype or shape that
    does not fit the task.
    """
    return ingest(config, task, progress, unit).records


def ingest(
    config: DataConfig, task: Task, progress: TaskProgress | None = None, unit: Unit = "row"
) -> Ingested:
    """Read and judge the private rows. Decoders' warnings, which describe rows, are silenced.

    Raises InvalidInput, MissingData, as open_records.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if config.source == "folder":
            return _ingest_folder(config, task, _percent(progress), unit)
        if config.source == "arrays":
            return _ingest_arrays(config, task, unit)
        if config.source == "table":
            return _ingest_table(config, task, unit)
        rows = published(config.source).private_rows(config, _percent(progress))
    return _judged(task, rows.inputs, rows.labels, rows.ids, rows.readable)


def stream_records(
    config: DataConfig, task: Task, size: int, start: int = 0, unit: Unit = "row"
) -> Iterator[tuple[int, int, Records]]:
    """The rows of ``open_records``, in blocks of ``size`` rows as found.

    Yields (rows found so far, rows in all, good rows of the block).

    ``start``: rows found that are left out. Image folders, npz files and CelebA are read block by
    block: memory is that of a few blocks, and of paths. Other published sets are read whole. Rows
    of one id in several blocks are all given: the first of them is to count.
    Raises InvalidInput, MissingData, as open_records.
    """
    if config.source == "folder":
        root, paths, _ = _folder_paths(config)
        for first in range(start, len(paths), size):
            part = paths[first : first + size]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                block = _folder_rows(config, task, root, part, unit=unit)
            yield first + len(part), len(paths), block.records
    elif config.source == "arrays":
        yield from _array_blocks(readers.require_arrays(config.path), task, size, start, unit)
    elif config.source == "table":
        yield from _table_blocks(config, task, size, start, unit)
    else:
        blocks = published(config.source).private_blocks(config, size, start)
        while (found := _quietly_next(blocks)) is not None:
            done, total, rows = found
            yield (
                done,
                total,
                _judged(task, rows.inputs, rows.labels, rows.ids, rows.readable).records,
            )


def _quietly_next(
    blocks: Iterator[tuple[int, int, Rows]],
) -> tuple[int, int, Rows] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return next(blocks, None)


def ingest_more(
    rows: Path,
    task: Task,
    progress: TaskProgress | None = None,
    unit: Unit = "row",
    person: str = "",
) -> Ingested:
    """More rows for a data set in use: a folder of class folders, or an npz file with private_id.

    ``unit``, ``person``: of the data set; a person's id stands where ``DataConfig.person`` says, or
    in private_person of the npz file.

    Raises InvalidInput, MissingData, as open_records.
    """
    if rows.is_dir():
        if len(task.input_shape) != 3:
            raise InvalidInput("rows", "an npz file, as the data set holds vectors", "a folder")
        if unit == "person" and not person:
            rule = "an npz file with private_person, as data.person names no folder"
            raise InvalidInput("rows", rule, "a folder")
        size, _, channels = task.input_shape
        given = DataConfig(
            source="folder",
            private=str(rows),
            image_size=size,
            channels=3 if channels == 3 else 1,
            person=person,
        )
    else:
        if not rows.is_file():
            raise MissingData(
                f"`rows` must be a folder of images or an npz file. Found {str(rows)!r}."
            )
        given = DataConfig(source="arrays", path=str(rows))
        if readers.read_member(readers.require_arrays(str(rows)), "private_id") is None:
            raise InvalidInput(
                "rows", "an npz file with private_x, private_y and private_id", "no private_id"
            )
    return ingest(given, task, progress, unit)


def _percent(progress: TaskProgress | None) -> TaskProgress | None:
    return None if progress is None else lambda done, total: progress(100 * done // total, 100)


def _ingest_folder(
    config: DataConfig, task: Task, progress: TaskProgress | None, unit: Unit
) -> Ingested:
    root, paths, others = _folder_paths(config)
    return _folder_rows(config, task, root, paths, others, progress, unit)


def _folder_paths(config: DataConfig) -> tuple[Path, list[str], int]:
    """(folder, images in it, number of other files)."""
    root = readers.require_folder("data.private", config.private)
    files = readers.list_files(root)
    paths = [path for path in files if readers.is_image(path)]
    return root, paths, len(files) - len(paths)


def _folder_rows(
    config: DataConfig,
    task: Task,
    root: Path,
    paths: list[str],
    others: int = 0,
    progress: TaskProgress | None = None,
    unit: Unit = "row",
) -> Ingested:
    images = readers.read_images(root, paths, config.image_size, config.channels, progress)
    truth = labels_of(task.labels, "data.private", root, paths)
    labels = task.labels.encode("data.private", truth)
    ids = np.array([readers.stable_hash(path) for path in paths], dtype=np.int64)
    persons = None
    if unit == "person":
        named = persons_of("data.private", root, paths, config.person, task.labels)
        persons = codes_of(named)
    return _judged(task, images.pixels, labels, ids, images.readable, images.sizes, others, persons)


def _ingest_arrays(config: DataConfig, task: Task, unit: Unit) -> Ingested:
    x = readers.required_member(config.path, "private_x")
    y = readers.required_member(config.path, "private_y")
    ids = readers.read_member(readers.require_arrays(config.path), "private_id")
    persons = readers.required_member(config.path, PERSON) if unit == "person" else None
    return _arrays_rows(task, x, y, ids, persons)


def _array_blocks(
    path: Path, task: Task, size: int, start: int, unit: Unit
) -> Iterator[tuple[int, int, Records]]:
    """An npz file's rows, as ``stream_records`` gives them. Each member is read once."""
    names = ["private_x", "private_y"]
    names += ["private_id"] if readers.has_member(path, "private_id") else []
    names += [PERSON] if unit == "person" else []
    total = readers.member_rows(path, names[0])
    if any(readers.member_rows(path, name) != total for name in names):
        raise InvalidInput(
            ", ".join(names[1:]), "one number for each row of private_x", "another count"
        )
    done = start
    for x, y, *more in zip(
        *(readers.member_blocks(path, name, size, start) for name in names), strict=True
    ):
        named = dict(zip(names[2:], more, strict=True))
        block = _arrays_rows(task, x, y, named.get("private_id"), named.get(PERSON), done)
        done += len(x)
        yield done, total, block.records


def _arrays_rows(
    task: Task,
    x: np.ndarray,
    y: np.ndarray,
    ids: np.ndarray | None,
    persons: np.ndarray | None = None,
    first: int = 0,
) -> Ingested:
    """Rows of an npz file, the first of which has the number ``first``."""
    inputs = readers.canonical_rows("private_x", x)
    dtype = np.uint8 if len(task.input_shape) == 3 else np.float32
    if inputs.shape[1:] != task.input_shape or inputs.dtype != dtype:
        rule = f"{np.dtype(dtype)} [n, {', '.join(map(str, task.input_shape))}], as public_x is"
        raise InvalidInput("private_x", rule, shape_text(inputs))
    labels = _one_a_row("private_y", task.labels.encode("private_y", y), len(inputs))
    ids = np.arange(first, first + len(inputs)) if ids is None else _ids(ids, len(inputs))
    codes = None if persons is None else codes_in(PERSON, persons, len(inputs))
    readable = np.ones(len(inputs), dtype=bool)
    return _judged(task, inputs, labels, ids, readable, persons=codes)


def _ingest_table(config: DataConfig, task: Task, unit: Unit) -> Ingested:
    if config.split:
        rows = one_file(config.path, config.split, "private")
    else:
        rows = read_table("data.private", config.private)
    inputs = scaling(config).inputs("data.private", rows)
    labels = encode(config, task.labels, "data.private", rows)
    ids, given = np.arange(len(inputs)), rows.columns.get(ID)
    if given is not None:
        ids = np.array([readers.stable_hash(text) for text in texts(given)], dtype=np.int64)
    codes = None
    if unit == "person":
        if config.person not in rows.columns:
            rule = "a column of the table of private rows"
            raise InvalidInput("data.person", rule, config.person)
        codes = codes_of(texts(rows.columns[config.person]).tolist())
    readable = np.ones(len(inputs), dtype=bool)
    return _judged(task, inputs, labels, ids, readable, persons=codes)


def _table_blocks(
    config: DataConfig, task: Task, size: int, start: int, unit: Unit
) -> Iterator[tuple[int, int, Records]]:
    """A table's rows, as ``stream_records`` gives them; the table is read whole."""
    found = _ingest_table(config, task, unit)
    total = len(found.ids)
    for first in range(start, total, size):
        part = slice(first, first + size)
        arrays = (found.inputs[part], found.labels[part], found.ids[part], found.verdicts[part])
        persons = None if found.persons is None else found.persons[part]
        yield min(first + size, total), total, Ingested(*arrays, persons=persons).records


def _ids(values: np.ndarray, rows: int) -> np.ndarray:
    """int64 [n]. The error does not say how many rows there are."""
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise InvalidInput("private_id", "whole numbers [n]", shape_text(values))
    return _one_a_row("private_id", values.astype(np.int64), rows)


def _one_a_row(name: str, values: np.ndarray, rows: int) -> np.ndarray:
    if len(values) != rows:
        raise InvalidInput(name, "one number for each row of private_x", "another count")
    return values


def _judged(
    task: Task,
    inputs: np.ndarray,
    labels: np.ndarray,
    ids: np.ndarray,
    readable: np.ndarray,
    sizes: np.ndarray | None = None,
    other_files: int = 0,
    persons: np.ndarray | None = None,
) -> Ingested:
    """Judge each row by itself, then repeated ids among the good rows of one person, or of all.

    So a bad row displaces no good one.
    """
    finite = (
        np.isfinite(inputs).all(axis=1)
        if inputs.dtype == np.float32
        else np.ones(len(inputs), dtype=bool)
    )
    known = task.labels.is_code(labels)
    nobody = np.zeros(len(labels), dtype=bool)
    if persons is not None:
        nobody, ids = persons == NOBODY, row_ids(persons, ids)
    faults = [~readable, ~finite, ~known, nobody]
    reasons = [UNREADABLE, NOT_FINITE, UNKNOWN_CLASS, NO_PERSON]
    verdicts = np.select(faults, reasons, GOOD).astype(np.uint8)
    good = np.flatnonzero(verdicts == GOOD)
    _, first = np.unique(ids[good], return_index=True)  # the first position of each id
    verdicts[np.delete(good, first)] = REPEATED_ID
    return Ingested(inputs, labels, ids, verdicts, sizes, other_files, persons)
