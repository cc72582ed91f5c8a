"""How the cells of a table become numbers: decided by PUBLIC rows alone, applied row by row.

A column is of numbers (or lists of them), of dates, of free text, or of categories. A cell that is
none of what its column holds is missing, and a missing cell is a value: no row is lost for it. A
category that few public rows have, or none, is "another one".
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, TypeVar

import numpy as np

from ..errors import LISTED, InvalidInput
from ..labels import MISSING, code_of
from .texts import HASHED, NGrams, cleaned, is_prose, n_grams, public_vectors, vectors

T = TypeVar("T")
CONSTANT = 1e-9  # a relative deviation that is rounding alone
MOSTLY = 0.9  # share of the cells that are there that tells what a column is of
Form = tuple[str, str]  # of numbers: one of MARKS, and the unit before or behind
PLAIN: Form = (".", "")
# Marks of numbers: the decimal one, and what stands between thousands
MARKS = (".", ".,", ",", ",.", ", ", ". ", ".'")
# A number's unit: a sign, or three capitals (EUR) and a blank, before it; any unit behind.
AFFIX = re.compile(
    r"[+-]?([^\w\s.,'+-]|[A-Z]{3}(?= )|) ?[+-]?\d[\d.,' ]*([^\d]{0,8}(?:(?<=m)[23])?)"
)
_DAYS = (
    *("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%d/%m/%y"),
    *("%m/%d/%y", "%d.%m.%y", "%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
_TIMES = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
# Forms of dates; the first is ISO 8601. Of two that fit all cells alike the first is taken.
DATES = ("", *_DAYS, *_TIMES, *(f"{day} {time}" for day in _DAYS for time in _TIMES))
FEW_CELLS = 20  # whose words are not compared with the public ones
SAMPLE = 20  # public cells, of which a form must fit one to be tried on all
LONGEST_NUMBER = 64  # characters of a number with marks or a unit
ID_NAME = re.compile(r"(?i:(?:^|.*[\W_])(?:id|uuid|guid|key|index))|.*[a-z](?:Id|ID)")
BY_CHANCE = 14  # n numbers of a span below n^2 / 14 all differ by chance once in 1,000 times
MOST_VALUES, LEAST_ROWS = 64, 5  # categories of a column; public rows of each
GAP_DEVIATION = 0.5  # of the entry that says that a cell is missing
DAY = 86400.0  # seconds
CYCLES = {"day": 1.0, "week": 7.0, "year": 365.2425}  # of dates; lengths in days
IN_WORDS = {"day": "time of day", "week": "day of the week", "year": "season"}
MONDAY = 4  # days after 1970-01-01
_NOON = datetime(2024, 12, 31, 12, 30)  # shows a form of dates
LARGEST = 1e25  # a number beyond it is missing, so that scaled ones are float32


def texts(column: np.ndarray) -> np.ndarray:
    """Cells as texts without spaces around them; whole numbers as such ("3", not "3.0")."""
    if column.dtype.kind == "f":
        cells = [f"{v:.0f}" if float(v).is_integer() else "" if v != v else str(v) for v in column]
    else:
        cells = ["" if cell is None else str(cell).strip() for cell in column]
    return np.array(cells, dtype=object)


@lru_cache
def _marked(marks: str) -> re.Pattern[str]:
    point, between = re.escape(marks[0]), re.escape(marks[1:])
    whole = rf"\d+|[1-9]\d{{0,2}}(?:{between}\d{{3}})+" if between else r"\d+"
    return re.compile(rf"[+-]?(?:{whole})?(?:{point}\d*)?(?:[eE][+-]?\d+)?")


def _number(cell: Any, form: Form) -> float:
    """Raises TypeError, ValueError, OverflowError."""
    if form == PLAIN or not isinstance(cell, str):
        return float(cell)
    marks, unit = form
    if len(cell) > LONGEST_NUMBER:
        raise ValueError("no number")
    text = _plain(cell).replace(unit, "", 1).strip() if unit else _plain(cell)
    if not _marked(marks).fullmatch(text):
        raise ValueError("no number")
    return float(text.replace(marks[1:], "").replace(marks[0], "."))


def _plain(cell: str) -> str:
    """A cell with one kind of blank, apostrophe and minus sign, none of them around it."""
    return re.sub(r"\s", " ", cell).translate({0x2019: "'", 0x2212: "-"}).strip()


def numbers(column: np.ndarray, width: int | None, form: Form = PLAIN) -> np.ndarray:
    """Cells as float64 [n, width]; a row that is not ``width`` numbers is NaN.

    ``width``: None for PUBLIC columns alone: that of the first list, 1 if there is none.
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
                rows[row] = [_number(value, form) for value in values]
    return rows


