"""Which public rows to ask. Choosing looks at public things alone and costs no privacy; asking does."""

from __future__ import annotations

import math

import numpy as np

from labelwall.experiment.run.clusters import k_means

ROWS_A_CLUSTER = 5  # queries asked of each cluster
NEIGHBOURS = 20  # a row is as typical as its nearest ones of the same cluster are near
TYPICAL_SHARE = 0.5  # of a cluster's rows may be asked first
ITERATIONS = 20  # of k-means, which need not converge to cover the pool


def choose_queries(
    seed: int, number: int, status: np.ndarray, count: int, features: np.ndarray | None = None
) -> np.ndarray:
    """Rows of the public pool to ask in round ``number``: int64 [<= count], in request order.

    ``status``: uint8 [n_public], 0 never asked, 1 asked without an answer, 2 answered. Rows never asked come first, then those
    without an answer (under new features they are new queries); an answered row is not asked again.
    ``features``: of all public rows under the round's extractor, float32 [n_public, d]: of the rows never asked, typical ones
    are chosen; at random where None.
    """
    rng = np.random.default_rng([seed, number])
    order = rng.permutation(len(status))
    order = order[status[order] < 2]
    order = order[np.argsort(status[order], kind="stable")]
    fresh = order[status[order] == 0]
    if features is None or len(fresh) <= count:
        return order[:count]
    return fresh[typical_rows(features[fresh], count, int(rng.integers(1 << 31)))]


def typical_rows(features: np.ndarray, count: int, seed: int) -> np.ndarray:
    """``count`` <= n rows of float32 [n, d] that stand for many others: int64 [count].

    A row's label helps a semi-supervised student as far as the rows around it share the label, and neighbours vote clearly
    where rows are dense: so k-means covers the pool, and each cluster offers its densest half in turn. After Hacohen et al.
    2022 ("Active learning on a budget", section 3), who take the densest row of each of ``count`` clusters.
    """
    _, member = k_means(features, max(1, count // ROWS_A_CLUSTER), seed=seed, iterations=ITERATIONS)
    late = np.ones(
        len(features), dtype=bool
    )  # not among its cluster's typical rows: asked once those of all are used up
    for cluster in np.unique(member):
        rows = np.flatnonzero(member == cluster)
        dense = np.argsort(_spread(features[rows]), kind="stable")[
            : math.ceil(TYPICAL_SHARE * len(rows))
        ]
        late[rows[dense]] = False
    order = np.random.default_rng(seed).permutation(len(features))
    order = order[np.argsort(late[order], kind="stable")]
    turn = np.empty(len(features), dtype=np.int64)  # how many rows of its cluster come before a row
    for cluster in np.unique(member):
        mine = np.flatnonzero(member[order] == cluster)
        turn[mine] = np.arange(len(mine))
    return order[np.lexsort((turn, late[order]))][:count]


def _spread(features: np.ndarray) -> np.ndarray:
    """Mean distance of each row to its nearest others, float64 [n]: small where rows are dense."""
    squares = np.einsum("ij,ij->i", features, features)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * features @ features.T, 0))
    near = min(NEIGHBOURS + 1, len(features))  # a row is its own nearest
    return np.partition(distances, near - 1, axis=1)[:, :near].mean(axis=1)
