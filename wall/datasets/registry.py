"""The data sets by name. A new one is a file beside this one and a line here."""

from __future__ import annotations

from labelwall.wall.datasets.arrays import Arrays
from labelwall.wall.datasets.base import DataSet, Published
from labelwall.wall.datasets.celeba import CelebA
from labelwall.wall.datasets.cifar10 import Cifar10
from labelwall.wall.datasets.fashion_mnist import FashionMnist
from labelwall.wall.datasets.folder import Folder
from labelwall.wall.datasets.mnist import Mnist
from labelwall.wall.datasets.mnist5k import Mnist5k
from labelwall.wall.datasets.svhn import Svhn
from labelwall.wall.datasets.table import Table
from labelwall.wall.errors import InvalidInput

DATA_SETS: tuple[DataSet, ...] = (
    Mnist5k(),
    Mnist(),
    FashionMnist(),
    Svhn(),
    Cifar10(),
    CelebA(),
    Folder(),
    Arrays(),
    Table(),
)


def data_set(name: str) -> DataSet:
    """The data set called ``name``. Raises InvalidInput for an unknown one."""
    for found in DATA_SETS:
        if found.name == name:
            return found
    names = ", ".join(found.name for found in DATA_SETS)
    raise InvalidInput("data.source", f"one of {names}", name)


def published(name: str) -> Published:
    """The published data set called ``name``. Raises InvalidInput for any other."""
    found = data_set(name)
    if isinstance(found, Published):
        return found
    raise InvalidInput("data.source", "a published data set", name)
