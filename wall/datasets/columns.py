"""How the cells of a table become numbers: decided by PUBLIC rows alone, applied row by row.

A column is of numbers (or lists of them), of dates, of free text, or of categories. A cell that is
none of what its column holds is missing, and a missing cell is a value: no row is lost for it. A
category that few public rows have, or none, is "another one".
"""

import contextlib
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from ..errors import InvalidInput
from .texts import HASHED, NGrams, cleaned, is_prose, n_grams, public_vectors, vectors

CONSTANT = 1e-9  # a relative deviation that is rounding alone
MOSTLY = 0.9  # share of the cells that are there that tells what a column is of
MISSING = {
    "",
    "?",
    "na",
    "n/a",
    "nan",
    "nat",
    "none",
    "null",
}  # none is there
MOST_VALUES, LEAST_ROWS = 64, 5  # categories of a column; public rows of each
GAP_DEVIATION = 0.5  # of the entry that says that a cell is missing
DAY = 86400.0  # seconds
LARGEST = 1e25  # a number beyond it is missing, so that scaled ones are float32


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
        width = next((len(cell) for cell in column if isinstance(cell, list) and cell), 1)
    rows = np.full((len(column), width), np.nan)
    for row, cell in enumerate(column):
        values = cell if isinstance(cell, list) else [cell]
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if len(values) == width:
                rows[row] = [float(value) for value in values]
    return rows


def dates(column: np.ndarray) -> np.ndarray:
    """ISO 8601 dates and times as days since 1970 (UTC), float64 [n, 1]; NaN for other cells."""
    days = np.full((len(column), 1), np.nan)
    for row, cell in enumerate(texts(column)):
        with contextlib.suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(cell)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            days[row] = moment.timestamp() / DAY
    return days


@dataclass(frozen=True)
class Column:
    """One column.

    ``mean``, ``deviation``: of each of its entries. ``values``: of categories, the most frequent
    first; all others are one more entry. ``gaps``: a missing number or date has an entry of its
    own, the last; it counts as the mean in the others. ``encoder``: of texts.
    """

    name: str
    kind: Literal["number", "date", "category", "text"]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    values: tuple[str, ...] = ()
    gaps: bool = False
    encoder: NGrams | str = ""

    def __post_init__(self) -> None:
        own = self.encoder.width if isinstance(self.encoder, NGrams) else self.width
        if (self.kind == "text") != bool(self.encoder) or own != self.width:
            raise InvalidInput("table", "columns of texts with what encodes them", self.name)
        sizes = {len(self.mean), len(self.deviation)}
        known = sizes == {len(self.values) + 1} if self.kind == "category" else len(sizes) == 1
        numbers = all(map(math.isfinite, self.mean + self.deviation))
        if not (
            known and numbers and min(self.deviation, default=0) > 0 and len(self.mean) > self.gaps
        ):
            raise InvalidInput("table", "columns with a mean and a deviation each", self.name)

    @property
    def width(self) -> int:
        """How many numbers a cell becomes."""
        return len(self.mean)

    def entries(self, cells: np.ndarray, public: bool = False) -> np.ndarray:
        """float64 [n, width] of cells [n], finite, before they are scaled.

        ``public``: of texts that may stay in memory.
        """
        if self.kind == "text":
            encoded = (public_vectors if public else vectors)(self.encoder, tuple(cleaned(cells)))
            if encoded.shape[1] != self.width:
                rule = f"a sentence model of {self.width} dimensions"
                raise InvalidInput("table", rule, self.encoder)
            return encoded
        if self.kind == "category":
            return _one_hot(cells, self.values)
        count = self.width - self.gaps
        rows = dates(cells) if self.kind == "date" else numbers(cells, count)
        missing = ~_readable(rows)
        rows[missing] = self.mean[:count]
        return np.column_stack([rows, missing]) if self.gaps else rows


def _readable(rows: np.ndarray) -> np.ndarray:
    """Whether each row [n, w] holds numbers alone: bool [n]."""
    return np.asarray((np.abs(rows) <= LARGEST).all(axis=1))


def _one_hot(cells: np.ndarray, values: tuple[str, ...]) -> np.ndarray:
    places = {value: place for place, value in enumerate(values)}
    rows = np.zeros((len(cells), len(values) + 1))
    chosen = [places.get(text, len(values)) for text in texts(cells)]
    rows[np.arange(len(cells)), chosen] = 1
    return rows


