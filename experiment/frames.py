"""Cells of data frames and lists, as the readers of files take them.

A cell is read by itself. A library chooses a column's type by all of its rows, so that here the
PUBLIC column says what it is of: numbers (float64), lists of numbers, or texts. A private cell that
is none of them is missing, and nothing that a cell holds is an error.
"""

import numbers
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from ..wall.datasets import columns
from ..wall.errors import InvalidInput, extra

Kind = Literal["number", "list", "text"]
EXACT = 2**53  # whole numbers beyond it are rounded, as pandas does where one of them is missing


def is_frame(rows: Any) -> bool:
    """Whether rows have named columns: pandas, polars, Arrow, ``datasets``."""
    return hasattr(rows, "columns") or hasattr(rows, "column_names")


def as_array(values: Any) -> Any:
    """A tensor of torch as an array, and a column of Arrow as a list; all else as it is."""
    if hasattr(values, "to_pylist") and not is_frame(values):
        return values.to_pylist()
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values


def cell_text(cell: Any) -> str | None:
    """A cell as text that UTF-8 has bytes for, whole numbers as such; None where it is missing, or
    can not be told.
    """
    try:
        if isinstance(cell, np.number | np.bool_):
            cell = cell.item()  # exact, also of float32
        if isinstance(cell, complex):
            cell = None if cell.imag else cell.real
        if cell is None or cell != cell:
            return None
        if isinstance(cell, int) and abs(cell) > EXACT:
            cell = float(cell)
        whole = isinstance(cell, float) and cell.is_integer()
        return str(int(cell) if whole else cell).encode(errors="backslashreplace").decode()
    except Exception:  # an array, pandas.NA, or an object of whatever kind
        return None


def texts(cells: Iterable[Any]) -> list[str]:
    """Cells as texts; "" for none."""
    return [cell_text(cell) or "" for cell in cells]


def kind_of(cells: Any) -> Kind:
    """What a PUBLIC column is of, by its cells: a library's type of it may follow from others."""
    if _is_numeric(cells):
        return "number"
    there = [cell for cell in cells if isinstance(cell, np.ndarray) or cell_text(cell) is not None]
    if there and all(isinstance(cell, list | tuple | np.ndarray) for cell in there):
        return "list"
    real = (isinstance(c, numbers.Number) and not isinstance(c, bool | np.bool_) for c in there)
    return "number" if all(real) else "text"


def _is_numeric(cells: Any) -> bool:
    dtype = getattr(cells, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "iuf"


def _converted(cells: Any, kind: Kind) -> np.ndarray:
    """A column's cells as float64 [n], or objects [n]: texts or lists of numbers, None."""
    if kind == "number":
        known = cells if _is_numeric(cells) else columns.numbers(_objects(texts(cells)), 1)
        return np.asarray(known, dtype=np.float64).reshape(-1) + 0.0  # of zeros one sign
    return _objects(map(cell_text if kind == "text" else _listed, cells))


def _objects(cells: Iterable[Any]) -> np.ndarray:
    known = list(cells)
    return np.fromiter(known, dtype=object, count=len(known))


def _listed(cell: Any) -> list[float] | None:
    try:
        return [float(v) for v in cell] if isinstance(cell, list | tuple | np.ndarray) else None
    except (TypeError, ValueError, OverflowError):
        return None


def read_frame(
    name: str,
    frame: Any,
    plain: Collection[str],
    kinds: Mapping[str, Kind] | None = None,
    beside: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """The columns of a frame, and those ``beside`` it, as ``TableFile`` has them.

    ``kinds``: of the PUBLIC columns, for private rows; others are of text. Without them the rows
    are PUBLIC, and say themselves; ``plain``: those of text, whatever they hold. Raises
    InvalidInput for what is no frame or has two columns of one name, MissingData.
    """
    if hasattr(frame, "iloc"):
        given = [(str(key), frame.iloc[:, at]) for at, key in enumerate(frame.columns)]
    elif is_frame(frame):
        from ..wall.datasets.tables import arrow_column

        if hasattr(frame, "with_format"):  # of `datasets`
            frame = frame.with_format("arrow")[:]
        table = frame.to_arrow() if hasattr(frame, "to_arrow") else frame
        given = list(zip(table.column_names, map(arrow_column, table.columns), strict=True))
    else:
        raise InvalidInput(name, "a data frame, as the others are", type(frame).__name__)
    given += beside.items()
    keys = [key for key, _ in given]
    if repeated := [key for key in keys if keys.count(key) > 1]:
        raise InvalidInput(name, "a frame of columns with different names", repeated[0])
    if kinds is None:
        kinds = {key: "text" if key in plain else kind_of(cells) for key, cells in given}
    return {key: _converted(cells, kinds.get(key, "text")) for key, cells in given}


def kinds_of(table: Mapping[str, np.ndarray]) -> dict[str, Kind]:
    """The kinds of the columns of a converted PUBLIC table."""

    def kind(cells: np.ndarray) -> Kind:
        return "list" if any(isinstance(cell, list) for cell in cells) else "text"

    return {k: kind(cells) if cells.dtype == object else "number" for k, cells in table.items()}


def write_table(table: Mapping[str, np.ndarray], path: Path) -> None:
    """A converted table as a parquet file. Raises MissingData."""
    with extra("tables", "data frames"):
        import pyarrow
        from pyarrow import parquet
    number, text = pyarrow.float64(), pyarrow.large_string()
    types = {"number": number, "list": pyarrow.list_(number), "text": text}
    stored = {k: pyarrow.array(table[k], types[kind]) for k, kind in kinds_of(table).items()}
    parquet.write_table(pyarrow.table(stored), path)
