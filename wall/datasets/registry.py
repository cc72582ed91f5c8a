"""The data sets by name. A new one is a file beside this one and a line here."""

from __future__ import annotations

from ..errors import InvalidInput
from .arrays import Arrays
from .base import DataSet, Published
from .celeba import CelebA
from .cifar10 import Cifar10
from .fashion_mnist import FashionMnist
from .folder import Folder
from .mnist import Mnist
from .mnist5k import Mnist5k
from .svhn import Svhn
from .table import Table

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
