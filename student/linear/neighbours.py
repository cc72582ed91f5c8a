"""Predictions that are averaged with those of the nearest PUBLIC rows: post-processing, free.

A linear model errs alone if classes have curved borders or the noise has bent its own. The rows
nearby mostly have the same label, and their errors differ.
"""

from collections.abc import Callable

import numpy as np

from ...wall.matrices import nearest_cells
from .measure import MAX_ROWS
from .tuning import NEIGHBOURS, NEIGHBOURS_SHARE

Says = Callable[[np.ndarray], np.ndarray]  # predictions float32 [n, c] of rows int8 [n, d]


def with_neighbours(says: Says, public: np.ndarray) -> Says:
    """Predictions by ``says``, mixed with their mean over the nearest public rows of each row.

    ``public``: int8 [m, d], m >= 1, of which the first MAX_ROWS count. A public row is its own
    nearest one. Rows do not depend on one another, so that a resumed run gives the same.
    """
    public = public[:MAX_ROWS]
    predicted, count = says(public), min(NEIGHBOURS, len(public))

    def mixed(features: np.ndarray) -> np.ndarray:
        around = predicted[nearest_cells(features, public, count)].mean(axis=1)
        mean = (1 - NEIGHBOURS_SHARE) * says(features) + NEIGHBOURS_SHARE * around
        return np.asarray(mean.astype(np.float32))

    return mixed