def number_form(column: np.ndarray) -> Form:
    """The form by which most of a PUBLIC column's cells are numbers."""
    if column.dtype.kind in "iuf" or _readable(numbers(column, None)).sum() == _there(column).sum():
        return PLAIN
    sample = column[_there(column)][:SAMPLE]
    affixes = [AFFIX.fullmatch(_plain(cell)) for cell in sample if isinstance(cell, str)]
    units = Counter((found[1] or found[2]).strip() for found in affixes if found)
    named = [unit for unit, _ in units.most_common(2) if unit][:1]
    forms = [(marks, unit) for unit in ("", *named) for marks in MARKS]
    return _fitting(column, forms, lambda cells, form: numbers(cells, 1, form))


def _fitting(
    column: np.ndarray, forms: Sequence[T], read: Callable[[np.ndarray, T], np.ndarray]
) -> T:
    """The first of the forms by which most of a PUBLIC column's cells can be read."""
    cells = column[_there(column)]
    tried = [form for form in forms if _readable(read(cells[:SAMPLE], form)).any()]
    return max(tried or forms[:1], key=lambda form: _readable(read(cells, form)).sum())


def _there(column: np.ndarray) -> np.ndarray:
    """Which PUBLIC cells are not missing: bool [n]."""
    return np.array([text.lower() not in MISSING for text in texts(column)], dtype=bool)


def dates(column: np.ndarray, form: str = "") -> np.ndarray:
    """Days since 1970 (UTC) of dates of a ``form`` in DATES, float64 [n, 1]; NaN of other cells."""
    days = np.full((len(column), 1), np.nan)
    for row, cell in enumerate(texts(column)):
        with contextlib.suppress(ValueError, OverflowError):
            moment = datetime.strptime(cell, form) if form else datetime.fromisoformat(cell)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            days[row] = moment.timestamp() / DAY
    return days


def with_cycles(days: np.ndarray, cycles: Sequence[str]) -> np.ndarray:
    """Days since 1970, float64 [n, 1], beside their places in the cycles: float64 [n, w].

    A cycle has a sine and a cosine, so that its end is near its beginning; a week also has 1 for
    Saturday and Sunday. NaN stays NaN.
    """
    columns = [days]
    for cycle in cycles:
        turned = (2 * math.pi * (days - MONDAY) / CYCLES[cycle]).ravel().tolist()
        # One by one: numpy's sine takes several at once, and what one row gets may depend on those.
        columns += [np.array([wave(angle) for angle in turned]) for wave in (math.sin, math.cos)]
        if cycle == "week":
            weekend = (np.floor(days) - MONDAY) % 7 >= 5
            columns.append(np.where(np.isnan(days), np.nan, weekend))
    return np.column_stack(columns)


def cycles_of(days: np.ndarray, form: str) -> tuple[str, ...]:
    """The cycles of which dates of PUBLIC rows, float64 [n, 1], span two.

    Dates that all have one time of day have no cycle of a day; times without a date have it alone.
    """
    present = days[_readable(days)]
    if form in _TIMES:
        return ("day",)
    spanned = [cycle for cycle, length in CYCLES.items() if np.ptp(present) >= 2 * length]
    return tuple(cycle for cycle in spanned if cycle != "day" or np.ptp(present % 1) > 0)


