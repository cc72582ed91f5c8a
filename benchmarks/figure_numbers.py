"""The numbers behind docs/figures: CVPR20 Figures 5 to 8, Theorem 10, and screening against SVT.

SVT is the Sparse Vector Technique. Everything is computed from labelwall's curves; only PRINTED is
copied from the paper, for comparison. CVPR20's own figures use the classic conversion, so Figures 5
and 8 do; the others use labelwall's.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from diagnosed_screening import screening_terms

from labelwall.teacher.accounting.conversion import Conversion, epsilon_from_rdp
from labelwall.teacher.accounting.curves import (
    ORDERS,
    argmax_rdp,
    gaussian_rdp,
    pure_rdp,
    screening_rdp,
)

QUERIES = 8192
DELTA = 1e-5
GAMMA = 0.25
MAX_VOTES, THRESHOLD, SIGMA = 300, 210, 85.0  # k, T, sigma_1 of CVPR20 Figures 5 to 8
SCREENING = {"max_votes": MAX_VOTES, "threshold": THRESHOLD, "sigma": SIGMA}
CLASSES = 10
PLURALITIES = (30, 100, 210, 250, 300)  # ceil(k/c), T and k, as in the paper, and two between
DATA_DEPENDENT = "screening, data-dependent"
DATA_DEPENDENT_NOTE = "NOT RELEASABLE where the votes come from private rows."
PRINTED = {
    "Gaussian, no sampling": 5.67,
    "screening, no sampling": 4.43,
    DATA_DEPENDENT: 3.83,
    "Gaussian, gamma=0.25": 1.313,
    "screening, gamma=0.25": 1.04,
}


def epsilons(
    rdp: np.ndarray, counts: np.ndarray, delta: float = DELTA, conversion: Conversion = "classic"
) -> np.ndarray:
    """Epsilon of ``counts`` (int64 [n]) releases of one curve, ``rdp`` float64 [n_orders].

    float64 [n].
    """
    return np.array(
        [epsilon_from_rdp(ORDERS, count * rdp, delta, conversion)[0] for count in counts]
    )


@cache
def terms(gamma: float) -> np.ndarray:
    """``terms_at`` labelwall's orders."""
    return terms_at(ORDERS, gamma)


def terms_at(orders: np.ndarray, gamma: float) -> np.ndarray:
    """The screening curve by plurality, float64 [MAX_VOTES + 1, n_orders]."""
    return screening_terms(orders, np.arange(MAX_VOTES + 1), **SCREENING, sample_rate=gamma)


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
    dependent = [
        epsilon_from_rdp(ORDERS, spent[count - 1], DELTA, "classic")[0] for count in counts
    ]
    found = {name: epsilons(rdp, counts) for name, rdp in curves.items()} | {
        DATA_DEPENDENT: np.array(dependent)
    }
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


@dataclass(frozen=True)
class Bound10:
    """CVPR20 Theorem 10 at one setting.

    ``epsilon`` as printed, and whether its conditions on m and m_select hold.
    """

    epsilon: float
    applies: bool


@dataclass(frozen=True)
class Setting:
    """A setting of Theorem 10, with noise scales in votes. Defaults: SVHN in CVPR20 section 4.1."""

    gamma: float = 0.03
    sigma_1: float = 200.0
    sigma_2: float = 60.0
    delta: float = 1e-6
    max_votes: int = 800
    threshold: int = 480


def theorem_10(s: Setting, asked: int, answered: int) -> Bound10:
    """20 gamma sqrt(log(1/delta)) (sqrt(m) / sigma_1 + sqrt(m_selected) / sigma_2).

    And whether the theorem's conditions hold.
    """
    log_delta = math.log(1 / s.delta)
    noisy_counts = math.sqrt(asked) / s.sigma_1 + math.sqrt(answered) / s.sigma_2
    epsilon = 20 * s.gamma * math.sqrt(log_delta) * noisy_counts
    room = min(s.sigma_1, s.sigma_2) ** 2 * math.log(1 / s.gamma) ** 2 - 2
    min_asked = 4 * log_delta * s.sigma_1**2 / (s.gamma**2 * room) if room > 0 else math.inf
    max_asked, max_answered = (
        log_delta * sigma**2 / (n * s.gamma**2) for sigma, n in ((s.sigma_1, 3), (s.sigma_2, 6))
    )
    noisy = s.gamma < 0.1 and s.sigma_1 >= math.sqrt(5) and s.sigma_2 >= 2 * math.sqrt(5)
    return Bound10(epsilon, noisy and min_asked <= asked <= max_asked and answered <= max_answered)


