"""SVHN: train and extra are private; 25,000 rows of test are public, 1,000 more the test split,
along a constant shuffle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from ..progress import TaskProgress
from .base import Labels, Published, Rows, Settings, open_torchvision
from .mnist import DIGITS
from .readers import constant_order

PUBLIC, TEST = 25_000, 1_000
EXTRA_ID = 1_000_000  # record ids of the extra file start here, those of train at 0


class Svhn(Published):
    """House numbers (Netzer et al. 2011). CVPR20 does not say which images are where."""

    name = "svhn"
    names: ClassVar[Mapping[Labels, tuple[str, ...]]] = {"class": DIGITS}
    shape = (32, 32, 3)
    private_records = 604_388

    def _private(self, config: Settings, progress: TaskProgress | None) -> Rows:
        extra, train = _split(config, "extra"), _split(config, "train")
        return train.joined(replace(extra, ids=extra.ids + EXTRA_ID))

    def _public(self, config: Settings, progress: TaskProgress | None) -> tuple[Rows, Rows]:
        rows = _split(config, "test")
        rows = rows.take(constant_order(f"svhn test {row}" for row in range(len(rows.ids))))
        return rows.take(slice(None, PUBLIC)), rows.take(slice(PUBLIC, PUBLIC + TEST))


def _split(config: Settings, split: str) -> Rows:
    from torchvision import datasets

    found = open_torchvision(
        lambda: datasets.SVHN(config.root, split=split, download=config.download),
        f"{split}_32x32.mat",
        config,
    )
    pixels = found.data.transpose(0, 2, 3, 1)  # [n, c, h, w] -> [n, h, w, c]
    return Rows.of(np.ascontiguousarray(pixels), found.labels)
