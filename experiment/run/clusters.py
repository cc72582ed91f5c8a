"""k-means of public features.

It is deterministic: a resumed run must choose the same rows and send the same cells.
"""

from __future__ import annotations

import warnings

import numpy as np


def k_means(
    features: np.ndarray, count: int, *, seed: int, iterations: int
) -> tuple[np.ndarray, np.ndarray]:
    """(centres float32 [count, d], each row's cluster int32 [n]) of float32 [n, d], n >= count.

    Where rows repeat, fewer clusters have members. Runs on one thread: the order in which several
    threads add up varies.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
        found = KMeans(count, n_init=1, max_iter=iterations, random_state=seed).fit(features)
    return found.cluster_centers_, found.labels_
