"""CIFAR-10: three fifths of train (30,000) are private, the rest and test[:9000] public,
test[9000:] the test split.

CVPR20 does not say which images are where. torchvision's files are cut along their borders (their
authors shuffled them): the batches 1 to 3 are private. Unpacked as image folders, train is cut
along a constant shuffle of the file names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..errors import InvalidInput
from ..progress import TaskProgress
from .base import Labels, Published, Rows, Settings, open_torchvision
from .readers import (
    class_of,
    constant_order,
    is_image,
    list_files,
    read_images,
)

OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PRIVATE, TEST = 30_000, 1_000
PRIVATE_FILES = ("data_batch_1", "data_batch_2", "data_batch_3")
PUBLIC_FILES, TEST_FILE = ("data_batch_4", "data_batch_5"), ("test_batch",)


class Cifar10(Published):
    """Small photographs of ten kinds of objects (Krizhevsky 2009)."""

    name = "cifar10"
    names: ClassVar[Mapping[Labels, tuple[str, ...]]] = {"class": OBJECTS}
    shape = (32, 32, 3)
    private_records = PRIVATE

    def _private(self, config: Settings, progress: TaskProgress | None) -> Rows:
        folder = _image_folder(Path(config.root))
        if folder:
            return _images(folder, "train", slice(None, PRIVATE), progress)
        return _batches(config, PRIVATE_FILES)

    def _public(self, config: Settings, progress: TaskProgress | None) -> tuple[Rows, Rows]:
        folder = _image_folder(Path(config.root))
        if folder:
            public = _images(folder, "train", slice(PRIVATE, None), progress)
            rest = _images(folder, "test", slice(None), progress)
        else:
            public, rest = _batches(config, PUBLIC_FILES), _batches(config, TEST_FILE)
        rows = public.joined(rest)
        if not rows.readable.all() or (rows.labels < 0).any():
            rule = "a folder of the classes' readable images"
            raise InvalidInput("data.root", rule, str(folder), "Unpack CIFAR-10 again.")
        return rows.take(slice(None, -TEST)), rows.take(slice(-TEST, None))


def _batches(config: Settings, names: Sequence[str]) -> Rows:
    """Some of torchvision's files; their checksums are verified and no other file is opened."""
    from torchvision import datasets

    listed = [*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list]
    known = {name: [name, md5] for name, md5 in listed}
    wanted = {"train_list": [known[name] for name in names], "test_list": []}
    part = type("CIFAR10Part", (datasets.CIFAR10,), wanted)
    found = open_torchvision(
        lambda: part(config.root, train=True, download=config.download),
        datasets.CIFAR10.base_folder,
        config,
    )
    return Rows.of(np.ascontiguousarray(found.data), np.array(found.targets))


def _image_folder(root: Path) -> Path | None:
    """Image folders (train/CLASS/*.jpg, test/CLASS/*.jpg) under ``root``, where torchvision's files
    are not.
    """
    from torchvision import datasets

    if (root / datasets.CIFAR10.base_folder).is_dir():
        return None
    places = [root, root / "CIFAR10", root / "cifar10"]
    return next((place for place in places if _has_classes(place)), None)


def _has_classes(place: Path) -> bool:
    return all((place / split / "truck").is_dir() for split in ("train", "test"))


def _images(folder: Path, split: str, part: slice, progress: TaskProgress | None) -> Rows:
    """A part of the image folders, in a constant shuffle; only its files are opened."""
    paths = [path for path in list_files(folder / split) if is_image(path)]
    order = constant_order(f"cifar10 {split}/{path}" for path in paths)[part]
    chosen = [paths[row] for row in order]
    images = read_images(folder / split, chosen, 32, 3, progress)
    labels = np.array([class_of(path, OBJECTS) for path in chosen], dtype=np.int64)
    return Rows(images.pixels, labels, order, images.readable)