@dataclass(frozen=True)
class Column:
    """One column.

    ``mean``, ``deviation``: of each of its entries. ``values``: of categories, the most frequent
    first; all others are one more entry. ``gaps``: a missing number or date has an entry of its
    own, the last; it counts as the mean in the others. ``encoder``: of texts. ``marks``: of
    numbers, one of MARKS. ``form``: of numbers the unit, of dates one of DATES. ``cycles``: of
    dates, those of CYCLES that have entries beside the days since 1970. ``reach``: of numbers and
    dates, the least and the largest of each entry that count; what lies beyond counts as these.
    """

    name: str
    kind: Literal["number", "date", "category", "text"]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    values: tuple[str, ...] = ()
    gaps: bool = False
    encoder: NGrams | str = ""
    marks: str = "."
    form: str = ""
    cycles: tuple[str, ...] = ()
    reach: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        own = self.encoder.width if isinstance(self.encoder, NGrams) else self.width
        if (self.kind == "text") != bool(self.encoder) or own != self.width:
            raise InvalidInput("table", "columns of texts with what encodes them", self.name)
        sizes = {len(self.mean), len(self.deviation)}
        known = sizes == {len(self.values) + 1} if self.kind == "category" else len(sizes) == 1
        known &= self.marks in MARKS and (self.kind != "date" or self.form in DATES)
        known &= all(map(math.isfinite, self.mean + self.deviation))
        if self.cycles:
            known = known and self.kind == "date" and CYCLES.keys() >= set(self.cycles)
            day = np.zeros((1, 1))
            known = known and with_cycles(day, self.cycles).shape[1] == self.entries_of_cells
        if self.reach:
            known &= len(self.reach) == self.entries_of_cells
            known &= all(-math.inf < low <= high < math.inf for low, high in self.reach)
        if not known or min(self.deviation, default=0) <= 0 or self.entries_of_cells < 1:
            raise InvalidInput("table", "columns with a mean and a deviation each", self.name)

    @property
    def how(self) -> str:
        """How a cell is read, for a reader."""
        if self.kind == "date":
            like = f"date like {_NOON.strftime(self.form)}" if self.form else "date (ISO 8601)"
            like += " (years 1969 to 2068)" if "%y" in self.form else ""
            told = [IN_WORDS[cycle] for cycle in self.cycles]
            return f"{like} with {' and '.join(told)}" if told else like
        words = [str(self.kind)]
        words += ["decimal comma"] if self.marks[0] == "," else []
        words += [f"thousands by {self.marks[1:]!r}"] if self.marks[1:] else []
        return ", ".join([*words, f"unit {self.form}"] if self.form else words)

    @property
    def encoded(self) -> str:
        """What a text becomes, in words."""
        if isinstance(self.encoder, NGrams):
            return self.encoder.words
        return f"{self.width} numbers of {self.encoder}"

    def idle(self, cells: np.ndarray) -> str:
        """Why these PUBLIC cells of the column tell nothing; "" if they may."""
        there = _there(cells)
        known = texts(cells[there])
        differ = len(set(known)) == len(known) > BY_CHANCE
        if not there.any() or (there.all() and len(set(known)) == 1):
            return "one value in all rows"
        if self.kind == "category" and not self.values:
            return f"texts of which none is in {LEAST_ROWS} rows"
        if self.kind == "number" and differ and self.entries_of_cells == 1:
            rows = numbers(cells[there], 1, (self.marks, self.form))
            rows = rows[_readable(rows)]
            named = ID_NAME.fullmatch(self.name) or len(rows) ** 2 > BY_CHANCE * (np.ptp(rows) + 1)
            if named and (rows == np.rint(rows)).all():
                return "whole numbers that all differ, as ids do"
        return ""

    @property
    def width(self) -> int:
        """How many numbers a cell becomes."""
        return len(self.mean)

    @property
    def entries_of_cells(self) -> int:
        """How many numbers a cell that is there has, without the one that says if it is."""
        return self.width - 1 if self.gaps else self.width

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
        rows = self._read(cells)
        missing = ~_readable(rows)
        rows[missing] = self.mean[: self.entries_of_cells]
        if self.reach:
            rows = np.clip(rows, *np.transpose(self.reach))
        return np.column_stack([rows, missing]) if self.gaps else rows

    def _read(self, cells: np.ndarray) -> np.ndarray:
        """float64 [n, w] of cells of numbers or dates; NaN of one that is missing."""
        if self.kind == "date":
            return with_cycles(dates(cells, self.form), self.cycles)
        return numbers(cells, self.entries_of_cells, (self.marks, self.form))

    def unlike(self, cells: np.ndarray) -> str:
        """How cells differ from those that fixed the column, "" if alike. It shows one of them."""
        there = _there(cells)
        if self.kind == "text" or not there.any():
            return ""
        of_all = f"of {there.sum()} cells"
        if self.kind == "category":
            if there.sum() < FEW_CELLS:  # of which a rare word is a large share
                return ""
            place = code_of(self.values)
            others = np.array([place(text) < 0 for text in texts(cells[there])])
            if 1 - others.mean() >= MOSTLY * (1 - self.mean[-1]):
                return ""
            first = texts(cells[there])[others][0]
            return f"{others.sum()} {of_all} have values that public rows seldom have, as {first!r}"
        rows = self._read(cells[there])
        readable = _readable(rows)
        if readable.mean() < MOSTLY:
            first = cells[there][~readable][0]
            return f"{(~readable).sum()} {of_all} are no {self.how}, as {first!r}: they are missing"
        if not self.reach:
            return ""
        low, high = np.transpose(self.reach)
        beyond = readable & ((rows < low) | (rows > high)).any(axis=1)
        if beyond.mean() > 1 - MOSTLY:
            return f"{beyond.sum()} {of_all} lie far beyond the public rows' range"
        return ""


