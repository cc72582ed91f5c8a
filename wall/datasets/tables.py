"""Tables of numbers in files: CSV, parquet, or a folder that Hugging Face's `datasets` saved.

A line of a CSV file is read by itself, so that a damaged one hides no other.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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

    A column is an array [n] of numbers, or of objects: texts, or lists of numbers.
    """

    columns: Mapping[str, np.ndarray]
    rows: int

    def where(self, column: str, text: str) -> TableFile:
        """The rows whose ``column`` says ``text``."""
        kept = texts(self.columns[column]) == text
        return TableFile({name: c[kept] for name, c in self.columns.items()}, int(kept.sum()))


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


def _text(field: str, file: Path) -> TableFile:
    lines = file.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    header = lines[0] if lines else ""
    separator = max(SEPARATORS, key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=separator), [])]
    if len(names) < 2 or len(set(names)) != len(names) or "" in names:
        rule = "a table whose first line names each column, at least 2"
        raise InvalidInput(field, rule, str(file))
    rows = []
    for line in lines[1:]:
        with contextlib.suppress(csv.Error):
            cells = next(csv.reader([line], delimiter=separator), [])
            if len(cells) == len(names):
                rows.append(cells)
    table = np.array(rows, dtype=object).reshape(len(rows), len(names))
    return TableFile({name: table[:, at] for at, name in enumerate(names)}, len(rows))


def _parquet(field: str, file: Path) -> TableFile:
    try:
        import pyarrow.parquet as parquet
    except ModuleNotFoundError as error:
        raise MissingData(
            f"`{field}` is a parquet file: pip install 'labelwall[tables]'."
        ) from error
    try:
        return _arrow(parquet.read_table(file))
    except (OSError, ValueError) as error:  # a damaged file
        raise InvalidInput(field, "a readable parquet file", str(file)) from error


def _saved(field: str, folder: Path) -> TableFile:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingData(
            f"`{field}` is a folder of Hugging Face's datasets: pip install datasets."
        ) from error
    return _arrow(datasets.load_from_disk(str(folder)).with_format("arrow")[:])


def _arrow(table: pyarrow.Table) -> TableFile:
    """Columns of numbers, texts, or lists of numbers; a missing value is NaN or an empty text."""
    import pyarrow

    found = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        nested = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
        if nested or pyarrow.types.is_fixed_size_list(kind):
            cells = column.to_pylist()
            found[name] = np.fromiter(cells, dtype=object, count=len(cells))
        elif pyarrow.types.is_integer(kind) and not column.null_count:
            found[name] = column.to_numpy()
        elif pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind):
            found[name] = column.cast(pyarrow.float64(), safe=False).to_numpy()
        else:
            cells = ["" if cell is None else str(cell) for cell in column.to_pylist()]
            found[name] = np.array(cells, dtype=object)
    return TableFile(found, table.num_rows)


def texts(column: np.ndarray) -> np.ndarray:
    """Cells as texts without spaces around them; whole numbers as such ("3", not "3.0")."""
    if column.dtype.kind == "f":
        whole = [f"{v:.0f}" if float(v).is_integer() else "" if v != v else str(v) for v in column]
        return np.array(whole, dtype=str)
    return np.array([str(cell).strip() for cell in column], dtype=str)


def numbers(column: np.ndarray, width: int | None = None) -> np.ndarray:
    """Cells as float64 [n, width]; a row that is not ``width`` numbers is NaN.

    ``width``: that of the first list where None, 1 where there is none.
    """
    if column.dtype.kind in "iuf":
        return column.astype(np.float64).reshape(-1, 1)
    if width is None:
        width = next((len(cell) for cell in column if isinstance(cell, list)), 1)
    found = np.full((len(column), width), np.nan)
    for row, cell in enumerate(column):
        values = cell if isinstance(cell, list) else [cell]
        with contextlib.suppress(TypeError, ValueError):
            found[row] = [float(value) for value in values]
    return found