@dataclass(frozen=True)
class Encoding:
    """A table's features: its columns, in order."""

    columns: tuple[Column, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def of_text(self) -> bool:
        """Whether a row is one text."""
        return [column.kind for column in self.columns] == ["text"]

    @property
    def text_features(self) -> str:
        """What texts become, in words; empty where no column is of texts."""
        named = []
        for column in self.columns:
            if column.kind == "text":
                by = column.encoder
                words = by.words if isinstance(by, NGrams) else f"{column.width} numbers of {by}"
                named.append(f"{column.name}: {words}")
        return "; ".join(named)

    @property
    def mean(self) -> tuple[float, ...]:
        """Of each entry."""
        return tuple(value for column in self.columns for value in column.mean)

    @property
    def deviation(self) -> tuple[float, ...]:
        """Of each entry."""
        return tuple(value for column in self.columns for value in column.deviation)

    def entries(
        self, name: str, table: Mapping[str, np.ndarray], public: bool = False
    ) -> np.ndarray:
        """float64 [n, d] of a table's columns by name, finite, before they are scaled.

        ``name``: of the table, for an error; ``public``: as for a column. Raises InvalidInput where
        a column is missing, MissingData where a sentence model is.
        """
        missing = [feature for feature in self.features if feature not in table]
        if missing:
            raise InvalidInput(name, f"a table with the column {missing[0]}", "none")
        rows = [column.entries(table[column.name], public) for column in self.columns]
        return np.column_stack(rows)

    def inputs(
        self, name: str, table: Mapping[str, np.ndarray], public: bool = False
    ) -> np.ndarray:
        """float32 [n, d], of mean 0 and deviation 1 among the PUBLIC rows; as ``entries``."""
        rows = (self.entries(name, table, public) - self.mean) / self.deviation
        return rows.astype(np.float32)


def encoding_of(
    table: Mapping[str, np.ndarray], prose: Collection[str] = (), encoder: str = HASHED
) -> Encoding:
    """The encoding of PUBLIC columns by name, cells [n] each.

    ``prose``: columns of free text beside those that show to be; ``encoder``: as
    ``DataConfig.text_features``. Raises InvalidInput, MissingData.
    """
    columns = (
        _text_column(name, cells, encoder) if name in prose else _column(name, cells, encoder)
        for name, cells in table.items()
    )
    return Encoding(tuple(columns))


def _text_column(name: str, cells: np.ndarray, encoder: str) -> Column:
    texts = tuple(cleaned(cells))
    if not any(texts):
        raise InvalidInput("data.text", "columns with texts in the public rows", f"{name}: none")
    by = n_grams(texts) if encoder == HASHED else encoder
    rows = public_vectors(by, texts)
    deviation = max(float(rows.std(axis=0).mean()), CONSTANT)
    mean = tuple(rows.mean(axis=0).tolist())
    return Column(name, "text", mean, (deviation,) * len(mean), encoder=by)


def _column(name: str, cells: np.ndarray, encoder: str) -> Column:
    there = max(1, sum(text.lower() not in MISSING for text in texts(cells)))
    rows = numbers(cells, None)
    if (filled := _readable(rows)).sum() >= MOSTLY * there:
        return _measured(name, "number", rows, filled)
    days = dates(cells)
    if (filled := _readable(days)).sum() >= MOSTLY * there:
        return _measured(name, "date", days, filled)
    if is_prose([text for text in cleaned(cells) if text]):
        return _text_column(name, cells, encoder)
    counts = Counter(texts(cells)).most_common(MOST_VALUES)
    frequent = tuple(value for value, count in counts if count >= LEAST_ROWS)
    entries = _one_hot(cells, frequent)
    # So that all entries together have the variance of one column of numbers.
    deviation = max(float(np.sqrt(entries.var(axis=0).sum())), CONSTANT) if len(cells) else 1.0
    mean = entries.mean(axis=0)
    return Column(name, "category", tuple(mean), (deviation,) * len(mean), frequent)


def _measured(
    name: str, kind: Literal["number", "date"], rows: np.ndarray, filled: np.ndarray
) -> Column:
    present = rows[filled] if filled.any() else np.zeros((1, rows.shape[1]))
    mean, deviation = present.mean(axis=0), present.std(axis=0)
    deviation = np.where(deviation > CONSTANT * (1 + np.abs(mean)), deviation, 1.0)
    gaps = not filled.all()
    means, deviations = mean.tolist(), deviation.tolist()
    if gaps:
        means.append(float(1 - filled.mean()))
        deviations.append(GAP_DEVIATION)
    return Column(name, kind, tuple(means), tuple(deviations), (), gaps)
