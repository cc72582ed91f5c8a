"""Products of int8 rows, exact in int32 on any device, in any batch and number of threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ...wall.errors import InvalidInput
from . import vnni

LARGEST = 63  # features are integers in -63..63, so that twice a query still fits int8
MAX_DIMENSIONS = 4000  # 2 * 63 * 63 * 4000 < 2^25: float32 represents every even integer below
FLOAT32_ROWS = 4096  # records of a float32 block: at most 64 MiB, and its products stay in cache

# The product that is timed, and how often.
PROBED_QUERIES = 256
PROBED_RECORDS = 2048
PROBED_DIMENSIONS = 1024
TRIALS = 6

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


PRODUCTS: dict[str, Product] = {"int8": int8_product, "float32": float32_product}


def choose_product(name: str | None = None) -> Product:
    """The named product, or the faster of those that are exact on this machine.

    torch._int_mm is private, and fast only on processors with VNNI or AMX, so it is tested before
    use. Raises InvalidInput for an unknown name.
    """
    if name is not None and name not in PRODUCTS:
        raise InvalidInput("product", f"one of {sorted(PRODUCTS)}", name)
    return PRODUCTS[name if name is not None else _probe()]


@lru_cache(maxsize=1)
def _probe() -> str:
    """The product with the fastest of TRIALS runs.

    The products alternate, so that a moment's load on the machine does not decide.
    """
    shape = PROBED_RECORDS, PROBED_DIMENSIONS
    entries = np.arange(PROBED_RECORDS * PROBED_DIMENSIONS, dtype=np.int64).reshape(shape)
    right = (entries * 2654435761 % 127 - 63).astype(np.int8)  # any fixed integers in -63..63
    left = minus_twice(right[:PROBED_QUERIES])
    exact = left.astype(np.float64) @ right.astype(np.float64).T  # integers far below 2^53
    expected = exact.astype(np.int32)
    best = dict.fromkeys(PRODUCTS, float("inf"))
    for _ in range(TRIALS):
        for name, product in PRODUCTS.items():
            best[name] = min(best[name], _seconds(product, left, right, expected))
    return min(best, key=lambda name: best[name])


def _seconds(product: Product, left: np.ndarray, right: np.ndarray, expected: np.ndarray) -> float:
    """Seconds of one run, or infinity for a product that is missing or wrong."""
    out = np.zeros(expected.shape, dtype=np.int32)
    start = time.perf_counter()
    try:
        product(left, right, out)
    except (AttributeError, NotImplementedError, RuntimeError):
        return float("inf")
    seconds = time.perf_counter() - start
    return seconds if np.array_equal(out, expected) else float("inf")