def exact_cost(s: Setting, asked: int, answered: int) -> float:
    """labelwall's ``tight`` certificate for the same caps."""
    noise = {"sample_rate": s.gamma}
    screening = screening_rdp(
        ORDERS, max_votes=s.max_votes, threshold=s.threshold, sigma=s.sigma_1, **noise
    )
    total = asked * screening + answered * argmax_rdp(ORDERS, sigma=s.sigma_2, **noise)
    return epsilon_from_rdp(ORDERS, total, s.delta)[0]


def screening_by_distance(distances: np.ndarray, queries: int = QUERIES) -> dict[str, np.ndarray]:
    """Epsilon of ``queries`` screenings of plurality T - distance, float64 [n] by analysis.

    The first two are releasable and do not depend on the distance; the third is data-dependent.
    """
    furthest = int(distances.max()) + 1
    # Pluralities on both sides of the threshold.
    noise = {"max_votes": 2 * furthest, "threshold": furthest, "sigma": SIGMA}
    found = {}
    for name, gamma in (("screening", 1.0), (f"screening, gamma={GAMMA}", GAMMA)):
        curve = screening_rdp(ORDERS, **noise, sample_rate=gamma)
        found[name] = np.repeat(
            epsilons(curve, np.array([queries]), conversion="canonne"), len(distances)
        )
    near = [
        screening_rdp(ORDERS, max_votes=2, threshold=int(d) + 1, sigma=SIGMA, sample_rate=1.0)
        for d in distances
    ]
    found[DATA_DEPENDENT] = np.array(
        [epsilon_from_rdp(ORDERS, queries * rdp, DELTA)[0] for rdp in near]
    )
    return found


def sparse_vector(distances: np.ndarray, queries: int = QUERIES, gamma: float = 1.0) -> np.ndarray:
    """Epsilon of the Sparse Vector Technique on the same queries with the same noise, float64 [n].

    A run compares plurality + Laplace(b2) with T + Laplace(b1) until the first "above" and is
    (1/b1 + 2/b2)-DP for queries of sensitivity 1 that move either way (Dwork-Roth 2014, Theorem
    3.23; Lyu-Su-Li 2017, Theorem 4); the threshold's noise is then drawn anew. b2 = 2^(1/3) b1 is
    the cheapest split at a total variance of SIGMA^2. Runs are capped at the expected number of
    "above", rounded up, plus the last one, and composed by RDP or by adding up, whichever is
    smaller. ``gamma``: each run on one fresh Poisson sample, log(1 + gamma (e^epsilon - 1)).
    """
    b1, b2 = _laplace_scales()
    run = math.log1p(gamma * math.expm1(1 / b1 + 2 / b2))
    costs = []
    for distance in distances:
        runs = math.ceil(expected_above(float(distance), queries)) + 1
        rdp = runs * pure_rdp(ORDERS, epsilon=run)
        costs.append(min(runs * run, epsilon_from_rdp(ORDERS, rdp, DELTA)[0]))
    return np.array(costs)


def _laplace_scales() -> tuple[float, float]:
    """(b1, b2) of threshold and query: least 1/b1 + 2/b2 at 2 b1^2 + 2 b2^2 = SIGMA^2."""
    b1 = SIGMA / math.sqrt(2 * (1 + 2 ** (2 / 3)))
    return b1, 2 ** (1 / 3) * b1


def expected_above(distance: float, queries: int, points: int = 400) -> float:
    """Expected number of "above" among ``queries`` of plurality T - distance, a renewal process.

    Given the threshold's noise a run's length is geometric; ``points`` quantiles of the noise
    represent its law.
    """
    b1, b2 = _laplace_scales()
    above = _laplace_tail((distance + _laplace_quantiles(points) * b1) / b2)  # [points]
    steps = np.arange(queries)
    # Probability that a run ends at its step-th query.
    ends = np.array([np.mean(above * np.exp(step * np.log1p(-above))) for step in steps])
    renewals = np.zeros(queries)
    for step in steps:
        renewals[step] = ends[step] + ends[:step] @ renewals[:step][::-1]
    return float(renewals.sum())


def _laplace_quantiles(points: int) -> np.ndarray:
    share = (np.arange(points) + 0.5) / points
    return np.where(
        share < 0.5, np.log(2 * np.minimum(share, 0.5)), -np.log(2 * np.minimum(1 - share, 0.5))
    )


def _laplace_tail(x: np.ndarray) -> np.ndarray:
    """P(Z > x) of the standard Laplace law."""
    return np.where(x > 0, 0.5 * np.exp(-np.abs(x)), 1 - 0.5 * np.exp(-np.abs(x)))
