"""A round of reverse kNN on the public side.

Public rows are clustered, one histogram is asked for, and the rows inherit its labels.
"""

from __future__ import annotations

import numpy as np

from ...wall.cells import Cells, inherit, nearest_cells
from ...wall.errors import InvalidInput
from .clusters import k_means
from .fitted import Fitted, Question
from .quality import by_counts

ITERATIONS = 50  # of Lloyd's algorithm; later ones move centres by less than their rounding


def fit_cells(question: Question) -> Fitted:
    """One noisy histogram over clusters of the features.

    Raises InvalidInput where there are fewer rows than cells.
    """
    asked = question.asked
    cells, noise = asked.cells, asked.noise
    assert cells is not None
    assert noise is not None
    centers = question.stored(
        "cells.npz", "centers", lambda: cluster(question.features, cells, question.seed)
    )
    found = question.count(Cells(centers, question.slot))

    def nearest(features: np.ndarray) -> np.ndarray:
        return nearest_cells(features, centers, asked.reach)

    own, estimate, votes = nearest(question.features), None, found.counts
    if votes is not None:
        votes = votes if asked.parts == 1 else votes / asked.parts
        estimate = by_counts(votes, own, asked.margin, noise)

    def label(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = own if features is question.features else nearest(features)
        return inherit(votes, rows, asked.margin)

    return Fitted(label, found.receipt, estimate)


def cluster(features: np.ndarray, cells: int, seed: int) -> np.ndarray:
    """k-means centres of PUBLIC features (int8 [n, d]), rounded to integers: int8 [cells, d].

    Features with few distinct values give equal centres; all but the first of those stay empty.
    """
    if cells > len(features):
        rule = f"at most {len(features)}, the public rows of a round"
        raise InvalidInput("mechanism.cells", rule, cells)
    centers, _ = k_means(features.astype(np.float32), cells, seed=seed, iterations=ITERATIONS)
    return np.rint(centers).astype(np.int8)
