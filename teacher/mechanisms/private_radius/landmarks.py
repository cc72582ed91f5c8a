"""Radii of queries, from the distances to public rows alone."""

from __future__ import annotations

import numpy as np

from ...search.cpu import ExactIndex

EVERYWHERE = 1 << 26  # above every squared distance


def squared_radii(queries: np.ndarray, landmarks: bytes, share: float) -> np.ndarray:
    """The squared distance of each query to its j-th nearest landmark: int64 [q].

    j = ``share`` of the landmarks, at least 1. A landmark at distance 0 does not count: it may be
    the query itself. Where fewer than j are left, every record is within.

    ``queries``: int8 [q, d]; ``landmarks``: int8 [m, d] as bytes.
    """
    rows = np.frombuffer(landmarks, dtype=np.int8).reshape(-1, queries.shape[1]).copy()
    wanted = max(1, round(share * len(rows)))
    index = ExactIndex(rows, np.arange(len(rows)), threads=1)
    found = np.full(len(queries), EVERYWHERE, dtype=np.int64)
    for query, squared in enumerate(index.distances(queries)):
        apart = squared[squared > 0]
        if len(apart) >= wanted:
            found[query] = np.partition(apart, wanted - 1)[wanted - 1]
    return found
