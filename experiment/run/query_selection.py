"""Which public rows to ask, by public data alone."""

import math
import warnings

import numpy as np

ROWS_A_CLUSTER = 5  # queries asked of each cluster
NEIGHBOURS = 20  # nearest rows of the same cluster, whose mean distance measures density
TYPICAL_SHARE = 0.5  # of a cluster's rows may be asked first
ITERATIONS = 20  # of k-means; it covers the pool before it converges


def choose_queries(
    seed: int, number: int, status: np.ndarray, count: int, features: np.ndarray | None = None
) -> np.ndarray:
    """Rows of the public pool to ask in round ``number``: int64 [<= count], in request order.

    ``status``: uint8 [n_public], 0 never asked, 1 asked without an answer, 2 answered. Rows never
    asked come first, then those without an answer (under new features they are new queries).
    ``features``: float32 [n_public, d] under the round's extractor, by which typical rows are
    chosen; random ones where it is None.
    """
    rng = np.random.default_rng([seed, number])
    order = rng.permutation(len(status))
    order = order[status[order] < 2]
    order = order[np.argsort(status[order], kind="stable")]
    never_asked = order[status[order] == 0]
    if features is None or len(never_asked) <= count:
        return order[:count]
    return never_asked[typical_rows(features[never_asked], count, int(rng.integers(1 << 31)))]


def typical_rows(features: np.ndarray, count: int, seed: int) -> np.ndarray:
    """``count`` <= n rows of float32 [n, d] that represent many others: int64 [count].

    A row's label helps a semi-supervised student as far as the rows around it share the label, and
    neighbours vote clearly where rows are dense. So k-means covers the pool, and each cluster in
    turn gives rows of its densest half. After Hacohen et al. 2022 ("Active learning on a budget",
    section 3), who take the densest row of each of ``count`` clusters.
    """
    _, member = k_means(features, max(1, count // ROWS_A_CLUSTER), seed=seed, iterations=ITERATIONS)
    # Rows outside their cluster's typical ones. They are asked after those of all clusters.
    late = np.ones(len(features), dtype=bool)
    for cluster in np.unique(member):
        rows = np.flatnonzero(member == cluster)
        by_density = np.argsort(_spread(features[rows]), kind="stable")
        late[rows[by_density[: math.ceil(TYPICAL_SHARE * len(rows))]]] = False
    order = np.random.default_rng(seed).permutation(len(features))
    order = order[np.argsort(late[order], kind="stable")]
    turn = np.empty(len(features), dtype=np.int64)  # rows of the same cluster before this row
    for cluster in np.unique(member):
        places = np.flatnonzero(member[order] == cluster)
        turn[places] = np.arange(len(places))
    return order[np.lexsort((turn, late[order]))][:count]


def _spread(features: np.ndarray) -> np.ndarray:
    """Mean distance of each row to its nearest rows, float64 [n]: small where rows are dense."""
    squares = np.einsum("ij,ij->i", features, features)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * features @ features.T, 0))
    near = min(NEIGHBOURS + 1, len(features))  # the nearest row is the row itself
    return np.partition(distances, near - 1, axis=1)[:, :near].mean(axis=1)


def k_means(
    features: np.ndarray, count: int, *, seed: int, iterations: int
) -> tuple[np.ndarray, np.ndarray]:
    """(centres float32 [count, d], each row's cluster int32 [n]) of float32 [n, d], n >= count.

    Deterministic, since a resumed run must choose and send the same: on one thread, as the order in
    which several add up varies. Where rows repeat, fewer clusters have members.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
        fitted = KMeans(count, n_init=1, max_iter=iterations, random_state=seed).fit(features)
    return fitted.cluster_centers_, fitted.labels_
