"""Fashion-MNIST, split like MNIST.

A row has its class, or the attributes that the table below gives its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ..labels.attributes import pack
from .base import Labels, Rows, Settings
from .mnist import Mnist

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


class FashionMnist(Mnist):
    """Articles of clothing (Zalando Research)."""

    name = "fashion_mnist"
    names: ClassVar[Mapping[Labels, tuple[str, ...]]] = {
        "class": CLOTHES,
        "attributes": tuple(CLOTHES_ATTRIBUTES),
    }
    licence = "MIT"
    torchvision_name = "FashionMNIST"

    def _split(self, config: Settings, *, train: bool) -> Rows:
        rows = super()._split(config, train=train)
        if config.labels == "class":
            return rows
        return replace(rows, labels=attribute_codes()[rows.labels])


def attribute_codes() -> np.ndarray:
    """The packed attributes of each class: int64 [10]."""
    table = [[int(name in having) for having in CLOTHES_ATTRIBUTES.values()] for name in CLOTHES]
    return pack(np.array(table, dtype=np.int64))
