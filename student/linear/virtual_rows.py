"""Rows between and around PUBLIC ones, which a student of vectors learns beside them."""

import numpy as np

from .tuning import VIRTUAL_ROWS

MAX_ENTRIES = 10_000_000  # of the virtual rows: float32


def virtual_rows(rows: np.ndarray, seed: int) -> np.ndarray:
    """PUBLIC rows, float32 [n, d], each moved by a random part of the difference of two others."""
    count = min(VIRTUAL_ROWS, MAX_ENTRIES // rows.shape[1])
    random = np.random.default_rng(seed)
    at, to, by = random.integers(0, len(rows), (3, count))
    share = random.random((count, 1), dtype=np.float32)
    return np.asarray((rows[at] + share * (rows[to] - rows[by])).astype(np.float32))
