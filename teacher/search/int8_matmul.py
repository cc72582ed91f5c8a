"""Products of int8 rows on the processor: exact in int32, in any batch and number of threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from . import vnni

LARGEST = 63  # features are integers in -63..63, so that twice a query still fits int8
MAX_DIMENSIONS = 4000  # 2 * 63 * 63 * 4000 < 2^25: float32 represents every even integer below
FLOAT32_ROWS = 4096  # records of a float32 block: at most 64 MiB, and its products stay in cache
FAST_INT8 = {"avx512vnni", "avxvnni", "amx-int8"}  # without them, oneDNN's int8 kernel is slow

Product = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


def minus_twice(queries: np.ndarray) -> np.ndarray:
    """-2 q as int8 [q, d].

    Its product with x is the cross term of |x - q|^2, and even, as ``float32_product`` needs.
    """
    return (-2 * queries).astype(np.int8)


def int8_product(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """out[i, j] = left[i] . right[j]: int8 [a, d], int8 [b, d] into int32 [a, b].

    Few rows on the left are multiplied where the others are stored, if the processor can
    (vnni.py); else oneDNN's int8 kernel through torch.
    """
    import torch

    if vnni.fits(left, right, out) and vnni.is_available():
        vnni.product(left, right, out)
        return
    rows, columns = torch.from_numpy(left), torch.from_numpy(right)
    torch._int_mm(rows, columns.T, out=torch.from_numpy(out))


def float32_product(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """The same integers by numpy's float32 product, for an even ``left`` (``minus_twice``).

    Every partial sum is an even integer below 2^25, hence exact. torch's float32 products would not
    be: they drop to bfloat16 when a process asks for "medium" precision.
    """
    rows = left.astype(np.float32)
    for start in range(0, len(right), FLOAT32_ROWS):
        block = right[start : start + FLOAT32_ROWS].astype(np.float32)
        out[:, start : start + FLOAT32_ROWS] = rows @ block.T


@lru_cache(maxsize=1)
def best_product() -> Product:
    """``int8_product`` where the processor has instructions for it and torch's private function is
    there and right; else ``float32_product``.
    """
    if not FAST_INT8 & vnni.instructions():
        return float32_product
    shape = 40, MAX_DIMENSIONS
    right = np.arange(40 * MAX_DIMENSIONS).reshape(shape) * 97 % (2 * LARGEST + 1) - LARGEST
    right[0], right[1] = LARGEST, -LARGEST
    right = right.astype(np.int8)
    left, out = minus_twice(right), np.zeros((40, 40), dtype=np.int32)
    try:
        int8_product(left, right, out)
    except (AttributeError, NotImplementedError, RuntimeError):
        return float32_product
    exact = left.astype(np.int32) @ right.astype(np.int32).T
    return int8_product if np.array_equal(out, exact) else float32_product
