"""Which public rows to ask, by public data alone."""

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
    chosen; random ones if it is None.
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
    rng, size = np.random.default_rng(seed), len(features)
    late, turn = np.empty(size, dtype=bool), np.empty(size, dtype=np.int64)  # outside that half
    for cluster in np.unique(member):
        rows = rng.permutation(np.flatnonzero(member == cluster))
        spread = _spread(features[rows])
        late[rows] = spread > np.quantile(spread, TYPICAL_SHARE)
        turn[rows] = np.where(late[rows], late[rows].cumsum(), (~late[rows]).cumsum())
    order = rng.permutation(size)
    return order[np.lexsort((turn[order], late[order]))][:count]


def _spread(features: np.ndarray) -> np.ndarray:
    """Mean distance of each row to its nearest rows, float64 [n]: small where rows are dense."""
    from sklearn.metrics import pairwise_distances

    near = min(NEIGHBOURS + 1, len(features))  # the nearest row is the row itself
    distances: np.ndarray = np.partition(pairwise_distances(features), near - 1, axis=1)
    return distances[:, :near].mean(axis=1)


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
