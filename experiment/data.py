"""Rows that a program has in memory, and how they become files that a run reads."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..wall.datasets.config import SPLITS
from ..wall.datasets.texts import HASHED, cleaned
from ..wall.errors import InvalidInput, MissingData, listed
from .config.own import CURES
from .config.settings import merged

ROWS = "rows"  # the folder of a custodian's directory with rows that were given in memory
PARTS = {
    "private": ("private_x", "private_y"),
    "public": ("public_x", "public_y"),
    "test": ("test_x", "test_y"),
}


PERSON = "person"  # the column of texts' persons


@dataclass(frozen=True, repr=False)
class Data:
    """Private rows with labels, public rows, and a labelled public test split, which may be left
    out: labelled public rows are held out then, where there are at least 125.

    Each is given in the same way:

    - a path: a folder of images, a CSV or parquet table; or, as ``private`` alone, one file with
      all rows (as `--data` of the command line);
    - arrays, not lists: (rows, labels), images uint8 [n, h, w, c] or vectors [n, d] with labels
      [n], which are numbers from 0 on, or texts that ``classes``, the test split or the public
      rows name; public rows may be given without labels, or some of them without (None, -1);
    - lists or arrays of texts: (texts, labels), in the same way;
    - data frames of pandas or polars, or tables of ``datasets``: one with a column of labels, or
      (rows, labels).

    ``private`` is None where others have these rows (``fit``'s ``teachers``).

    ``label``: the name of a table's column with the label. ``classes``: the public list of the
    labels, in order; those of the test split where it is empty. ``person``: of each private row in
    arrays or a list the id of its person; persons are protected then, unless ``privacy`` says
    otherwise. ``text_features``: what makes numbers of texts, "sentence/" and the name or folder of
    a sentence model, or n-grams by default.
    """

    private: Any
    public: Any = None
    test: Any = None
    label: str = "label"
    classes: Sequence[Any] = ()
    person: Any = None
    text_features: str = HASHED

    def __post_init__(self) -> None:
        rows = [(name, _rows_of(getattr(self, name))) for name in SPLITS]
        for (first, one), (second, other) in combinations(rows, 2):
            arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
            same = one is other and not isinstance(one, str | Path | None)  # paths: DataConfig
            if same or (arrays and np.shares_memory(one, other)):
                raise InvalidInput(second, f"other rows than {first}", "the same memory")

    def __repr__(self) -> str:
        return "Data(private=..., public=..., test=...)"

    @property
    def in_memory(self) -> bool:
        """Whether the private rows are given as arrays or frames."""
        return not isinstance(self.private, str | Path)

    def options(self, place: Path, private: bool = True) -> dict[str, Any]:
        """Options for one's own data, as the command line's.

        Rows in memory are written to ``place``, the private ones only with ``private``: a file that
        holds the same rows stays as it is. Raises InvalidInput, MissingData.
        """
        frames = any(is_frame(_rows_of(getattr(self, name))) for name in SPLITS)
        if self.person is not None and (frames or not self.in_memory):
            rule = 'left out where data={"person": ...} can name a column or a file'
            raise InvalidInput("person", rule, "given")
        if not self.in_memory:
            given = {
                name: getattr(self, name) for name in SPLITS if getattr(self, name) is not None
            }
            if len(given) == 1:
                return {"data": str(self.private), **self._label}
            for name, value in given.items():
                if not isinstance(value, str | Path):
                    raise InvalidInput(name, "a path, as private is", type(value).__name__)
            return {name: str(value) for name, value in given.items()} | self._label
        for name in SPLITS[0 if private else 1 : 2]:
            if getattr(self, name) is None:
                raise InvalidInput(name, "given", None, CURES[name])
        if frames:
            return self._tables(place, private)
        if is_texts(_rows_of(self.public)):
            return self._texts(place, private)
        return self._arrays(place, private)

    def replace_private(self, place: Path) -> None:
        """Write the private rows to ``place`` instead of those that ``options`` wrote there.

        Raises InvalidInput where it wrote none.
        """
        writers = {"parquet": self._tables, "csv": self._texts, "npy": self._arrays}
        there = {path.suffix[1:] for path in place.glob("private*")} & writers.keys()
        if len(there) != 1:
            rule = "left out where the private rows are files of your own: change those"
            raise InvalidInput("private", rule, "rows in memory")
        with TemporaryDirectory(dir=place) as part:
            writers[there.pop()](Path(part), True)
            # A kill leaves no rows beside others' persons: these go first and come last.
            (place / "private_person.npy").unlink(missing_ok=True)
            for path in sorted(Path(part).iterdir(), reverse=True):
                path.replace(place / path.name)

    @property
    def _label(self) -> dict[str, str]:
        return {} if self.label == "label" else {"label": self.label}

    def _tables(self, place: Path, private: bool) -> dict[str, Any]:
        given = self._given()
        for name in given[0 if private else 1 :]:
            write_table(name, getattr(self, name), self.label, place / f"{name}.parquet")
        return {name: str(place / f"{name}.parquet") for name in given} | self._label

    def _given(self) -> list[str]:
        """The splits that there are; private rows may be elsewhere, where nobody writes them."""
        return [n for n in SPLITS if n == SPLITS[0] or getattr(self, n) is not None]

    def _texts(self, place: Path, private: bool) -> dict[str, Any]:
        given = self._given()
        for name in given[0 if private else 1 :]:
            persons = self.person if name == SPLITS[0] else None
            _write_texts(name, *_pair(getattr(self, name)), persons, place / f"{name}.csv")
        return {**{name: str(place / f"{name}.csv") for name in given}, "text": "text"}

    def _arrays(self, place: Path, private: bool) -> dict[str, Any]:
        names = self.names()
        for name in SPLITS[0 if private else 1 :]:
            rows, labels = _pair(getattr(self, name))
            if labels is None and name != "public" and rows is not None:
                raise InvalidInput(name, "a pair: rows and their labels", "rows alone")
            arrays = dict(zip(PARTS[name], (rows, _codes(name, labels, names)), strict=True))
            if name == "private":
                arrays["private_person"] = self.person
            for member, values in arrays.items():
                _write_array(member, values, place / f"{member}.npy")
        return {"data": str(place)}

    def named(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Settings with the classes' names, where they are known, and persons, where given."""
        known: dict[str, Any] = {"classes": names} if (names := self.names()) else {}
        if self.person is not None and self.in_memory and is_texts(_rows_of(self.public)):
            known["person"] = PERSON
        if self.text_features != HASHED:
            known["text_features"] = self.text_features
        unit: dict[str, Any] = {"privacy": {"unit": "person"}} if self.person is not None else {}
        return merged({"data": known, **unit}, settings) if known or unit else settings

    def names(self) -> list[str]:
        """The classes' names, which labels in memory have where they are texts; else none."""
        labels = _pair(self.public if self.test is None else self.test)[1]
        if len(self.classes) or labels is None:
            return list(map(str, self.classes))
        if np.asarray(labels).dtype.kind not in "UOT":
            return []
        return sorted({text for cell in labels if (text := cell_text(cell))})


def _pair(given: Any) -> tuple[Any, Any]:
    return given if isinstance(given, tuple) and len(given) == 2 else (given, None)


def _rows_of(given: Any) -> Any:
    return _pair(given)[0]


def is_frame(rows: Any) -> bool:
    """Whether rows have named columns: pandas, polars, ``datasets``."""
    return hasattr(rows, "columns") or hasattr(rows, "column_names")


def is_texts(rows: Any) -> bool:
    """Whether PUBLIC rows are a list or an array of texts."""
    return np.ndim(rows) == 1 and len(rows) > 0 and all(isinstance(row, str) for row in rows)


def _codes(name: str, labels: Any, names: Sequence[str]) -> np.ndarray | None:
    """Numbers of labels [n] or [n, c]; a private label that is none of the ``names`` is -1.

    An array of numbers stays as it is: its dtype is public. Other cells are read one by one, so
    that no row decides what another one's label is.
    """
    if labels is None or (isinstance(labels, np.ndarray) and labels.dtype.kind in "biuf"):
        return labels
    known = {text: code for code, text in enumerate(names)}
    texts = [cell_text(cell) or "" for cell in labels]
    codes = [known.get(text, -1) if names else _whole(text) for text in texts]
    missing = {"private": texts, "public": [""], "test": []}[name]  # those that may say none
    wrong = [text for text, code in zip(texts, codes, strict=True) if code < 0]
    if unknown := [text for text in wrong if text not in missing]:
        rule = f"labels of {listed(names)}" if names else "whole numbers or texts"
        raise InvalidInput(name, rule, unknown[0])
    return np.array(codes, dtype=np.int64)


def cell_text(cell: Any) -> str | None:
    """A cell as text, whole numbers as such; None where it is missing."""
    if cell is None or cell != cell:
        return None
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def _write_array(name: str, values: Any, path: Path) -> None:
    if values is None:
        if path.exists():
            _require_public(path)
            path.unlink()
        return
    if not hasattr(values, "dtype"):  # a list's would follow from its rows
        raise InvalidInput(name, "an array of numbers", type(values).__name__)
    array = np.ascontiguousarray(values)
    if array.dtype.kind not in "biufUS":
        raise InvalidInput(name, "an array of numbers", f"dtype {array.dtype}")
    with _unless_same(path) as part, part.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def _write_texts(name: str, texts: Any, labels: Any, persons: Any, path: Path) -> None:
    """A CSV file, a line for each row: a text's own line breaks become spaces."""
    if labels is None and name != "public":
        raise InvalidInput(name, "a pair: texts and their labels", "texts alone")
    given: dict[str, list[Any]] = {"text": list(cleaned(texts))}
    more = {"label": labels, PERSON: persons}
    given |= {column: list(cells) for column, cells in more.items() if cells is not None}
    for column, known in given.items():
        if len(known) != len(given["text"]):
            raise InvalidInput(name, f"one {column} for each text", "another count")
    with _unless_same(path) as part, part.open("w", encoding="utf-8", errors="replace") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(given)
        for cells in zip(*given.values(), strict=True):
            writer.writerow(re.sub(r"[\r\n]", " ", cell_text(cell) or "") for cell in cells)


def write_table(name: str, given: Any, label: str, path: Path) -> None:
    """A frame as a parquet file; ``given``: with its labels, or a pair of both."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        text = "data frames need another package: pip install 'labelwall[tables]'."
        raise MissingData(text) from error
    frame, labels = _pair(given)
    if hasattr(frame, "with_format"):  # of `datasets`
        table = frame.with_format("arrow")[:]
    elif hasattr(frame, "to_arrow"):
        table = frame.to_arrow()
    elif hasattr(frame, "to_dict"):  # a column of Python's objects may hold anything: cell by cell
        mixed = {key: frame[key].map(cell_text) for key in frame if frame[key].dtype == object}
        table = pyarrow.Table.from_pandas(frame.assign(**mixed), preserve_index=False)
    else:
        raise InvalidInput(name, "a data frame, as the others are", type(frame).__name__)
    if labels is not None:
        table = table.append_column(
            label, pyarrow.array([cell_text(cell) for cell in labels], pyarrow.string())
        )
    table = table.replace_schema_metadata(None)
    with _unless_same(path) as part:
        parquet.write_table(table, part)


@contextmanager
def _unless_same(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``path`` where the bytes differ.

    Private rows stay: a record is known by its place, so that another one there would have the
    former one's budget. Raises InvalidInput.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        if path.exists() and path.read_bytes() == part.read_bytes():
            return
        if path.exists():
            _require_public(path)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _require_public(path: Path) -> None:
    if path.name.startswith(SPLITS[0]):
        rule = "a directory of these private rows: a record is known by its place among them"
        cure = (
            "`model.update(private=...)` asks about others, where the plan has a period left. The "
            "budgets of two directories add up."
        )
        raise InvalidInput("custody", rule, "other rows", cure)
