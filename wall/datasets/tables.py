"""Tables in files: CSV, parquet, or a folder that Hugging Face's `datasets` saved.

A cell is read by itself: no other row decides its type, and none that is damaged hides another.
The header of a CSV file and the schema of the others (names and types of columns) are public. A
line of a CSV file is a row, so that a line break within quotes ends it.
"""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidInput, MissingData

if TYPE_CHECKING:
    import pyarrow

SEPARATORS = ",;\t"
PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt")
SAVED = "state.json"  # in a folder that `datasets` saved


@dataclass(frozen=True, eq=False, repr=False)
class TableFile:
    """Columns of equal length by name, in the file's order.

    A column is an array [n] of numbers, or of objects: texts, whole numbers, lists of them, None.
    ``places``: int64 [n], the rows' numbers in the file.
    """

    columns: Mapping[str, np.ndarray]
    places: np.ndarray

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.places)

    def take(self, rows: np.ndarray) -> TableFile:
        """Some of the rows, by a mask bool [n]."""
        return TableFile({name: c[rows] for name, c in self.columns.items()}, self.places[rows])


def is_table(path: Path) -> bool:
    """Whether a path looks like one that ``read_table`` reads, by its name."""
    return path.suffix.lower() in TEXT + PARQUET or (path / SAVED).is_file()


def read_table(field: str, path: str | Path | None) -> TableFile:
    """The table that a field names.

    Lines of a CSV file with another number of cells than the header are left out.

    Raises InvalidInput, MissingData; no text depends on what rows hold.
    """
    if not path:
        raise InvalidInput(field, "a CSV or parquet file", path)
    file = Path(path)
    if not file.exists():
        raise MissingData(
            f"`{field}` must be an existing CSV or parquet file. Found {str(path)!r}."
        )
    if (file / SAVED).is_file():
        return _saved(field, file)
    if file.suffix.lower() in PARQUET:
        return _parquet(field, file)
    if file.is_dir() or file.suffix.lower() not in TEXT:
        rule = f"a file that ends in {', '.join(TEXT + PARQUET)}"
        raise InvalidInput(field, rule, str(path))
    return _text(field, file)


def read_lines(file: Path) -> tuple[list[str], list[list[str]]]:
    """(names in the header, cells of each line below it) of a CSV file.

    The header decides the separator. A line that is no CSV has no cells. Bytes that are not UTF-8
    become their hexadecimal codes, so that different bytes stay different texts.
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
    if len(names) < 2 or len(set(names)) != len(names) or "" in names:
        rule = "a table whose first line names each column, at least 2"
        raise InvalidInput(field, rule, str(file))
    places = np.array([n for n, cells in enumerate(lines) if len(cells) == len(names)], np.int64)
    cells = np.array([lines[n] for n in places], dtype=object).reshape(len(places), len(names))
    return TableFile({name: cells[:, at] for at, name in enumerate(names)}, places)


def _parquet(field: str, file: Path) -> TableFile:
    try:
        import pyarrow.parquet as parquet
    except ModuleNotFoundError as error:
        raise MissingData(
            f"`{field}` is a parquet file: pip install 'labelwall[tables]'."
        ) from error
    try:
        table = parquet.read_table(file)
    except (OSError, ValueError) as error:  # a damaged file
        raise InvalidInput(field, "a readable parquet file", str(file)) from error
    return _arrow(table)


def _saved(field: str, folder: Path) -> TableFile:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingData(
            f"`{field}` is a folder of Hugging Face's datasets: pip install datasets."
        ) from error
    try:
        table = datasets.load_from_disk(str(folder)).with_format("arrow")[:]
    except (OSError, ValueError) as error:
        raise InvalidInput(field, "a readable folder of datasets", str(folder)) from error
    return _arrow(table)


def _arrow(table: pyarrow.Table) -> TableFile:
    pairs = zip(table.column_names, table.columns, strict=True)
    columns = {name: _arrow_column(column) for name, column in pairs}
    return TableFile(columns, np.arange(table.num_rows))


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
    numbers = (types.is_integer, types.is_floating)
    listed = any(is_list(kind) for is_list in (types.is_list, types.is_large_list))
    listed = listed or types.is_fixed_size_list(kind)
    if types.is_integer(kind) or (listed and any(of(kind.value_type) for of in numbers)):
        cells = column.to_pylist()
    elif types.is_string(kind) or types.is_large_string(kind):
        # Bytes that are not UTF-8 would end the reading of the whole column
        parts = column.cast(pyarrow.large_binary()).to_pylist()
        cells = [p if p is None else p.decode(errors="backslashreplace") for p in parts]
    else:
        cells = [_scalar_text(cell) for cell in column]
    return np.fromiter(cells, dtype=object, count=len(cells))


def _scalar_text(cell: pyarrow.Scalar) -> str | None:
    """A date, a truth value and other cells as text; None for one that Python can not hold."""
    try:
        value = cell.as_py()
    except (ValueError, OverflowError):
        return None
    return None if value is None else str(value)


def texts(column: np.ndarray) -> np.ndarray:
    """Cells as texts without spaces around them; whole numbers as such ("3", not "3.0")."""
    if column.dtype.kind == "f":
        cells = [f"{v:.0f}" if float(v).is_integer() else "" if v != v else str(v) for v in column]
    else:
        cells = ["" if cell is None else str(cell).strip() for cell in column]
    return np.array(cells, dtype=object)


def numbers(column: np.ndarray, width: int | None) -> np.ndarray:
    """Cells as float64 [n, width]; a row that is not ``width`` numbers is NaN.

    ``width``: None for PUBLIC columns alone: that of the first list, 1 where there is none.
    """
    if column.dtype.kind in "iuf" and width in (None, 1):
        return column.astype(np.float64).reshape(-1, 1)
    if width is None:
        width = next((len(cell) for cell in column if isinstance(cell, list)), 1)
    rows = np.full((len(column), width), np.nan)
    for row, cell in enumerate(column):
        values = cell if isinstance(cell, list) else [cell]
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if len(values) == width:
                rows[row] = [float(value) for value in values]
    return rows
