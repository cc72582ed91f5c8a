"""Tables of one's own: CSV, parquet, a folder that `datasets` saved, or a folder of texts.

A cell is read by itself: no other row decides its type, and none that is damaged hides another.
The header of a CSV file and the schema of the others (names and types of columns) are public. A
line of a CSV file is a row, so that a line break within quotes ends it.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidInput, MissingData, listed
from ..label_kinds import label_space
from ..labels import LabelSpace, has_truth
from ..progress import TaskProgress
from .columns import Encoding, encoding_of, numbers, texts
from .config import SPLITS, DataConfig, PublicData, Task, no_names, no_rows
from .folders import read_text, text_files

if TYPE_CHECKING:
    import pyarrow

ID = "record_id"  # a column with ids of private records, where there is one
SEPARATORS = ",;\t"
PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt")
SAVED = "state.json"  # in a folder that `datasets` saved
FILES = "text"  # the column with the content of a folder's texts


@dataclass(frozen=True, eq=False, repr=False)
class TableFile:
    """Columns of equal length by name: arrays [n] of numbers, or of objects, which are texts, whole
    numbers, lists of them, None. ``places``: int64 [n], the rows' numbers in the file.
    ``of_files``: whether a row is a text of a folder.
    """

    columns: Mapping[str, np.ndarray]
    places: np.ndarray
    of_files: bool = False


def is_table(path: Path) -> bool:
    """Whether a path looks like a table's, by its name; see ``is_text_folder`` for others."""
    return path.suffix.lower() in TEXT + PARQUET or os.path.isfile(path / SAVED)


def read_table(field: str, path: str | Path | None) -> TableFile:
    """The table that a field names. Lines of a CSV file that do not fit the header are left out.

    Raises InvalidInput, MissingData; no text depends on what rows hold.
    """
    if not path:
        raise InvalidInput(field, "a CSV or parquet file", path)
    file = Path(path)
    if not file.exists():
        text = f"`{field}` must be an existing CSV or parquet file. Found {str(path)!r}."
        raise MissingData(text)
    if (file / SAVED).is_file() or file.suffix.lower() in PARQUET:
        return _arrow(field, file)
    if file.is_dir():
        return _text_folder(file)
    if file.suffix.lower() not in TEXT:
        rule = f"a file that ends in {', '.join(TEXT + PARQUET)}"
        raise InvalidInput(field, rule, str(path))
    return _text(field, file)


def read_lines(file: Path) -> tuple[list[str], list[list[str]]]:
    """(names in the header, cells of each line below it) of a CSV file; none of a line that is no
    CSV. Bytes that are not UTF-8 become their codes, so different bytes stay different texts.
    """
    text = file.read_bytes().decode("utf-8-sig", errors="backslashreplace")
    header, *lines = re.split("\r\n|\r|\n", text)
    separator = max(SEPARATORS, key=header.count)
    names = [name.strip() for name in _cells(header, separator)]
    return names, [_cells(line, separator) for line in lines]


def _cells(line: str, separator: str) -> list[str]:
    with contextlib.suppress(csv.Error):
        return next(csv.reader([line], delimiter=separator), [])
    return []


def _text(field: str, file: Path) -> TableFile:
    names, lines = read_lines(file)
    if len(set(names)) != len(names) or "" in names:
        rule = "a table whose first line names each column"
        raise InvalidInput(field, rule, str(file))
    places = np.array([n for n, cells in enumerate(lines) if len(cells) == len(names)], np.int64)
    cells = np.array([lines[n] for n in places], dtype=object).reshape(len(places), len(names))
    return TableFile({name: cells[:, at] for at, name in enumerate(names)}, places)


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
    return TableFile(arrays, np.arange(len(paths)), True)


def _arrow(field: str, path: Path) -> TableFile:
    """A parquet file, or a folder that `datasets` saved."""
    try:
        if path.is_dir():
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
    columns = zip(table.column_names, map(_arrow_column, table.columns), strict=True)
    return TableFile(dict(columns), np.arange(table.num_rows))


