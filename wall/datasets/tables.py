"""Tables of one's own: CSV, parquet, databases, a folder that `datasets` saved, or one of texts.

A cell is read by itself: no other row decides its type, and none that is damaged hides another.
The header of a CSV file and the schema of the others (names and types of columns) are public. A
line of a private CSV file is a row, so that a line break within quotes ends it. PUBLIC files may
have such line breaks.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import LISTED, InvalidInput, MissingData, listed, meant, require_known
from ..label_kinds import label_space
from ..labels import LabelSpace, code_of, has_truth
from ..progress import TaskProgress
from .columns import Encoding, encoding_of, number_form, numbers, texts
from .csv_files import columns_of, read_lines, records_of
from .data_config import (
    BOX,
    ID,
    MOST_COLUMNS,
    SPLITS,
    DataConfig,
    PublicData,
    Task,
    no_names,
)
from .databases import QUERY, queried, stored_table
from .databases import SUFFIX as DUCKDB
from .drawn import box_cells, drawn_rows
from .folders import read_text, text_files
from .image_labels import METADATA, is_image
from .public_classes import classes_by_column, classes_read

if TYPE_CHECKING:
    import pyarrow

INDEX = re.compile(r"__index_level_\d+__|")  # a column that pandas wrote without being asked
MOST_LINES = 10  # kinds of columns that are shown
TYPED = (".parquet", ".pq", DUCKDB, QUERY)
TEXT = (".csv", ".tsv", ".txt")
KINDS = f"file ({', '.join(TEXT + TYPED)}), or folder of texts or of `datasets`"
SAVED = "state.json"  # in a folder that `datasets` saved
PUBLIC = ("data.public", "data.test", "queries")  # fields that name no private table
SAMPLE = 100  # cells of a column that may be names of images
FILES = "text"  # the column with the content of a folder's texts


@dataclass(frozen=True, eq=False, repr=False)
class TableFile:
    """Columns of equal length by name: arrays [n] of numbers or of objects.

    Objects are texts, whole numbers, lists of them, or None. ``places``: int64 [n], the rows'
    numbers in the file. ``of_files``: whether a row is a text of a folder.
    """

    columns: Mapping[str, np.ndarray]
    places: np.ndarray
    of_files: bool = False
    misfits: int = 0  # records of a CSV file that were left out
    unlabelled: int = 0  # test rows that were left out
    nested: frozenset[str] = frozenset()  # columns of bytes or structures, which are no features

    def rows(self, chosen: np.ndarray) -> TableFile:
        """The ``chosen`` rows, bool [n]."""
        columns = {name: cells[chosen] for name, cells in self.columns.items()}
        return replace(self, columns=columns, places=self.places[chosen])


def is_table(path: Path) -> bool:
    """Whether a path looks like a table's, by its name; see ``is_text_folder`` for others."""
    return path.suffix.lower() in TEXT + TYPED or os.path.isfile(path / SAVED)


def read_table(field: str, path: str | Path | None) -> TableFile:
    """The table that a field names. Records of a CSV file that do not fit the header are left out.

    A record is a line, so that no private one hides another. Of the fields PUBLIC it may have line
    breaks within quotes, if these explain the lines that do not fit. Raises InvalidInput,
    MissingData; no text depends on what rows hold.
    """
    if not path:
        raise InvalidInput(field, f"a {KINDS}", path)
    file = Path(path)
    if not file.is_file() and not file.is_dir():  # a pipe would be waited for
        raise MissingData(f"`{field}` must be an existing {KINDS}. Found {str(path)!r}.")
    if file.is_file() and file.suffix.lower() == QUERY:
        cells = queried(field, file)
        return TableFile(cells, np.arange(len(cells[ID])))
    if (file / SAVED).is_file() or file.suffix.lower() in TYPED:
        return _arrow(field, file)
    if file.is_dir():
        return _text_folder(file)
    if file.suffix.lower() not in TEXT:
        raise InvalidInput(field, f"a {KINDS}", str(path))
    names, lines = read_lines(file)
    places = _columns(field, names)
    columns, fits, misfits = columns_of(lines, len(names), places)
    if field in PUBLIC and misfits:
        by_quotes = columns_of(records_of(file), len(names), places)
        # A stray quote would swallow lines that fit.
        if by_quotes[2] < misfits and by_quotes[1].sum() + misfits >= fits.sum():
            columns, fits, misfits = by_quotes
    return TableFile(columns, np.flatnonzero(fits), misfits=misfits)


