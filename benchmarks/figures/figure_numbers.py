"""The numbers of CVPR20's Figure 5, from labelwall's curves; only PRINTED is copied from the paper.

Its data-dependent curve takes each query's plurality where a certificate takes the worst one: NOT
RELEASABLE where the votes come from private rows, and it does not combine with subsampling.
"""

import math
from collections.abc import Iterable

import numpy as np

from labelwall.teacher.accounting.curves import ORDERS, gaussian_rdp, screening_rdp
from labelwall.wall.errors import InvalidInput

QUERIES = 8192
DELTA = 1e-5
GAMMA = 0.25
MAX_VOTES, THRESHOLD, SIGMA = 300, 210, 85.0  # k, T, sigma_1 of CVPR20 Figure 5
SCREENING = {"max_votes": MAX_VOTES, "threshold": THRESHOLD, "sigma": SIGMA}
CLASSES = 10
DATA_DEPENDENT = "screening, data-dependent"
DATA_DEPENDENT_NOTE = "NOT RELEASABLE where the votes come from private rows."
PRINTED = {
    "Gaussian, no sampling": 5.67,
    "screening, no sampling": 4.43,
    DATA_DEPENDENT: 3.83,
    "Gaussian, gamma=0.25": 1.313,
    "screening, gamma=0.25": 1.04,
}


def classic_epsilon(rdp: np.ndarray, delta: float) -> float:
    """Of a curve at ORDERS, float64 [n_orders]: Mironov 2017, Proposition 3."""
    return float((rdp - math.log(delta) / (ORDERS - 1)).min())


def epsilons(rdps: Iterable[np.ndarray]) -> np.ndarray:
    """The paper's conversion of curves float64 [n_orders]: float64 [n]."""
    return np.array([classic_epsilon(rdp, DELTA) for rdp in rdps])


def shortfall() -> float:
    """By how much the worst plurality costs more than T and k at most, over whole orders.

    It is largest where k overtakes T, at 77; orders 2 to 200 were tried.
    """
    table = screening_terms(np.arange(74.0, 81.0), np.arange(MAX_VOTES + 1), **SCREENING)
    worst = table.max(axis=0)
    return float((worst / np.maximum(table[THRESHOLD], table[MAX_VOTES])).max() - 1)


def figure_5(counts: np.ndarray, plurality: np.ndarray) -> dict[str, np.ndarray]:
    """Epsilon after ``counts`` queries (int64 [n]) by PRINTED's five analyses, float64 [n] each.

    ``plurality``: int64 [at least max(counts)], votes cast on each query, for the data-dependent
    curve alone.
    """
    curves = {
        f"{name}, {sampling}": curve(gamma)
        for gamma, sampling in ((1.0, "no sampling"), (GAMMA, f"gamma={GAMMA}"))
        for name, curve in (("Gaussian", _gaussian), ("screening", _screening))
    }
    votes, which = np.unique(plurality, return_inverse=True)
    # [n_queries, n_orders]
    spent = np.cumsum(screening_terms(ORDERS, votes, **SCREENING)[which], axis=0)
    found = {name: epsilons(count * rdp for count in counts) for name, rdp in curves.items()}
    found[DATA_DEPENDENT] = epsilons(spent[count - 1] for count in counts)
    return {name: found[name] for name in PRINTED}


def _gaussian(gamma: float) -> np.ndarray:
    return gaussian_rdp(ORDERS, sigma=SIGMA, sensitivity=1.0, sample_rate=gamma)


def _screening(gamma: float) -> np.ndarray:
    return screening_rdp(ORDERS, **SCREENING, sample_rate=gamma)


def simulated_plurality(queries: int = QUERIES, concentration: float = 0.3) -> np.ndarray:
    """Votes without data: int64 [queries], the largest of k = 300 votes over ten classes.

    Each query's class shares are Dirichlet(concentration, ..., concentration), its votes
    multinomial; a fixed generator.
    """
    generator = np.random.default_rng(2020)
    shares = generator.dirichlet(np.full(CLASSES, concentration), queries)
    return generator.multinomial(MAX_VOTES, shares).max(axis=1)


def screening_terms(
    orders: np.ndarray,
    plurality: np.ndarray,
    *,
    max_votes: int,
    threshold: int,
    sigma: float,
    sample_rate: float = 1.0,
) -> np.ndarray:
    """The screening curve's divergences at each plurality t, before the maximum over t.

    float64 [n, n_orders] for ``plurality`` int64 [n]. A row takes the neighbours t - 1 and t + 1
    that lie in 0..max_votes, both directions; the maximum over all t is ``screening_rdp``. With
    ``sample_rate`` below 1 the plurality is that of the OTHER sampled records: such a row
    shows where the worst case is and is no data set's data-dependent loss. Raises InvalidInput for
    votes outside 0..max_votes, and as ``screening_rdp`` does.
    """
    valid = plurality.dtype == np.int64 and plurality.ndim == 1
    if not valid or (plurality < 0).any() or (plurality > max_votes).any():
        found = f"{plurality.dtype} {list(plurality.shape)}"
        raise InvalidInput("plurality", f"int64 [n_queries] in 0..{max_votes}", found)
    rows = np.zeros((len(plurality), len(orders)))
    for row, t in zip(rows, plurality.tolist(), strict=True):
        low, high = max(t - 1, 0), min(t + 1, max_votes)
        # Votes low..high before a threshold are votes 0..high - low before the threshold less low.
        noise = {"sigma": sigma, "sample_rate": sample_rate}
        row[:] = screening_rdp(orders, max_votes=high - low, threshold=threshold - low, **noise)
    return rows
