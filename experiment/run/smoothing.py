"""Probabilities of PUBLIC rows, averaged with those of the rows around them: post-processing, free.

A linear model errs alone where classes have curved borders or the noise has bent its own; the rows
nearby mostly have the same label, and their errors differ.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...teacher.search.cpu import ExactIndex
from .sums_model import MAX_ROWS

Says = Callable[[np.ndarray], np.ndarray]

# Tried on two sets of images, on texts and on characters (docs/decisions.md).
NEIGHBOURS = 10
SHARE = 0.3  # of the neighbours in what is said


def with_neighbours(says: Says, public: np.ndarray) -> Says:
    """What ``says`` says of rows, mixed with its mean over the nearest public rows of each.

    ``says``: of rows int8 [n, d]: float32 [n, c]; the result is such a function, too. ``public``:
    int8 [m, d], m >= 1, of which the first MAX_ROWS count. A public row is its own nearest one.
    Rows do not depend on one another, so that a resumed run finds the same.
    """
    near = ExactIndex(public[:MAX_ROWS], np.arange(len(public[:MAX_ROWS])))
    said, count = says(public[:MAX_ROWS]), min(NEIGHBOURS, len(near))

    def mixed(features: np.ndarray) -> np.ndarray:
        around = said[near.nearest(features, count).rows].mean(axis=1)
        found: np.ndarray = ((1 - SHARE) * says(features) + SHARE * around).astype(np.float32)
        return found

    return mixed