def column_names(field: str, path: str | Path | None) -> list[str]:
    """Names of the columns of the table that a field names; of a CSV file by its header alone.

    Raises InvalidInput, MissingData.
    """
    if path and Path(path).is_file() and Path(path).suffix.lower() in TEXT:
        return [*_columns(field, read_lines(Path(path))[0])]
    return [*read_table(field, path).columns]


def read_records(
    field: str, path: str | Path, features: Sequence[str]
) -> tuple[Mapping[str, np.ndarray], np.ndarray]:
    """(columns of a table to be labelled, of the rows that fit; which of all rows these are, bool).

    A row of a CSV file is a record as RFC 4180 has it, with line breaks within quotes. It fits if
    it has a cell for each name in the header. Raises InvalidInput, MissingData.
    """
    if Path(path).suffix.lower() not in TEXT or not Path(path).is_file():
        table = read_table(field, path)
        return table.columns, np.ones(len(table.places), dtype=bool)
    names, _ = read_lines(Path(path))
    if absent := [name for name in features if names.count(name) != 1]:
        cure = meant(absent[0], names) or f"It has {listed(names)}."
        raise InvalidInput(field, f"a table with the column {absent[0]}, once", str(path), cure)
    places = {name: names.index(name) for name in features}
    columns, fits, _ = columns_of(records_of(Path(path)), len(names), places)
    return columns, fits


def _columns(field: str, names: Sequence[str]) -> dict[str, int]:
    """The places of a table's columns by name, without those of INDEX. Raises InvalidInput."""
    if len(names) > MOST_COLUMNS:
        raise InvalidInput(field, f"a table of at most {MOST_COLUMNS} columns", len(names))
    named = {name: at for at, name in enumerate(names) if not INDEX.fullmatch(name)}
    if not named:
        raise InvalidInput(field, "a table whose first line names the columns", "no name")
    again = [name for at, name in enumerate(names) if named.get(name, at) != at]
    if again:
        cure = f"Rename or remove all but one column {again[0]!r}."
        raise InvalidInput(field, "a table whose columns differ in name", again[0], cure)
    return named


def _text_folder(root: Path) -> TableFile:
    """A row for each text: its label is the first folder of its path, its person the second."""
    paths = text_files(root)
    folders = [path.split("/")[:-1] for path in paths]
    columns = {
        FILES: [read_text(root / path) for path in paths],
        "label": [names[0] if names else "" for names in folders],
        "path": [names[1] if len(names) > 1 else "" for names in folders],
        ID: paths,
    }
    arrays = {name: np.array(cells, dtype=object) for name, cells in columns.items()}
    return TableFile(columns=arrays, places=np.arange(len(paths)), of_files=True)


def _arrow(field: str, path: Path) -> TableFile:
    """A parquet or DuckDB file, or a folder that `datasets` saved."""
    try:
        if path.suffix.lower() == DUCKDB:
            table = stored_table(field, path)
        elif path.is_dir():
            import datasets

            table = datasets.load_from_disk(str(path)).with_format("arrow")[:]
        else:
            import pyarrow.parquet as parquet

            table = parquet.read_table(path)
    except ImportError as error:
        needed = "datasets" if path.is_dir() else "'labelwall[tables]'"
        raise MissingData(f"`{field}` needs another package: pip install {needed}.") from error
    except (OSError, ValueError) as error:  # damaged
        rule = "a readable folder of datasets" if path.is_dir() else "a readable parquet file"
        raise InvalidInput(field, rule, str(path)) from error
    names = [unicodedata.normalize("NFC", name) for name in table.column_names]
    named = _columns(field, names)
    columns = {name: arrow_column(table.column(at)) for name, at in named.items()}
    nested = frozenset(name for name, at in named.items() if _nested(table.column(at).type))
    return TableFile(columns, np.arange(table.num_rows), nested=nested)