def _readable(rows: np.ndarray) -> np.ndarray:
    """Whether each row [n, w] holds numbers alone: bool [n]."""
    return np.asarray((np.abs(rows) <= LARGEST).all(axis=1))


def _one_hot(cells: np.ndarray, values: tuple[str, ...]) -> np.ndarray:
    place = code_of(values)
    rows = np.zeros((len(cells), len(values) + 1))
    chosen = [place(text) % (len(values) + 1) for text in texts(cells)]  # -1 is the last
    rows[np.arange(len(cells)), chosen] = 1
    return rows


@dataclass(frozen=True)
class Encoding:
    """A table's features: its columns, in order."""

    columns: tuple[Column, ...]

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def of_text(self) -> bool:
        """Whether a row is one text."""
        return [column.kind for column in self.columns] == ["text"]

    @property
    def text_features(self) -> str:
        """What texts become, in words; empty if no column is of texts."""
        texts = (column for column in self.columns if column.kind == "text")
        return "; ".join(f"{column.name}: {column.encoded}" for column in texts)

    @property
    def mean(self) -> tuple[float, ...]:
        return tuple(value for column in self.columns for value in column.mean)

    @property
    def deviation(self) -> tuple[float, ...]:
        return tuple(value for column in self.columns for value in column.deviation)

    def unlike(self, table: Mapping[str, np.ndarray]) -> list[str]:
        """Lines about those of a table's columns, by name, that differ from the encoded ones."""
        known = [column for column in self.columns if column.name in table]
        found = [(column.name, column.unlike(table[column.name])) for column in known]
        lines = [f"{name}: {why}" for name, why in found if why]
        more = len(lines) - LISTED
        return lines[:LISTED] + ([f"and {more} more columns like these"] if more > 0 else [])

    def within_reach(self, rows: np.ndarray) -> np.ndarray:
        """Entries [n, d] that are not scaled, each at most as far out as its column's ``reach``."""
        unbounded = (-math.inf, math.inf)
        reach = [
            (*column.reach, *[unbounded] * (column.width - len(column.reach)))
            for column in self.columns
        ]
        return np.clip(rows, *np.transpose([pair for own in reach for pair in own]))

    def require(self, name: str, columns: Collection[str]) -> None:
        """Raise InvalidInput unless the table ``name`` has all ``columns`` that are encoded."""
        missing = [feature for feature in self.features if feature not in columns]
        if missing:
            raise InvalidInput(name, f"a table with the column {missing[0]}", "none")

    def entries(
        self, name: str, table: Mapping[str, np.ndarray], public: bool = False
    ) -> np.ndarray:
        """float64 [n, d] of a table's columns by name, finite, before they are scaled.

        ``name``: of the table, for an error; ``public``: as for a column. Raises InvalidInput if a
        column is missing, MissingData if a sentence model is.
        """
        self.require(name, table)
        rows = [column.entries(table[column.name], public) for column in self.columns]
        return np.column_stack(rows)

    def inputs(
        self, name: str, table: Mapping[str, np.ndarray], public: bool = False
    ) -> np.ndarray:
        """float32 [n, d], of mean 0 and deviation 1 among the PUBLIC rows; as ``entries``."""
        rows = (self.entries(name, table, public) - self.mean) / self.deviation
        return rows.astype(np.float32)


