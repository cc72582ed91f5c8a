"""Public cells: where private records vote once for all public rows, and what every row inherits from those next to it.

Centres go in, noisy counts come out. What follows from the counts is post-processing and costs nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ABSTAINED, Outcome, Receipt, canonical_json

LARGEST = 63  # quantised features are integers in -63..63
MAX_CELLS, MAX_DIMENSIONS = 4096, 4000
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Cells:
    """A partition of feature space, chosen from PUBLIC rows: each point belongs to its nearest centre.

    ``centers``: int8 [m, d], entries in -63..63, 1 <= m <= 4096, 1 <= d <= 4000, in the extractor's quantised features.
    ``slot``: which entry of the plan pays. Equal centres are allowed; the first of them is the nearer one.

    Raises InvalidInput for any other dtype, shape or entry: integers can not be NaN or infinite.
    """

    centers: np.ndarray
    slot: int = 0

    def __post_init__(self) -> None:
        c = self.centers
        if (
            c.dtype != np.int8
            or c.ndim != 2
            or not 0 < len(c) <= MAX_CELLS
            or not 0 < c.shape[1] <= MAX_DIMENSIONS
        ):
            rule = f"int8 [m, d] with m in 1..{MAX_CELLS}, d in 1..{MAX_DIMENSIONS}"
            raise InvalidInput("cells.centers", rule, f"{c.dtype} {list(c.shape)}")
        if c.min() < -LARGEST:
            raise InvalidInput("cells.centers", f"integers in -{LARGEST}..{LARGEST}", int(c.min()))
        if c.max() > LARGEST:
            raise InvalidInput("cells.centers", f"integers in -{LARGEST}..{LARGEST}", int(c.max()))
        if self.slot < 0:
            raise InvalidInput("cells.slot", "at least 0", self.slot)

    def identity(self, extractor: str, mechanism: dict[str, object]) -> str:
        """SHA-256 (hex) of the centres in order, the extractor's hash, mechanism and parameters."""
        prefix = canonical_json(
            {"extractor": extractor, "mechanism": mechanism, "cells": list(self.centers.shape)}
        )
        return hashlib.sha256(
            prefix + b"\0" + np.ascontiguousarray(self.centers).tobytes()
        ).hexdigest()

    def identities(self, extractor: str, mechanism: dict[str, object]) -> list[str]:
        """The one ``identity``, as a call's queries have theirs."""
        return [self.identity(extractor, mechanism)]


@dataclass(frozen=True)
class CellCounts:
    """``counts``: int64 [m, n_classes], noisy votes by cell and class (some negative); None where the cap was reached."""

    counts: np.ndarray | None = field(repr=False)
    receipt: Receipt


def nearest_cells(features: np.ndarray, centers: np.ndarray, neighbours: int) -> np.ndarray:
    """The nearest cells of each row, nearest first, equal distances by the cell's number: int64 [n, neighbours].

    ``features``: int8 [n, d]; ``centers``: int8 [m, d], neighbours <= m. Squared distances are sums of integers below
    2^53 in float64, hence exact whatever the order of summation: no row's cells depend on batch, threads or other rows.
    """
    wide = centers.astype(np.float64)
    found = np.empty((len(features), neighbours), dtype=np.int64)
    squares = (wide * wide).sum(axis=1)  # float64 [m]
    for start in range(0, len(features), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        distances = squares - 2 * (
            features[part].astype(np.float64) @ wide.T
        )  # less |x|^2, which changes no order
        if neighbours == 1:
            found[part, 0] = distances.argmin(axis=1)  # the first of the smallest
        else:
            found[part] = np.argsort(distances, axis=1, kind="stable")[:, :neighbours]
    return found


def inherit(
    counts: np.ndarray | None, cells_of_row: np.ndarray, margin: float
) -> tuple[np.ndarray, np.ndarray]:
    """Labels int64 [n] and outcomes uint8 [n] of public rows from their cells' noisy counts. Post-processing: free.

    ``counts``: as of CellCounts; ``cells_of_row``: int64 [n, reach]. A row gets the class with the most noisy votes in its
    cells together (the lowest of equals) where they exceed the second most by more than ``margin`` votes; it abstains
    elsewhere.
    """
    labels = np.full(len(cells_of_row), ABSTAINED, dtype=np.int64)
    if counts is None:
        return labels, np.full(len(labels), Outcome.CAP_REACHED, dtype=np.uint8)
    votes = counts[cells_of_row].sum(axis=1)  # int64 [n, n_classes]
    ordered = np.sort(votes, axis=1)
    sure = ordered[:, -1] - ordered[:, -2] > margin
    labels[sure] = votes[sure].argmax(axis=1)
    return labels, np.where(sure, Outcome.ANSWERED, Outcome.ABSTAINED).astype(np.uint8)