def _nested(kind: pyarrow.DataType) -> bool:
    """Whether cells of such a type are bytes or structures, or lists of them."""
    from pyarrow import types

    lists = types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_dictionary
    if any(of(kind) for of in lists):
        return _nested(kind.value_type)
    kinds = types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_struct
    return any(of(kind) for of in kinds)


def arrow_column(column: pyarrow.ChunkedArray) -> np.ndarray:
    """Cells by the schema's type of a column: whether some are missing changes no other."""
    import pyarrow
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind: Any = column.type
    if types.is_floating(kind):
        return column.cast(pyarrow.float64(), safe=False).to_numpy()
    if types.is_integer(kind) and not column.null_count:
        return column.to_numpy()  # the same numbers as those of the objects below, sooner
    is_list = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    of = kind.value_type if any(listed(kind) for listed in is_list) else kind
    if types.is_integer(of) or types.is_floating(of):
        cells = column.to_pylist()
    elif types.is_string(kind) or types.is_large_string(kind):
        # Bytes that are not UTF-8 would end the reading of the whole column
        parts = column.cast(pyarrow.large_binary()).to_pylist()
        cells = [p if p is None else p.decode(errors="backslashreplace") for p in parts]
    else:
        cells = [_scalar_text(cell) for cell in column]
    return np.fromiter(cells, dtype=object, count=len(cells))


def _scalar_text(cell: pyarrow.Scalar) -> str | None:
    """A date, a truth value and the like; None for one that Python can not hold."""
    try:
        value = cell.as_py()
    except (ValueError, OverflowError):
        return None
    return None if value is None else str(value)


def describe(config: DataConfig) -> Task:
    """The task. Classes that are not declared are the labels of the test and the public rows."""
    space, splits = config.declared_labels, _public_splits(config)
    if not space.names:
        tested, (_, public) = splits[1:], splits[0]
        if not tested and config.label not in public.columns:
            raise no_names(space)
        test = [cell for name, table in tested for cell in _label_column(config, name, table)]
        public_cells = public.columns.get(config.label, ())
        classes = classes_by_column(test, public_cells, config.label, splits[-1][0])
        space = label_space(config.labels, classes)
    return Task(space, (len(encoding(config).mean),))


def read_public(config: DataConfig, progress: TaskProgress) -> PublicData:
    """The PUBLIC rows. Raises InvalidInput, MissingData."""
    space, known_columns = describe(config).labels, encoding(config)
    inputs, labels = [], list[np.ndarray | None]()
    for name, table in _public_splits(config):
        inputs.append(known_columns.inputs(name, table.columns, public=True))
        if name == "data.public" and config.label not in table.columns:
            labels.append(None)
            continue
        truth = truth_of(config, space, name, table)
        known = has_truth(truth)
        if name == "data.test" and not (len(known) and known.all()):
            unknown = texts(table.columns[config.label])[~known][:1]
            rule = f"rows with a known label in the column {config.label}"
            raise InvalidInput(name, rule, f"{unknown[0]}" if len(unknown) else "no rows")
        labels.append(truth if known.any() else None)
    groups = None
    if config.group:  # the last split has the test rows, or is what they are held out of
        require_known("data.group", [config.group], table.columns, f"a column of {name}")
        groups = texts(table.columns[config.group])
    if len(inputs) == 1:
        return replace(PublicData.untested(space, inputs[0], labels[0]), groups=groups)
    assert labels[1] is not None
    return PublicData(
        inputs=inputs[0],
        labels=labels[0],
        test_inputs=inputs[1],
        test_labels=labels[1],
        test_groups=groups,
    )


def _public_splits(config: DataConfig) -> list[tuple[str, TableFile]]:
    """The PUBLIC splits by their settings: public rows, then test rows if there are any."""
    splits = [("data.public", split_rows(config, "public"))]
    if config.split or config.test:
        test = split_rows(config, "test")
        if config.test or len(test.places):
            splits.append(("data.test", _with_labels(config, test)))
    return splits


