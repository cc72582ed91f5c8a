"""The discrete Gaussian in log space, and Renyi moments of finite laws without cancellation.

Shared by the exact curves. N_Z(0, sigma^2) is the discrete Gaussian. Probabilities are natural
logarithms throughout: at high orders a moment is made of events far below the smallest float64.
"""

import math

import numpy as np

# Relative inflation of every computed (moment - 1): cumulative sums of a few thousand float64 terms
# are exact to about 1e-12, which an amplified difference can turn into 1e-10. Upper bounds stay
# upper bounds.
ROUNDING = 1e-8
MAX_SCALE = 2.0**50  # of any noise, which must fit int64, in magnitude and next to votes
_SERIES_BELOW = 0.02  # |t u| under which r^t - 1 - t (r - 1) is summed as a binomial series
_SERIES_TERMS = 10
_MAX_EXPONENT = 600.0  # exp() stays finite below


def log_normaliser(sigma: float) -> float:
    """log of the sum over all integers z of exp(-z^2 / (2 sigma^2)).

    By Poisson summation it is sigma sqrt(2 pi) (1 + 2 exp(-2 pi^2 sigma^2) + ...): from sigma = 2
    on, float64 sees only the first term.
    """
    if sigma >= 2:
        return math.log(sigma * math.sqrt(2 * math.pi))
    z = np.arange(1, 120, dtype=np.float64)
    return math.log1p(2 * float(np.exp(-(z**2) / (2 * sigma**2)).sum()))


def log_pmf(z: np.ndarray, sigma: float) -> np.ndarray:
    """log P(Z = z), float64, for integers ``z`` of any shape, Z ~ N_Z(0, sigma^2)."""
    return -(np.asarray(z, dtype=np.float64) ** 2) / (2 * sigma**2) - log_normaliser(sigma)


def log_at_least(z: np.ndarray, sigma: float) -> np.ndarray:
    """log P(Z >= z), float64 [n], for consecutive ascending integers ``z`` [n].

    Relative accuracy in both tails: summed from the far end, which starts 40 sigma past the last z.
    """
    margin = math.ceil(40 * sigma) + 40
    values = np.arange(int(z[0]), int(z[-1]) + margin + 1)
    return np.logaddexp.accumulate(log_pmf(values, sigma)[::-1])[::-1][: len(z)]


def log_mixed_ratio(log_ratio: np.ndarray, gamma: float) -> np.ndarray:
    """log((1 - gamma) + gamma l), elementwise, from log l.

    The likelihood ratio after Poisson sampling at rate gamma.
    """
    if gamma == 1.0:
        return log_ratio
    near = np.log1p(gamma * np.expm1(np.minimum(log_ratio, 1.0)))
    far = np.logaddexp(math.log1p(-gamma), math.log(gamma) + log_ratio)
    return np.where(log_ratio < 1.0, near, far)


def log_moment_excess(t: float, log_ratio: np.ndarray) -> np.ndarray:
    """log of r^t - 1 - t (r - 1), elementwise, from log r.

    t lies outside [0, 1], so the value is never negative. A law's moment E[r^t] under E[r] = 1
    exceeds 1 by the mean of this convex function, a sum of positive terms. Three forms: a binomial
    series in u = r - 1 where t u is small; expm1; and a factor taken out where exp() would
    overflow.
    """
    u = np.expm1(np.minimum(log_ratio, _MAX_EXPONENT))
    largest = np.maximum(t * log_ratio, log_ratio)
    small = np.abs(u) * max(abs(t), 1.0) < _SERIES_BELOW
    middle = ~small & (largest < _MAX_EXPONENT)
    out = np.empty_like(u)
    with np.errstate(divide="ignore"):
        out[small] = np.log(_binomial_tail(t, u[small]))
        out[middle] = np.log(np.maximum(np.expm1(t * log_ratio[middle]) - t * u[middle], 0.0))
    rest = ~small & ~middle
    high, lr = largest[rest], log_ratio[rest]
    out[rest] = high + np.log(
        np.exp(t * lr - high) - t * np.exp(lr - high) + (t - 1) * np.exp(-high)
    )
    return out


def _binomial_tail(t: float, u: np.ndarray) -> np.ndarray:
    """Sum over j >= 2 of binomial(t, j) u^j, by Horner.

    The terms left out are below 0.02^9 of the first.
    """
    total = np.zeros_like(u)
    for j in range(_SERIES_TERMS, 1, -1):
        total = (
            (t - j + 1) / j * u * (1.0 + total) if j > 2 else t * (t - 1) / 2 * u**2 * (1.0 + total)
        )
    return total


def log_excess(t: float, log_p: np.ndarray, log_ratio: np.ndarray) -> np.ndarray:
    """log of sum_o p_o (r_o^t - 1 - t (r_o - 1)), float64 [n].

    ``log_p``, ``log_ratio``: log p and log r, float64 [n_outcomes, n]. With sum p = sum p r = 1 and
    r = M/P this is (moment of order t) - 1: t = alpha gives D_alpha(M || P), t = 1 - alpha gives
    D_alpha(P || M). Outcomes of probability zero (log p = -inf, any r) count nothing.
    """
    terms = log_p + log_moment_excess(t, log_ratio)
    return np.logaddexp.reduce(terms, axis=0)


def rdp_from_log_excess(orders: np.ndarray, excess: np.ndarray) -> np.ndarray:
    """D_alpha = log(1 + excess) / (alpha - 1), rounded up: float64 [n_orders].

    ``excess``: log(excess), float64 [n_orders]. An underflow counts as 1e-300, not as 0.
    """
    return np.maximum(
        np.logaddexp(0.0, excess + math.log1p(ROUNDING)) / (orders - 1) * (1 + 1e-14), 1e-300
    )
