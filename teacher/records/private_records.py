"""Private records: the only file that opens them.

Bad rows are dropped here, silently, before anything else sees them. A row's id, person, label and
inputs are functions of that row alone; what a whole file has (a header, a schema, dtypes, shapes)
is public.
"""

import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from ...wall.datasets import arrays, readers
from ...wall.datasets.columns import texts
from ...wall.datasets.data_config import ID, DataConfig, Task
from ...wall.datasets.folders import list_files, stable_hash
from ...wall.datasets.image_labels import (
    image_names,
    is_image,
    labels_of,
    told_of,
    without_suffixes,
)
from ...wall.datasets.sources import PUBLISHED
from ...wall.datasets.tables import (
    TableFile,
    column_names,
    encoding,
    is_table,
    one_file,
    read_table,
    require_label,
    truth_of,
)
from ...wall.errors import InvalidInput, MissingData, require_known, shape_text
from ...wall.guarantee import Unit
from ...wall.labels import written
from ...wall.messages import blank_inputs
from ...wall.progress import TaskProgress, no_progress
from .persons import NOBODY, codes_in, codes_of, places, row_ids

INPUTS, LABELS, IDS, PERSONS = "private_x", "private_y", "private_id", "private_person"  # of an npz
NUMBERS, STEMS = "numbers", "stems"  # of ``Records.names``
# Verdicts: what is wrong with a row, at most one thing each.
GOOD, UNREADABLE, NOT_FINITE, UNKNOWN_CLASS, REPEATED_ID, NO_PERSON, NO_ID = range(7)


@dataclass(frozen=True, eq=False)
class Records:
    """The custodian's usable rows. Nothing of them prints; their number is private, too.

    ``inputs``: uint8 [n, h, w, c] or float32 [n, d], finite. ``labels``: int64 [n], codes of the
    task's label space.
    ``ids``: int64 [n], distinct. n may be 0.

    An id is an attribute of the row: its position in the published file; private_id of an npz; a
    hash of a table's record_id or of an image's relative path. Rows of an npz or a table without
    ids are numbered in the file's order, and are only ever appended.

    ``persons``: int64 [n], codes of the rows' persons; None where the unit of privacy is a row. An
    id is then one of person and row together (teacher/records/persons.py).
    ``names``: what ids are made of: "ids" or paths, "stems" of paths, or "numbers" of rows in their
    file. ``marks``: of numbered rows, int64 [n], hashes of what the file says of each.
    """

    inputs: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    ids: np.ndarray = field(repr=False)
    persons: np.ndarray | None = field(default=None, repr=False)
    names: str = "ids"
    marks: np.ndarray | None = field(default=None, repr=False)

    @property
    def owners(self) -> np.ndarray:
        """The record that each row belongs to: its person, or itself. int64 [n]."""
        return self.ids if self.persons is None else self.persons

    def take(self, rows: slice | np.ndarray) -> "Records":
        persons = None if self.persons is None else self.persons[rows]
        return Records(
            inputs=self.inputs[rows],
            labels=self.labels[rows],
            ids=self.ids[rows],
            persons=persons,
            names=self.names,
            marks=None if self.marks is None else self.marks[rows],
        )

    def joined(self, more: "Records") -> "Records":
        """Rows joined with ``more``, which are of the same kind with other ids."""
        return Records(
            np.concatenate([self.inputs, more.inputs]),
            np.concatenate([self.labels, more.labels]),
            np.concatenate([self.ids, more.ids]),
            None if self.persons is None else np.concatenate([self.persons, more.owners]),
            names=self.names,
        )


@dataclass(frozen=True, eq=False, repr=False)
class Ingested:
    """All rows as read, for the custodian's preview alone; `run` sees ``records``.

    ``verdicts``: uint8 [n_read], GOOD or what is wrong.
    ``other_files``: files of an image folder whose names are not an image's, a count.
    """

    rows: Records
    verdicts: np.ndarray
    other_files: int = 0

    @property
    def records(self) -> Records:
        """The good rows; no copy of a large array where all are good."""
        good = self.verdicts == GOOD
        return self.rows if good.all() else self.rows.take(good)