def _with_labels(config: DataConfig, test: TableFile) -> TableFile:
    """The test rows whose label is not empty, or all if all are. Words such as none are classes."""
    labelled = texts(test.columns.get(config.label, np.array([]))) != ""
    if not labelled.any():
        return test
    return replace(test.rows(labelled), unlabelled=int((~labelled).sum()))


def encoding(config: DataConfig) -> Encoding:
    return features(config)[0]


def features(config: DataConfig) -> tuple[Encoding, dict[str, str]]:
    """The features, and why other columns tell nothing, by the PUBLIC table alone.

    Every column is a feature but the label, the split, the person, the id and those to ignore; in a
    folder the texts are. Of drawn rows all cells are looked at that they can have. Raises
    InvalidInput if there is none, MissingData.
    """
    if config.public == BOX:
        table = TableFile(_cells_of_drawn(config), np.arange(config.drawn))
    else:
        table = split_rows(config, "public")
    left_out = _no_features(config)
    if table.of_files:
        left_out = set(table.columns) - {FILES}
    columns = {name: cells for name, cells in table.columns.items() if name not in left_out}
    if nested := [name for name in columns if name in table.nested]:
        rule = "a table without columns of bytes or structures, as `datasets` keeps images"
        cure = f"Write images to folders, one for each class, or --data.ignore '[{nested[0]}]'."
        raise InvalidInput("data.public", rule, nested[0], cure)
    if images := [name for name, cells in columns.items() if _names_images(cells)]:
        rule = "a table without names of image files, which it does not open"
        cure = (
            f"To learn from the images, put it into each folder of images as {METADATA} and give "
            f"the folders. To learn without them: --data.ignore '[{images[0]}]'."
        )
        raise InvalidInput("data.public", rule, images[0], cure)
    if not columns or not len(table.places):
        rule = "a table with rows and columns of features, or a folder of texts"
        raise InvalidInput("data.public", rule, "none")
    for name, given in (("data.ignore", config.ignore), ("data.keep", config.keep)):
        require_known(name, given, table.columns, "columns of the public rows")
    require_known("data.text", config.text, columns, "columns of features")
    prose = [FILES] if table.of_files else config.text
    found = encoding_of(columns, prose, config.text_features, config.categories).columns
    if config.public == BOX and (of_text := [c.name for c in found if c.kind == "text"]):
        rule = f"a file, for the column of texts {of_text[0]}: none can be drawn"
        cure = f"Without it: --data.ignore '[{of_text[0]}]'."
        raise InvalidInput("data.public", rule, BOX, cure)
    keep = {*config.keep, *config.ranges, *config.categories}
    idle = {c.name: c.idle(columns[c.name]) for c in found if c.name not in keep}
    idle = {name: why for name, why in idle.items() if why}
    if len(idle) == len(found):
        cure = "`data.keep` lists columns to take all the same."
        raise InvalidInput("data.public", "rows that differ in some column", idle, cure)
    return Encoding(tuple(c for c in found if c.name not in idle)), idle


def _names_images(cells: np.ndarray) -> bool:
    """Whether most of a PUBLIC column's first cells are names of image files."""
    shown = [isinstance(cell, str) and is_image(cell.strip()) for cell in cells[:SAMPLE]]
    return 2 * sum(shown) > len(shown)


def _no_features(config: DataConfig) -> set[str]:
    """Names of columns that are no features by the settings."""
    return {config.label, config.split, config.person, ID, config.id, *config.ignore}


def _cells_of_drawn(config: DataConfig) -> dict[str, np.ndarray]:
    """The cells that drawn rows can have, by the column, and those of the other test columns."""
    test = split_rows(config, "test") if config.test or config.split else None
    if test is not None and test.of_files:
        raise InvalidInput("data.public", "a folder of public texts: none can be drawn", BOX)
    declared = [*config.ranges, *config.categories]
    if others := [name for name in declared if name in _no_features(config)]:
        raise InvalidInput("data.ranges, data.categories", "columns of features", others[0])
    return box_cells(config, test.columns if test is not None and len(test.places) else {})


