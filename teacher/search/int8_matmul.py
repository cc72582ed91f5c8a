"""One product: int8 rows times int8 rows, exact in int32 whatever the device, batch or number of threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from labelwall.wall.errors import InvalidInput

LARGEST = 63  # features are integers in -63..63, so that twice a query still fits int8
MAX_DIMENSIONS = 4000  # 2 * 63 * 63 * 4000 < 2^25: float32 holds every even integer up to there
PROBED_QUERIES, PROBED_RECORDS, PROBED_DIMENSIONS, TRIALS = (
    256,
    2048,
    1024,
    6,
)  # a batch, and enough of what it meets
RECORDS_AT_ONCE = (
    4096  # a block of float32 records is at most 64 MiB, and its products stay in cache
)

Product = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


def minus_twice(queries: np.ndarray) -> np.ndarray:
    """-2 q as int8 [q, d]: the product then is the cross term of |x - q|^2, and even, which the float path needs."""
    return (-2 * queries).astype(np.int8)


def int8_product(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """out[i, j] = left[i] . right[j]: int8 [a, d], int8 [b, d] into int32 [a, b]. oneDNN's int8 kernel through torch."""
    import torch

    rows, columns = torch.from_numpy(left), torch.from_numpy(right)
    torch._int_mm(rows, columns.T, out=torch.from_numpy(out))


def float32_product(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """The same integers from numpy's float32 product: every partial sum is an even integer below 2^25, hence exact.

    numpy and not torch, whose float32 products drop to bfloat16 when a process asks for "medium" precision.
    ``left`` must be even (``minus_twice``).
    """
    rows = left.astype(np.float32)
    for start in range(0, len(right), RECORDS_AT_ONCE):
        block = right[start : start + RECORDS_AT_ONCE].astype(np.float32)
        out[:, start : start + RECORDS_AT_ONCE] = rows @ block.T


PRODUCTS: dict[str, Product] = {"int8": int8_product, "float32": float32_product}


def choose_product(name: str | None = None) -> Product:
    """The named product, or the faster of the two that are right on this machine.

    torch._int_mm is private and fast only where the processor has VNNI (or AMX): it is probed, not trusted.
    """
    if name is not None and name not in PRODUCTS:
        raise InvalidInput("product", f"one of {sorted(PRODUCTS)}", name)
    return PRODUCTS[name if name is not None else _probe()]


@lru_cache(maxsize=1)
def _probe() -> str:
    """The product with the best of TRIALS runs, taken by turns: what slows the machine for a moment decides nothing."""
    entries = np.arange(PROBED_RECORDS * PROBED_DIMENSIONS, dtype=np.int64).reshape(
        PROBED_RECORDS, PROBED_DIMENSIONS
    )
    right = (entries * 2654435761 % 127 - 63).astype(np.int8)  # any fixed integers in -63..63
    left = minus_twice(right[:PROBED_QUERIES])
    exact = (left.astype(np.float64) @ right.astype(np.float64).T).astype(
        np.int32
    )  # integers far below 2^53
    best = dict.fromkeys(PRODUCTS, float("inf"))
    for _ in range(TRIALS):
        for name, product in PRODUCTS.items():
            best[name] = min(best[name], _seconds(product, left, right, exact))
    return min(best, key=lambda name: best[name])


def _seconds(product: Product, left: np.ndarray, right: np.ndarray, exact: np.ndarray) -> float:
    """One run, or infinity where the product is missing or wrong."""
    out = np.zeros(exact.shape, dtype=np.int32)
    start = time.perf_counter()
    try:
        product(left, right, out)
    except (AttributeError, NotImplementedError, RuntimeError):
        return float("inf")
    seconds = time.perf_counter() - start
    return seconds if np.array_equal(out, exact) else float("inf")