def _arrow_column(column: pyarrow.ChunkedArray) -> np.ndarray:
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
    """The task. Classes that are not declared are the texts in the label column of the test rows,
    or of the public ones where there are none.
    """
    space, (name, table) = config.declared_labels, _public_splits(config)[-1]
    if not space.names:
        if name == "data.public" and config.label not in table.columns:
            raise no_names(space)
        classes = sorted(set(texts(_label_column(config, name, table))) - {""}, key=_natural)
        if len(classes) < 2:
            rule = f"a column with at least 2 classes in the rows of {name}"
            raise InvalidInput("data.label", rule, f"{config.label}: {', '.join(classes)}")
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
    if len(inputs) == 1:
        return PublicData(inputs[0], labels[0], *no_rows(inputs[0], space))
    assert labels[1] is not None
    return PublicData(inputs[0], labels[0], inputs[1], labels[1])


def _public_splits(config: DataConfig) -> list[tuple[str, TableFile]]:
    """The PUBLIC splits by their settings: the public rows, and the test rows where there are
    any.
    """
    splits = [("data.public", split_rows(config, "public"))]
    if config.split or config.test:
        test = split_rows(config, "test")
        if config.test or len(test.places):
            splits.append(("data.test", test))
    return splits


def encoding(config: DataConfig) -> Encoding:
    """The features, by the PUBLIC table alone: every column but the label, the split, the person,
    ``record_id`` and those to ignore; of a folder its texts. Raises InvalidInput where there is
    none, MissingData.
    """
    table = split_rows(config, "public")
    left_out = {config.label, config.split, config.person, ID, *config.ignore}
    if table.of_files:
        left_out = set(table.columns) - {FILES}
    features = {name: cells for name, cells in table.columns.items() if name not in left_out}
    if not features or not len(table.places):
        rule = "a table with rows and columns of features, or a folder of texts"
        raise InvalidInput("data.public", rule, "none")
    for setting, names, known in (
        ("text", config.text, features),
        ("ignore", config.ignore, {*table.columns, config.person}),
    ):
        if absent := sorted(set(names) - set(known)):
            near = difflib.get_close_matches(absent[0], known, n=1)
            cure = f"Did you mean {near[0]!r}?" if near else ""
            rule = f"columns of features, of {listed(features)}"
            raise InvalidInput(f"data.{setting}", rule, absent[0], cure)
    prose = [FILES] if table.of_files else config.text
    return encoding_of(features, prose, config.text_features)


def split_rows(config: DataConfig, split: str) -> TableFile:
    """The rows of a PUBLIC split: its own file, or those of the one file that name it."""
    if config.split:
        return one_file(config.path, config.split, split)
    return read_table(f"data.{split}", config.public if split == "public" else config.test)


def one_file(path: str | None, column: str, split: str) -> TableFile:
    """The rows of the one file whose ``column``, which is public, says ``split``, in any case and
    with blanks around. Raises InvalidInput, also for any other word, MissingData.
    """
    table = read_table("data.path", path)
    if column not in table.columns:
        raise InvalidInput("data.split", _one_of(table), column)
    words = np.array([text.lower() for text in texts(table.columns[column])], dtype=object)
    if not set(words) <= set(SPLITS):
        rule = f"a column that says {', '.join(SPLITS[:-1])} or {SPLITS[-1]} in every row"
        raise InvalidInput("data.split", rule, f"another word in the column {column}")
    chosen = words == split
    columns = {name: cells[chosen] for name, cells in table.columns.items()}
    return TableFile(columns, table.places[chosen])


def truth_of(config: DataConfig, space: LabelSpace, name: str, table: TableFile) -> np.ndarray:
    """A table's labels: int64 [n], -1 for a cell that names no class, or float64 [n], NaN for one
    that is no number. Raises InvalidInput.
    """
    cells = _label_column(config, name, table)
    if space.kind == "value":
        return numbers(cells, 1)[:, 0]
    codes = {text: code for code, text in enumerate(space.names)}
    return np.array([codes.get(text, -1) for text in texts(cells)], dtype=np.int64)


def _label_column(config: DataConfig, name: str, table: TableFile) -> np.ndarray:
    if config.label not in table.columns:
        raise InvalidInput("data.label", f"{_one_of(table)}, columns of {name}", config.label)
    return table.columns[config.label]


def _one_of(table: TableFile) -> str:
    return f"one of {listed(table.columns)}"


def _natural(text: str) -> tuple[bool, float, str]:
    """Numbers by value, before other texts."""
    value = numbers(np.array([text], dtype=object), 1)[0, 0]
    return (True, 0.0, text) if np.isnan(value) else (False, float(value), text)