def encoding_of(
    table: Mapping[str, np.ndarray],
    prose: Collection[str] = (),
    encoder: str = HASHED,
    categories: Collection[str] = (),
) -> Encoding:
    """The encoding of PUBLIC columns by name, cells [n] each.

    ``prose``, ``categories``: columns of free text and of categories beside those that show to be;
    ``encoder``: as ``DataConfig.text_features``. Raises InvalidInput, MissingData.
    """

    def column(name: str, cells: np.ndarray) -> Column:
        if name in categories:
            return _category(name, cells)
        return (_text_column if name in prose else _column)(name, cells, encoder)

    return Encoding(tuple(column(name, cells) for name, cells in table.items()))


def _text_column(name: str, cells: np.ndarray, encoder: str) -> Column:
    texts = tuple(cleaned(cells))
    if not any(texts):
        raise InvalidInput("data.text", "columns with texts in the public rows", f"{name}: none")
    by = n_grams(texts) if encoder == HASHED else encoder
    rows = public_vectors(by, texts)
    deviation = max(float(rows.std(axis=0).mean()), CONSTANT)
    mean = tuple(rows.mean(axis=0).tolist())
    deviations = (deviation,) * len(mean)
    return Column(name=name, kind="text", mean=mean, deviation=deviations, encoder=by)


def _column(name: str, cells: np.ndarray, encoder: str) -> Column:
    there = max(1, int(_there(cells).sum()))
    marks, unit = number_form(cells)
    rows = numbers(cells, None, (marks, unit))
    if _readable(rows).sum() >= MOSTLY * there:
        return _measured(name, "number", rows, marks=marks, form=unit)
    dated = any(re.search(r"\d\D", text) for text in texts(cells[_there(cells)][:SAMPLE]))
    form = _fitting(cells, DATES if dated else DATES[:1], dates)
    days = dates(cells, form)
    if _readable(days).sum() >= MOSTLY * there:
        cycles = cycles_of(days, form)
        return _measured(name, "date", with_cycles(days, cycles), form=form, cycles=cycles)
    if is_prose([text for text in cleaned(cells) if text]):
        return _text_column(name, cells, encoder)
    return _category(name, cells)


def _category(name: str, cells: np.ndarray) -> Column:
    counts = Counter(texts(cells)).most_common(MOST_VALUES)
    frequent = tuple(value for value, count in counts if count >= LEAST_ROWS)
    entries = _one_hot(cells, frequent)
    # So that all entries together have the variance of one column of numbers.
    deviation = max(float(np.sqrt(entries.var(axis=0).sum())), CONSTANT) if len(cells) else 1.0
    mean = tuple(entries.mean(axis=0))
    deviations = (deviation,) * len(mean)
    return Column(name=name, kind="category", mean=mean, deviation=deviations, values=frequent)


def _measured(
    name: str,
    kind: Literal["number", "date"],
    rows: np.ndarray,
    *,
    marks: str = ".",
    form: str,
    cycles: tuple[str, ...] = (),
) -> Column:
    """The column of these numbers, float64 [n, w]; a row that is not readable is missing."""
    filled = _readable(rows)
    present = rows[filled] if filled.any() else np.zeros((1, rows.shape[1]))
    mean, deviation = present.mean(axis=0), present.std(axis=0)
    if cycles:
        # So that a date's cycles together have the variance of one column of numbers.
        deviation[1:] = np.sqrt(np.square(deviation[1:]).sum())
    deviation = np.where(deviation > CONSTANT * (1 + np.abs(mean)), deviation, 1.0)
    gaps = not filled.all()
    low, high = present.min(axis=0), present.max(axis=0)
    if cycles:
        low[1:], high[1:] = -1, 1  # public rows without a weekend say nothing against one
    reach = zip((2 * low - high).tolist(), (2 * high - low).tolist(), strict=True)
    return Column(
        name=name,
        kind=kind,
        mean=(*mean.tolist(), *([float(1 - filled.mean())] if gaps else [])),
        deviation=(*deviation.tolist(), *([GAP_DEVIATION] if gaps else [])),
        gaps=gaps,
        marks=marks,
        form=form,
        cycles=cycles,
        reach=tuple(reach),
    )
