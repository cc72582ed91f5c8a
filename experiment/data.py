"""Rows that a program has in memory, and how they become files that a run reads."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np

from ..wall.datasets.data_config import ID, SPLITS
from ..wall.datasets.tables import read_table
from ..wall.datasets.texts import HASHED, cleaned
from ..wall.errors import InvalidInput, listed
from ..wall.files import PART
from ..wall.labels import NO_LABEL, class_names, code_of, written
from .config.own import CURES
from .config.settings import merged
from .display import ShowsFacts
from .frames import (
    Kind,
    as_array,
    cell_text,
    is_frame,
    kind_of,
    kinds_of,
    read_frame,
    texts,
    write_table,
)

LABELS = "labels.txt"  # what type the labels had in memory, in a run folder
PERSON = "person"  # the column of persons that are given beside texts or a frame


@dataclass(frozen=True, repr=False)
class Data(ShowsFacts):
    """Private rows with labels, public rows, and a labelled public test split. Without a test split
    labelled public rows are held out, if there are at least 125.

    Each is given in the same way:

    - a path: a folder of images, a CSV or parquet table; or, as ``private`` alone, one file with
      all rows (as `--data` of the command line);
    - arrays, not lists: (rows, labels), images uint8 [n, h, w, c] or vectors [n, d] with labels
      [n], which are numbers from 0 on, or texts that ``classes``, the test split or the public
      rows name; public rows may be given without labels, or some of them without (None, -1);
    - lists or arrays of texts: (texts, labels), in the same way;
    - data frames of pandas or polars, or tables of Arrow or ``datasets``: one with a column of
      labels, or (rows, labels).

    ``private`` is None where others have these rows (``fit``'s ``teachers``).

    A cell of a frame or a list is read by itself, as the public column has numbers, lists of
    numbers, or texts; a private one that is none of these is missing, and a row without a label is
    dropped. Of whole numbers beyond 2^53, which pandas rounds where one is missing, all are
    rounded: give such ids as texts. The dtype of an array is public.

    ``label``: the name of a table's column with the label. ``classes``: the public list of the
    labels, in order; those of the test and public rows where it is empty. ``person``: the name of
    the column with the id of each private row's person (of paths also as ``data.person``), or
    these ids; persons are protected then, unless ``privacy`` says otherwise. ``text_features``:
    what makes numbers of texts, "sentence/" and the name or folder of a sentence model, or n-grams
    by default.
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

    def facts(self) -> dict[str, object]:
        """Public facts: of private rows the path, if they have one; not even their number."""
        hidden = "elsewhere" if self.private is None else "in memory, never shown"
        shown: dict[str, object] = {"private": hidden if self.in_memory else self.private}
        for name in SPLITS[1:]:
            if (given := getattr(self, name)) is not None:
                rows = _rows_of(given)
                shown[name] = given if isinstance(given, str | Path) else f"{len(rows)} rows"
        known = {"label": self._label.get("label"), "classes": listed(self.names())}
        known["protected"] = "persons" if self.person is not None else None
        return shown | {name: value for name, value in known.items() if value}

    @cached_property
    def scratch(self) -> Path:
        """A folder of its owner's alone, for calls that name none: of this object one, so that a
        call once more is no other budget. It stays: it has the ledger.
        """
        return Path(mkdtemp(prefix="labelwall-"))

    @property
    def in_memory(self) -> bool:
        """Whether the rows are given as arrays or frames."""
        given = self.public if self.private is None else self.private
        return not isinstance(given, str | Path)

    @property
    def keeps_rows(self) -> bool:
        """Whether a custodian's directory has to keep the private rows."""
        return self.in_memory and self.private is not None

    def options(self, place: Path, private: bool = True) -> dict[str, Any]:
        """Options for one's own data, as the command line's.

        Rows in memory are written to ``place``, the private ones only with ``private``: a file that
        holds the same rows stays as it is. Raises InvalidInput, MissingData.
        """
        frames = any(is_frame(_rows_of(getattr(self, name))) for name in SPLITS)
        named = isinstance(self.person, str)
        if self.person is not None and not frames and named == self.in_memory:
            rule = "the name of a column or a file for paths, an id for each row for others"
            raise InvalidInput("person", rule, type(self.person).__name__)
        if not self.in_memory:
            given = {
                name: getattr(self, name) for name in SPLITS if getattr(self, name) is not None
            }
            if [*given] == ["private"]:
                return {"data": str(self.private), **self._label}
            for name, value in given.items():
                if not isinstance(value, str | Path):
                    raise InvalidInput(name, "a path, as private is", type(value).__name__)
            return {name: str(value) for name, value in given.items()} | self._label
        for name in SPLITS:
            if isinstance(given := getattr(self, name), str | Path):
                raise InvalidInput(name, "rows in memory, as the others are", given)
        for name in SPLITS[0 if private else 1 : 2]:
            if getattr(self, name) is None:
                raise InvalidInput.missing(name, "a run needs these rows", CURES[name])
        if frames:
            return self._tables(place, private)
        if is_texts(_rows_of(self.public)):
            return self._texts(place, private)
        return self._arrays(place, private)

    def replace_private(self, place: Path) -> None:
        """Write the private rows to ``place`` instead of those that ``options`` wrote there.

        They are one file, so a kill leaves the old rows or the new ones. Raises InvalidInput where
        it wrote none.
        """
        tables: Any = partial(self._tables, public=place)
        writers = {"parquet": tables, "csv": self._texts, "npz": self._arrays}
        there = {path.suffix[1:] for path in place.glob("private.*")} & writers.keys()
        if len(there) != 1:
            why = "the private rows are files of your own"
            raise InvalidInput.needless("private", why, "Change those.")
        with TemporaryDirectory(PART, dir=place) as part:
            writers[there.pop()](Path(part), True)
            (file,) = Path(part).glob("private.*")
            file.replace(place / file.name)

    @property
    def _label(self) -> dict[str, str]:
        return {} if self.label == "label" else {"label": self.label}

    def _tables(self, place: Path, private: bool, public: Path | None = None) -> dict[str, Any]:
        """``public``: where the public rows lie already."""
        given, stored = self._given(), public and public / "public.parquet"
        known = read_table("public", stored).columns if stored else self._columns("public")
        for name in given[0 if private else 1 :]:
            table = known if name == "public" else self._columns(name, kinds_of(known))
            with _unless_same(place / f"{name}.parquet") as part:
                write_table(table, part)
        return {name: str(place / f"{name}.parquet") for name in given} | self._label

    def _columns(self, name: str, kinds: Mapping[str, Kind] | None = None) -> dict[str, np.ndarray]:
        """A frame with its labels and persons; ``kinds``: as of ``read_frame``."""
        frame, labels = _pair(getattr(self, name))
        named = self.person if isinstance(self.person, str) else PERSON
        persons = self.person if name == SPLITS[0] and named is not self.person else None
        beside = _beside(name, frame, **{self.label: labels, named: persons})
        return read_frame(name, frame, (self.label, named, ID), kinds, beside)

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
            persons = self.person if name == "private" else None
            beside = _beside(name, rows, **{"label": labels, PERSON: persons})
            arrays = {f"{name}_x": rows, f"{name}_y": _codes(name, labels, names)}
            if (ids := beside.get(PERSON)) is not None:
                whole = isinstance(ids, np.ndarray) and ids.dtype.kind in "iu"
                arrays["private_person"] = ids if whole else np.array(texts(ids), dtype=str)
            _write_arrays(arrays, place / f"{name}.npz")
        return {"data": str(place)}

    def named(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Settings with the classes' names, where they are known, and persons, where given."""
        known: dict[str, Any] = {"classes": names} if (names := self.names()) else {}
        if isinstance(self.person, str):
            known["person"] = self.person
        elif self.person is not None and (
            is_frame(_rows_of(self.public)) or is_texts(_rows_of(self.public))
        ):
            known["person"] = PERSON
        if self.text_features != HASHED:
            known["text_features"] = self.text_features
        unit: dict[str, Any] = {"privacy": {"unit": "person"}} if self.person is not None else {}
        return merged({"data": known, **unit}, settings) if known or unit else settings

    def label_type(self) -> str:
        """What the public labels in memory are: int, float, bool or str; empty where none is."""
        rows, labels = _pair(self.public if self.test is None else self.test)
        if labels is None and is_frame(rows) and self.label in getattr(rows, "column_names", rows):
            labels = as_array(rows[self.label])
        there = [cell for cell in (() if labels is None else labels) if cell_text(cell) is not None]
        kinds = {"i": "int", "u": "int", "f": "float", "b": "bool", "U": "str", "T": "str"}
        return kinds.get(np.asarray(there or [None]).dtype.kind, "")

    def names(self) -> list[str]:
        """The classes' names, which labels in memory have where they are texts; else none."""
        labels = _pair(self.public if self.test is None else self.test)[1]
        if len(self.classes) or labels is None:
            return list(map(str, self.classes))
        if kind_of(labels) != "text":
            return []
        more = None if self.test is None else _pair(self.public)[1]
        return class_names(labels, [] if more is None else more)


def _pair(given: Any) -> tuple[Any, Any]:
    """Rows and their labels, if there are any; tensors as arrays."""
    rows, labels = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    return as_array(rows), as_array(labels)


def _rows_of(given: Any) -> Any:
    return _pair(given)[0]


def _beside(name: str, rows: Any, **more: Any) -> dict[str, Any]:
    """Labels and persons of rows, where there are any. Raises InvalidInput."""
    given = {column: as_array(cells) for column, cells in more.items() if cells is not None}
    for column, cells in given.items():
        count = len(cells) if hasattr(cells, "__len__") else 1
        if count != len(rows):
            found = f"{count} for {len(rows)} rows"
            private = "another count, which is private"
            rule = f"one {column} for each row"
            raise InvalidInput(name, rule, private if name == SPLITS[0] else found)
    return given


def is_texts(rows: Any) -> bool:
    """Whether PUBLIC rows are a list or an array of texts."""
    return np.ndim(rows) == 1 and len(rows) > 0 and all(isinstance(row, str) for row in rows)


def _codes(name: str, labels: Any, names: Sequence[str]) -> np.ndarray | None:
    """Numbers of labels [n] or [n, c]; a private label that is none of the ``names`` is -1.

    An array of numbers stays as it is: its dtype is public. Other cells are read one by one, so
    that no row decides what another one's label is.
    """
    if labels is None or (isinstance(labels, np.ndarray) and labels.dtype.kind in "iuf"):
        return labels
    if isinstance(labels, np.ndarray) and labels.ndim > 1:  # attributes
        return labels
    cells = list(map(written, texts(labels)))
    codes = list(map(code_of(names) if names else _whole, cells))
    wrong = [text for text, code in zip(cells, codes, strict=True) if code < 0]
    may = {"private": wrong, "public": [t for t in wrong if t.lower() in NO_LABEL], "test": []}
    if unknown := [text for text in wrong if text not in may[name]]:
        rule = f"labels of {listed(names)}" if names else "whole numbers or texts"
        raise InvalidInput(name, rule, unknown[0])
    return np.array(codes, dtype=np.int64)


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def _write_arrays(given: Mapping[str, Any], path: Path) -> None:
    """An npz file of those that are not None; none where all are."""
    arrays = {name: values for name, values in given.items() if values is not None}
    if not arrays:
        _require_public(path)
        path.unlink(missing_ok=True)
        return
    for name, values in arrays.items():
        if not hasattr(values, "dtype"):  # a list's would follow from its rows
            raise InvalidInput(name, "an array of numbers", type(values).__name__)
        arrays[name] = np.ascontiguousarray(values)
        if arrays[name].dtype.kind not in "biufUS":
            raise InvalidInput(name, "an array of numbers", f"dtype {arrays[name].dtype}")
    with _unless_same(path) as part, part.open("wb") as file:
        np.savez(file, **arrays)


def _write_texts(name: str, rows: Any, labels: Any, persons: Any, path: Path) -> None:
    """A CSV file, a line for each row: a text's own line breaks become spaces."""
    if labels is None and name != "public":
        raise InvalidInput(name, "a pair: texts and their labels", "texts alone")
    more = _beside(name, rows, **{"label": labels, PERSON: persons})
    given = {"text": cleaned(texts(rows)), **{key: texts(cells) for key, cells in more.items()}}
    with _unless_same(path) as part, part.open("w", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(given)
        for cells in zip(*given.values(), strict=True):
            writer.writerow(re.sub(r"[\r\n]", " ", cell) for cell in cells)


@contextmanager
def _unless_same(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of ``path`` where the bytes differ.

    Private rows stay: a record is known by its place, so that another one there would have the
    former one's budget. Raises InvalidInput.
    """
    part = path.with_name(f"{path.name}{PART}")
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
