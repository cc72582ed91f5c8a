"""Public cells: private records vote in them once, and public rows inherit the counts nearby.

Centres go in, noisy counts come out. Labels computed from the counts are post-processing and free.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .matrix import Matrix
from .messages import ABSTAINED, Outcome

MAX_ENTRY = 63  # quantised features are integers in -63..63
MAX_CELLS, MAX_DIMENSIONS = 4096, 4000
BATCH_ROWS = 4096  # public rows compared with the centres at once


@dataclass(frozen=True)
class Cells(Matrix):
    """A partition of feature space from PUBLIC rows: each point belongs to its nearest centre.

    ``centers``: int8 [m, d], entries in -63..63, 1 <= m <= 4096, 1 <= d <= 4000, in the extractor's
    quantised features. Equal centres are allowed; points go to the first of them.
    ``slot``: the entry of the plan that pays.

    Raises InvalidInput for any other dtype, shape or entry. Integers cannot be NaN or infinite.
    """

    centers: np.ndarray
    slot: int = 0

    kind = "cells"
    array = "centers"

    def __post_init__(self) -> None:
        c = self.centers
        fits = c.ndim == 2 and 0 < len(c) <= MAX_CELLS and 0 < c.shape[1] <= MAX_DIMENSIONS
        rule = f"[m, d] with m in 1..{MAX_CELLS}, d in 1..{MAX_DIMENSIONS}"
        self.require(np.int8, rule, fits, MAX_ENTRY)

    @property
    def entries(self) -> np.ndarray:
        """The centres."""
        return self.centers


def nearest_cells(features: np.ndarray, centers: np.ndarray, neighbours: int) -> np.ndarray:
    """Each row's nearest cells, nearest first, ties by cell number: int64 [n, neighbours].

    ``features``: int8 [n, d]; ``centers``: int8 [m, d], neighbours <= m; entries in -63..63,
    d <= 4000. Products are sums of integers of at most 63^2 * 4000 < 2^24 together, so they are
    exact in float32 in any order of summation: no row's cells depend on batch, threads or other
    rows.
    """
    wide = centers.astype(np.float32)
    found = np.empty((len(features), neighbours), dtype=np.int64)
    squares = (wide * wide).sum(axis=1).astype(np.float64)  # [m]
    for start in range(0, len(features), BATCH_ROWS):
        batch = slice(start, start + BATCH_ROWS)
        # |x - c|^2 without |x|^2, which is the same for all centres
        products = features[batch].astype(np.float32) @ wide.T
        distances = squares - 2 * products.astype(np.float64)
        if neighbours == 1:
            found[batch, 0] = distances.argmin(axis=1)  # the first minimum, as the stable sort
        else:
            found[batch] = np.argsort(distances, axis=1, kind="stable")[:, :neighbours]
    return found


def inherit(
    counts: np.ndarray | None, cells_of_row: np.ndarray, margin: float
) -> tuple[np.ndarray, np.ndarray]:
    """Labels int64 [n] and outcomes uint8 [n] of public rows from noisy counts.

    Post-processing: free.

    ``counts``: votes [m, c], as in NoisyCounts or in parts of them; ``cells_of_row``: int64
    [n, reach]. Each row sums the noisy votes of its cells. It gets the class with the most votes
    (the lowest on ties) where these exceed the second most by more than ``margin`` votes, and
    abstains elsewhere.
    """
    labels = np.full(len(cells_of_row), ABSTAINED, dtype=np.int64)
    if counts is None:
        return labels, np.full(len(labels), Outcome.CAP_REACHED, dtype=np.uint8)
    votes = counts[cells_of_row].sum(axis=1)  # [n, n_classes]
    ordered = np.sort(votes, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > margin
    labels[clear] = votes[clear].argmax(axis=1)
    return labels, np.where(clear, Outcome.ANSWERED, Outcome.ABSTAINED).astype(np.uint8)