# (rows read or left out by then, of how many, a block)
Blocks = Iterator[tuple[int, int, Ingested]]
Read = Callable[[slice], Ingested]


def open_records(
    config: DataConfig, task: Task, progress: TaskProgress = no_progress, unit: Unit = "row"
) -> Records:
    """The private rows of a data set without bad rows: the only way to them.

    Dropped: images that can not be decoded or have too many pixels, vectors that are not finite,
    labels outside the public classes, values that are no numbers, empty ids, ids seen before among
    the good rows; where the ``unit`` is a person, rows without one, and ids seen before among that
    person's rows. Every row is judged by itself, except that the first of several good rows with
    one id stays: rows of one id are one record. No count, warning or error depends on what rows
    hold.
    ``progress`` hears (percent, 100): the number of records is private.

    Raises InvalidInput, MissingData for settings: a missing file or array, a dtype or shape that
    does not fit the task.
    """
    return ingest(config, task, progress, unit).records


def ingest(
    config: DataConfig, task: Task, progress: TaskProgress = no_progress, unit: Unit = "row"
) -> Ingested:
    """Read and judge the private rows, as open_records does."""

    def percent(done: int, total: int) -> None:
        progress(100 * done // total, 100)

    whole = _quietly(_blocks(config, task, None, 0, unit, percent))
    assert whole is not None
    return whole[2]


def stream_records(
    config: DataConfig, task: Task, size: int, start: int = 0, unit: Unit = "row"
) -> Iterator[tuple[int, int, Records]]:
    """The rows of ``open_records``, in blocks of ``size`` rows as read.

    Yields (rows read so far, rows in all, good rows of the block). ``start``: rows that are left
    out. Image folders, npz files and CelebA take the memory of a few
    blocks, and of paths; other sets are read whole. Rows of one id in several blocks are all given:
    the first of them is to count. Raises as open_records.
    """
    blocks = _blocks(config, task, size, start, unit)
    while (block := _quietly(blocks)) is not None:
        done, total, rows = block
        yield done, total, rows.records
        del block, rows


def _quietly(blocks: Blocks) -> tuple[int, int, Ingested] | None:
    """The next block, if any, without decoders' warnings, which describe rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return next(blocks, None)


def ingest_more(
    rows: Path,
    data: DataConfig,
    task: Task,
    progress: TaskProgress = no_progress,
    unit: Unit = "row",
) -> Ingested:
    """More rows for a data set in use.

    ``rows``: of a table a table with ids, which is read as the private one is; of others a folder
    of class folders, or an npz file with private_id. ``data``: of the data set, as is
    ``unit``; a person's id stands where ``DataConfig.person`` says, or in private_person of the npz
    file.

    Raises InvalidInput, MissingData, as open_records.
    """
    if data.source == "table":
        return _more_of_a_table(rows, data, task, progress, unit)
    if rows.is_dir():
        if len(task.input_shape) != 3:
            raise InvalidInput("rows", "an npz file, as the data set holds vectors", "a folder")
        if unit == "person" and not data.person:
            rule = "an npz file with private_person, as data.person names no folder"
            raise InvalidInput("rows", rule, "a folder")
        if data.source != "folder":
            size, _, channels = task.input_shape
            if data.labels == "attributes":  # as the rows in use have them
                data = replace(data, source="folder", classes=list(task.labels.names))
            data = replace(data, source="folder", path=None, image_size=size, channels=channels)
        return ingest(replace(data, private=str(rows)), task, progress, unit)
    if not rows.is_file():
        raise MissingData(f"`rows` must be a folder of images or an npz file. Found {str(rows)!r}.")
    if not zipfile.is_zipfile(rows):
        raise InvalidInput("rows", "a folder of images or an npz file", str(rows))
    if not arrays.has_member(rows, IDS):
        rule = f"an npz file with {INPUTS}, {LABELS} and {IDS}"
        raise InvalidInput("rows", rule, f"no {IDS}")
    return ingest(DataConfig("arrays", path=str(rows)), task, progress, unit)


def _more_of_a_table(
    rows: Path, data: DataConfig, task: Task, progress: TaskProgress, unit: Unit
) -> Ingested:
    if data.split:
        raise _closed(rows, "the private rows have no file of their own (data.private)")
    if not rows.exists():
        raise MissingData(f"`rows` must be a table like data.private. Found {str(rows)!r}.")
    if not has_names(data):
        raise _closed(rows, "the private table has no column of ids, which tell rows apart")
    columns = column_names("rows", rows) if is_table(rows) or rows.is_dir() else []
    if data.id not in columns:
        rule = f"a table like data.private, with an id of each row in the column {data.id}"
        raise InvalidInput("rows", rule, str(rows))
    require_columns(data, columns, "rows")
    return ingest(replace(data, private=str(rows)), task, progress, unit)


def _closed(rows: Path, why: str) -> InvalidInput:
    """The error for rows that nothing can be added to, and why."""
    return InvalidInput("rows", why, str(rows), text=f"No rows can be added: {why}.")


def has_names(data: DataConfig) -> bool:
    """Whether the private rows' ids are texts: those in a table's column, or of a folder's files.

    Raises InvalidInput, MissingData.
    """
    return data.source == "table" and data.id in table_columns(data)


def numbered(data: DataConfig) -> bool:
    """Whether a private row is told apart from others by its place in its file alone."""
    if data.source == "arrays":
        return not arrays.has_member(arrays.require_arrays(data.path), IDS)
    return data.source == "table" and not has_names(data)


def read_id(data: DataConfig) -> Callable[[str], int]:
    """How a text names a private row's id: by its number where rows have no names.

    Raises InvalidInput, MissingData.
    """
    if not has_names(data):
        return int
    place = Path(data.private or "")
    return stable_hash if place.is_dir() and not is_table(place) else id_of  # paths, or cells


def _blocks(
    config: DataConfig,
    task: Task,
    size: int | None,
    start: int,
    unit: Unit,
    progress: TaskProgress = no_progress,
) -> Blocks:
    """All rows from ``start`` on in blocks of ``size``; in one block, maybe empty, where None."""
    if config.source == "folder":
        total, read = _folder(config, task, unit, progress)
    elif config.source == "arrays":
        total, read = _arrays(config, task, unit, size, start)
    elif config.source == "table":
        total, read = _table(config, task, unit)
    else:
        total, read = _published(config, task, unit, progress)
    firsts = [start] if size is None else range(start, total, size)
    for first in firsts:
        stop = total if size is None else min(first + size, total)
        yield stop, total, read(slice(first, stop))


def _published(
    config: DataConfig, task: Task, unit: Unit, progress: TaskProgress
) -> tuple[int, Read]:
    rows = PUBLISHED[config.source].private_rows(config)

    def read(block: slice) -> Ingested:
        images = rows.images(block, task.input_shape, progress)
        persons, faults = None, {UNREADABLE: ~images.readable}
        if unit == "person":
            assert rows.persons is not None  # PrivateSide refuses other sets
            persons = codes_of(rows.persons[block])
        return _judged(task, images.pixels, rows.labels[block], rows.ids[block], faults, persons)

    return len(rows.ids), read


def _folder(config: DataConfig, task: Task, unit: Unit, progress: TaskProgress) -> tuple[int, Read]:
    root = readers.require_folder("data.private", config.private)
    files = list_files(root)
    paths = [path for path in files if is_image(path)]
    truth = labels_of(config, task.labels, "data.private", root, paths)
    labels = task.labels.encode("data.private", truth)
    ids = np.array([*map(stable_hash, image_names(config, paths))], dtype=np.int64)
    persons = None
    if unit == "person":
        persons = codes_of(told_of(config, "person", "data.private", root, paths))
    names = STEMS if without_suffixes(config) else Records.names

    def read(block: slice) -> Ingested:
        chosen, size, channels = paths[block], config.image_size, config.channels
        images = readers.read_images(root, chosen, (size, size), channels, progress, config.white)
        theirs, faults = None if persons is None else persons[block], {UNREADABLE: ~images.readable}
        judged = _judged(task, images.pixels, labels[block], ids[block], faults, theirs)
        rows = replace(judged.rows, names=names)
        return replace(judged, rows=rows, other_files=len(files) - len(paths))

    return len(paths), read


def _arrays(
    config: DataConfig, task: Task, unit: Unit, size: int | None, start: int
) -> tuple[int, Read]:
    """Rows of an npz file or a folder of npy files. In blocks each member is read once."""
    path = arrays.require_arrays(config.path)
    names = [INPUTS, LABELS]
    names += [IDS] if arrays.has_member(path, IDS) else []
    names += [PERSONS] if unit == "person" else []
    if size is None:
        whole = {name: arrays.required_member(path, name) for name in names}
        counts = {name: len(array) for name, array in whole.items()}
        parts = iter([whole])
    else:
        counts = {name: arrays.member_rows(path, name) for name in names}
        members = {name: arrays.member_blocks(path, name, size, start) for name in names}
        steps = range(start, counts[INPUTS], size)
        parts = ({name: next(blocks) for name, blocks in members.items()} for _ in steps)
    unequal = [name for name, count in counts.items() if count != counts[INPUTS]]
    if unequal:
        rule = f"one number for each row of {INPUTS}"
        raise InvalidInput(", ".join(unequal), rule, "another count")
    earlier = Counter[int]()  # rows by person
    if unit == "person" and IDS not in names and start:
        before = next(arrays.member_blocks(path, PERSONS, start))
        places(codes_in(PERSONS, before, start), earlier)
    return counts[INPUTS], lambda block: _array_rows(task, next(parts), block.start, earlier)


def inputs_of(task: Task, rows: np.ndarray) -> np.ndarray:
    """Private rows as the wall carries them. Raises InvalidInput unless they are as public_x is."""
    inputs = arrays.canonical_rows(INPUTS, rows)
    expected, found = map(shape_text, (blank_inputs(task.input_shape, 0), inputs))
    if found != expected:
        raise InvalidInput(INPUTS, f"{expected}, as public_x is", found)
    return inputs


def _array_rows(
    task: Task, columns: Mapping[str, np.ndarray], first: int, earlier: Counter[int]
) -> Ingested:
    """Rows of an npz file, the first of which has the number ``first``."""
    inputs, labels = inputs_of(task, columns[INPUTS]), task.labels.encode(LABELS, columns[LABELS])
    given, persons = columns.get(IDS), None
    if given is not None and (given.dtype.kind not in "iu" or given.ndim != 1):
        raise InvalidInput(IDS, "whole numbers [n]", shape_text(given))
    ids = np.arange(first, first + len(inputs)) if given is None else given.astype(np.int64)
    if PERSONS in columns:
        persons = codes_in(PERSONS, columns[PERSONS], len(inputs))
        ids = places(persons, earlier) if given is None else ids
    judged = _judged(task, inputs, labels, ids, {}, persons)
    if given is not None or persons is not None:
        return judged
    written = zip(inputs, columns[LABELS], strict=True)
    return _numbered(judged, (x.tobytes() + y.tobytes() for x, y in written))


def private_table(config: DataConfig) -> TableFile:
    """The table of the private rows, with all columns that are read from it.

    Raises InvalidInput, also for a column that it lacks, MissingData.
    """
    if config.split:
        table = one_file(config.path, config.split, "private")
    else:
        table = read_table("data.private", config.private)
    require_columns(config, table.columns)
    return table


def table_columns(config: DataConfig) -> list[str]:
    """Names of the columns of the private rows' table, which are public. Raises as read_table."""
    named = ("data.path", config.path) if config.split else ("data.private", config.private)
    return column_names(*named)


def require_columns(
    config: DataConfig, columns: Collection[str], field: str = "data.private"
) -> None:
    """Raise InvalidInput unless a private table has all ``columns`` that are read from it.

    "" and ID as the names of a column of persons or ids name none. ``field``: what names the table.
    """
    encoding(config).require(field, columns)
    require_label(config, field, columns)
    for name, column in (("data.id", config.id), ("data.person", config.person)):
        if column not in ("", ID):
            require_known(name, [column], columns, "a column of the private rows")


def _table(config: DataConfig, task: Task, unit: Unit) -> tuple[int, Read]:
    table = private_table(config)
    inputs = encoding(config).inputs("data.private", table.columns)
    truth = truth_of(config, task.labels, "data.private", table)
    labels = task.labels.encode("data.private", truth)
    ids, persons, unnamed = table.places, None, np.zeros(len(table.places), dtype=bool)
    named = ID if table.of_files else config.id
    if table.of_files:
        ids = np.array([stable_hash(path) for path in table.columns[ID]], dtype=np.int64)
    elif named in table.columns:
        names = _names(f"data.id, the column {named}", table.columns[named])
        ids = np.array([id_of(text) for text in names], dtype=np.int64)
        unnamed = names == ""
    if unit == "person":
        persons = codes_of(_names("data.person", table.columns[config.person]).tolist())
        ids = ids if named in table.columns else places(persons, Counter())

    def read(block: slice) -> Ingested:
        theirs = None if persons is None else persons[block]
        without = {NO_ID: unnamed[block]}
        judged = _judged(task, inputs[block], labels[block], ids[block], without, theirs)
        if table.of_files or named in table.columns or theirs is not None:
            return judged
        cells = [texts(column[block]).tolist() for column in table.columns.values()]
        return _numbered(judged, (repr(row).encode() for row in zip(*cells, strict=True)))

    return len(ids), read


def id_of(text: str) -> int:
    """The id of a row whose cell of ids is ``text``, ``written`` as labels are: 7.0 is 7."""
    return stable_hash(written(text))


def _names(name: str, column: np.ndarray) -> np.ndarray:
    """Ids of rows or persons as texts; "" for none."""
    if column.dtype.kind == "f":
        rule = "a column of whole numbers or texts: floating ones round those above 2^53"
        raise InvalidInput(name, rule, "floating numbers")
    return texts(column)


def _numbered(read: Ingested, rows: Iterable[bytes]) -> Ingested:
    """With marks of the ``rows``, whose places in the file are their ids."""
    hashes = (int.from_bytes(sha256(row).digest()[:8], "big") >> 1 for row in rows)
    marks = np.fromiter(hashes, dtype=np.int64)
    return replace(read, rows=replace(read.rows, names=NUMBERS, marks=marks))


def _judged(
    task: Task,
    inputs: np.ndarray,
    labels: np.ndarray,
    ids: np.ndarray,
    faults: Mapping[int, np.ndarray],
    persons: np.ndarray | None = None,
) -> Ingested:
    """Judge each row by itself, then repeated ids among the good rows: no bad one displaces those.

    ``ids``: int64 [n], of rows among their person's where there are ``persons``. ``faults``: bool
    [n] by verdict, as a file shows them.
    """
    every = dict(faults)
    if inputs.dtype == np.float32:
        every[NOT_FINITE] = ~np.isfinite(inputs).all(axis=1)
    every[UNKNOWN_CLASS] = ~task.labels.is_code(labels)
    if persons is not None:
        every[NO_PERSON], ids = persons == NOBODY, row_ids(persons, ids)
    verdicts = np.select(list(every.values()), list(every), GOOD).astype(np.uint8)
    good = np.flatnonzero(verdicts == GOOD)
    _, first = np.unique(ids[good], return_index=True)  # the first position of each id
    verdicts[np.delete(good, first)] = REPEATED_ID
    return Ingested(Records(inputs, labels, ids, persons), verdicts)