def labels_read(config: DataConfig) -> list[str]:
    """Lines about PUBLIC labels that are no class, or classes that look like two."""
    splits = _public_splits(config)
    lines = [
        f"data.test: {table.unlabelled} rows without a label are left out"
        for _, table in splits
        if table.unlabelled
    ]
    if config.labels != "class":
        return lines
    public_cells = splits[0][1].columns.get(config.label, np.array([]))
    return lines + classes_read(describe(config).labels.names, public_cells)


def columns_read(config: DataConfig) -> list[str]:
    """How each column of the PUBLIC table is read, in lines for a reader."""
    (encoded, idle), splits = features(config), _public_splits(config)
    kinds = dict[str, list[str]]()
    for column in encoded.columns:
        values = f" ({len(column.values)} values)" if column.kind == "category" else ""
        kinds.setdefault(column.how, []).append(column.name + values)
    for name, why in idle.items():
        kinds.setdefault(f"left out, {why} (data.keep takes it)", []).append(name)
    lines = [f"  {how}: {listed(names)}" for how, names in kinds.items()]
    more = [f"  and {len(lines) - MOST_LINES} more kinds"] if len(lines) > MOST_LINES else []
    shown = "the facts that public rows are drawn from" if config.draws else "the public rows"
    more += [
        f"  {split}: {table.misfits} of {table.misfits + len(table.places)} records are left out, "
        "as they have another number of cells than the header"
        for split, table in splits
        if table.misfits
    ]
    unlike = [  # columns of the PUBLIC test rows
        f"  {split}, {line}"
        for split, table in splits[1:]
        for line in encoded.unlike(table.columns)
    ]
    return [f"columns, as {shown} show them:", *lines[:MOST_LINES], *more, *unlike]


def split_rows(config: DataConfig, split: str) -> TableFile:
    """The rows of a PUBLIC split: drawn, or its own file, or those of the one file that name it."""
    if split == "public" and config.public == BOX:
        cells, others = _cells_of_drawn(config), _no_features(config)
        cells = {name: own for name, own in cells.items() if name not in others}
        return TableFile(drawn_rows(cells, config.drawn), np.arange(config.drawn))
    if config.split:
        return one_file(config.path, config.split, split)
    return read_table(f"data.{split}", config.public if split == "public" else config.test)


def one_file(path: str | None, column: str, split: str) -> TableFile:
    """The rows of the one file whose public ``column`` says ``split``, in any case.

    Blanks around the word do not matter. Raises InvalidInput, also for another word, MissingData.
    """
    table = read_table("data.path", path)
    if column not in table.columns:
        raise _no_column("data.split", table.columns, column)
    words = np.array([text.lower() for text in texts(table.columns[column])], dtype=object)
    if not set(words) <= set(SPLITS):
        rule = f"a column that says {', '.join(SPLITS[:-1])} or {SPLITS[-1]} in every row"
        raise InvalidInput("data.split", rule, f"another word in the column {column}")
    return replace(table.rows(words == split), misfits=0)


def truth_of(config: DataConfig, space: LabelSpace, name: str, table: TableFile) -> np.ndarray:
    """A table's labels: int64 [n], -1 for no class; or float64 [n], NaN for no number.

    Raises InvalidInput.
    """
    cells = _label_column(config, name, table)
    if space.kind == "value":
        shown = [table.columns.get(config.label, cells[:0]) for _, table in _public_splits(config)]
        form = number_form(np.concatenate([each.astype(object) for each in shown]))
        return numbers(cells, 1, form)[:, 0]
    return np.array(list(map(code_of(space.names), cells)), dtype=np.int64)


def _label_column(config: DataConfig, name: str, table: TableFile) -> np.ndarray:
    require_label(config, name, table.columns)
    return table.columns[config.label]


def require_label(config: DataConfig, name: str, columns: Collection[str]) -> None:
    """Raise InvalidInput unless the labels are one of the ``columns`` of the table ``name``."""
    if config.label not in columns:
        raise _no_column("data.label", columns, config.label, f", columns of {name}")


def _no_column(name: str, columns: Collection[str], found: str, where: str = "") -> InvalidInput:
    known = [*columns]
    if len(known) > LISTED:
        known = known[-1:] + known[:-1]  # the last one is often the label
    return InvalidInput(name, f"one of {listed(known)}{where}", found, meant(found, known))
