"""MNIST: train (60,000) is private, the first 5,000 of test are public, the rest is the test split
(CVPR20, section 4.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ..progress import TaskProgress
from .base import Labels, Published, Rows, Settings, open_torchvision

DIGITS = tuple("0123456789")
PUBLIC = 5_000


class Mnist(Published):
    """Handwritten digits (LeCun, Cortes, Burges), and the reader of their format."""

    name = "mnist"
    names: ClassVar[Mapping[Labels, tuple[str, ...]]] = {"class": DIGITS}
    shape = (28, 28, 1)
    private_records = 60_000
    torchvision_name: ClassVar[str] = "MNIST"

    def _private(self, config: Settings, progress: TaskProgress | None) -> Rows:
        return self._split(config, train=True)

    def _public(self, config: Settings, progress: TaskProgress | None) -> tuple[Rows, Rows]:
        rows = self._split(config, train=False)
        return rows.take(slice(None, PUBLIC)), rows.take(slice(PUBLIC, None))

    def _split(self, config: Settings, *, train: bool) -> Rows:
        from torchvision import datasets

        kinds = {"MNIST": datasets.MNIST, "FashionMNIST": datasets.FashionMNIST}
        found = open_torchvision(
            lambda: kinds[self.torchvision_name](
                config.root, train=train, download=config.download
            ),
            f"{self.torchvision_name}/raw",
            config,
        )
        return Rows.of(found.data.numpy()[..., np.newaxis], found.targets.numpy())
