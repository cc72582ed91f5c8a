"""The certificate of a noisy argmax: a supremum over all contests with three outcomes.

The mechanism releases argmax_j (n_j + Z_j), Z_j independent N_Z(0, sigma^2), ties to the lowest
class, from a Poisson sample of rate gamma. One record that joins the sample moves n by 0, e_a or
e_a - e_b.

**Reduction.** Fix the sample of the other records and the noise of every class but a and b; m is
the best of those. What is left is a contest between a, b and "other" in x = n_a - m and
y = n_b - m, with law P_{x,y} without the record, and M = (1 - gamma) P_{x,y} + gamma P_{x+1,y-1}
with it. The Renyi divergence is jointly quasi-convex, so D_alpha of the release, in both
directions, is at most the supremum over contests. (Sampling at less than gamma costs less: both
divergences are convex in gamma and zero at gamma = 0.) The shift (1, 0) is the limit y -> -infinity
of (1, -1).

**Tie orders.** a>b>m and b>a>m suffice: m>a>b at (x, y) is a>b>m at (x - 1, y - 1), a>m>b at (x, y)
is b>a>m at (x, y - 1), and b>m>a, m>b>a likewise, with both laws of a pair translated alike. They
are numbered 0 and 1 below.

**Closing the infinite range.** Let L be an integer, L > alpha, and G the event |Z_a|, |Z_b| <= L
for the noises (u, v) relative to the contest without the record. On G, x <= -L - 1 never lets a
win, so all such x are one contest; x >= L always puts a before m, so m is out and only x - y
counts, which y = -L - 1 .. L then covers; the same for y. Hence every contest agrees on G with one
of -L - 1 <= x, y <= L. With h(A) = M(A)^t P(A)^(1-t), t in {alpha, 1 - alpha}, convex and
homogeneous and therefore subadditive, every contest's moment is at most

    sum over outcomes of h(outcome and G)  +  tau,

where tau >= sum over points outside G of M^t P^(1-t).

The sums are restricted to G, not renormalised. Written as sum P (r^t - 1 - t (r - 1)), r = M / P,
they leave out (t - 1) P(not G) - t M(not G): at most (alpha - 1) P(not G) for t = alpha,
(alpha - 1) M(not G) for t = 1 - alpha, and both masses are below tau of t = alpha. The excess
returned adds (1 + alpha) times the larger tau of the two directions.

**tau.** With l = exp((u - v - 1) / sigma^2) = P'/P, P l^s is exp(s (s - 1) / sigma^2) times a
discrete Gaussian centred at (s, -s). For |s| <= L, (u - s)^2 >= (L - s)^2 + (u - L)^2 past L, so
each of its four tails is at most half of exp(-(L - |s|)^2 / (2 sigma^2)); call

    T(s) = 2 exp(s (s - 1) / sigma^2 - (L - |s|)^2 / (2 sigma^2)) >= sum outside G of P l^s.

- t = alpha, n = ceil(alpha): r^t <= 1 + r^n, and r^n is binomial in l:
  tau = T(0) + sum_j Binomial(j; n, gamma) T(j).
- t = 1 - alpha: r >= 1 - gamma, and r^t <= (1 - gamma) + gamma l^t by convexity:
  tau = min((1 - gamma)^t T(0), T(0) + gamma T(t)).

Both are far below the crude 4 exp(alpha (alpha - 1) / sigma^2 - (L - alpha)^2 / (2 sigma^2)) when
gamma < 1, which keeps L small at high orders.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from .discrete_gaussian import log_excess, log_mixed_ratio, log_moment_excess, log_pmf

_LOG_TAIL = -60.0  # log of (1 + alpha) tau: 1e-26, against excesses of 1e-12 and more
_BLOCK = 1 << 16  # contests in a block
_BINS = 1 << 14  # of log r, for the bounds that skip contests
_SLACK = 1e-9  # by which the bins exceed the range of log r, for rounding
SLOWEST_SIGMA = 400.0
_MAX_LENGTH = 5000  # L beyond which nothing is enumerated, 100 million contests
# Enumerated: L up to _SHORT, or up to _STRETCH times the shortest L.
_SHORT = 150
_STRETCH = 2.5
_LOWEST = 1.05  # order: its L is the shortest
# By which a bound must fall short to skip a contest; covers rounding in the bound itself.
_MARGIN = 1e-6


@lru_cache(maxsize=4096)
def argmax_log_excess(order: float, sigma: float, gamma: float) -> float:
    """Upper bound of log(moment - 1), the worst contest in both directions, at an order above 1.

    ``sigma`` in votes. Time grows with L^2, L about 11 sigma: tenths of a second at sigma = 25,
    seconds at sigma = 200 (one core). +infinity, "no bound", where the enumeration would be too
    long: sigma above SLOWEST_SIGMA, and orders so high for sigma that alpha rather than sigma makes
    L long; there the contest gains little over the Gaussian bound anyway.
    """
    if sigma > SLOWEST_SIGMA:
        return math.inf
    length, shortest = reach(order, sigma, gamma), reach(_LOWEST, sigma, gamma)
    if length >= _MAX_LENGTH or length > max(_SHORT, _STRETCH * shortest):
        return math.inf
    worst = _worst_contest(order, sigma, gamma, length)
    return float(np.logaddexp(worst, _log_tail(order, sigma, gamma, length)))


def reach(order: float, sigma: float, gamma: float) -> int:
    """The smallest L > order, up to a step of 1%, whose tail is below exp(-60)."""

    def covers(length: int) -> bool:
        return _log_tail(order, sigma, gamma, length) <= _LOG_TAIL

    lengths = [math.ceil(order) + 1]
    while not covers(lengths[-1]):
        for _ in range(32):
            lengths.append(lengths[-1] + max(1, lengths[-1] // 100))
    return lengths[bisect_left(lengths, True, key=covers)]  # tails fall with the length


def _log_tail(order: float, sigma: float, gamma: float, length: int) -> float:
    """log of (1 + alpha) tau, the larger of both directions (module docstring)."""
    from scipy.special import gammaln  # takes a quarter of a second

    def tail(s: np.ndarray) -> np.ndarray:
        return math.log(2) + s * (s - 1) / sigma**2 - (length - np.abs(s)) ** 2 / (2 * sigma**2)

    n = math.ceil(order)
    j = np.arange(n + 1, dtype=np.float64)
    none = float(tail(np.zeros(1))[0])
    log_gamma = math.log(gamma)
    if gamma == 1.0:
        added = float(tail(j)[-1])
        removed = math.inf
    else:
        chances = (
            gammaln(n + 1)
            - gammaln(j + 1)
            - gammaln(n - j + 1)
            + j * log_gamma
            + (n - j) * math.log1p(-gamma)
        )
        added = float(np.logaddexp.reduce(chances + tail(j)))
        removed = (1 - order) * math.log1p(-gamma) + none
    convex = np.logaddexp(none, log_gamma + float(tail(np.array([1 - order]))[0]))
    return math.log1p(order) + max(float(np.logaddexp(none, added)), min(removed, float(convex)))


def _worst_contest(order: float, sigma: float, gamma: float, length: int) -> float:
    """Largest log excess over all contests on G, tie orders and directions.

    phi_t(r) = r^t - 1 - t (r - 1) is convex, so within a bin of log r it is largest at an edge.
    """
    # Log l = (u - v - 1) / sigma^2 lies between these ends on G, and log r between their mixtures.
    ends = np.array([-2 * length - 1, 2 * length - 1]) / sigma**2
    low, high = log_mixed_ratio(ends, gamma)
    worst, edges = -math.inf, np.linspace(low - _SLACK, high + _SLACK, _BINS + 1)
    at_edges = [(t, log_moment_excess(t, edges)) for t in (order, 1.0 - order)]
    directions = [(t, np.maximum(log_phi[:-1], log_phi[1:])) for t, log_phi in at_edges]
    for tie in (0, 1):
        for log_p, log_shift in _contests(sigma, length, tie):
            log_r = log_mixed_ratio(log_shift, gamma)
            places = (log_r - edges[0]) * (_BINS / (edges[-1] - edges[0]))
            bins = np.clip(places.astype(np.int64), 0, _BINS - 1)
            for t, largest in directions:
                worst = _worse(t, log_p, log_r, log_p + largest.take(bins), worst)
    return worst


def _worse(
    t: float, log_p: np.ndarray, log_r: np.ndarray, bounds: np.ndarray, so_far: float
) -> float:
    """The larger of ``so_far`` and the largest log excess of n contests.

    ``log_p``, ``log_r``: float64 [3, n]; ``bounds``: likewise, of the logs of the three products
    p phi_t. Contests that are bounded by less than ``so_far`` are skipped: first by three times the
    largest product, then by the sum of the three.
    """

    def excess(contests: np.ndarray) -> float:
        return float(log_excess(t, log_p[:, contests], log_r[:, contests]).max(initial=-np.inf))

    chosen = np.flatnonzero(bounds.max(axis=0) + math.log(3) >= so_far - _MARGIN)
    if not len(chosen):
        return so_far
    sums = np.logaddexp.reduce(bounds[:, chosen], axis=0)
    so_far = max(so_far, excess(chosen[[sums.argmax()]]))
    return max(so_far, excess(chosen[sums >= so_far - _MARGIN]))


def _contests(sigma: float, length: int, tie: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of (log P, log P'/P), float64 [3, n], of every contest -L - 1 <= x, y <= L on G.

    The three outcomes are a, b, other. Along a diagonal (x - y constant) the region where a wins
    grows by one line, u = -x with v <= -y - tie, and the one where b wins by v = -y with
    u <= -x - 1 + tie: a row of the table is the row before, moved by one, plus a product.
    """
    z, size = np.arange(-length, length + 1), 2 * length + 2
    plain, added, removed = (log_pmf(z - shift, sigma) for shift in (0, 1, -1))
    # Of u and v, without the record and with it, at -L - 1 .. L + 1: [2, 2, 2L + 3].
    laws = np.pad(
        [[plain, added], [plain, removed]], ((0, 0), (0, 0), (1, 1)), constant_values=-np.inf
    )
    (u, v), (u_up_to, v_up_to) = laws, np.logaddexp.accumulate(laws, axis=2)

    def at(values: np.ndarray, offset: int) -> np.ndarray:
        """The values at -x - offset for x = -L - 1 .. L: [2, 2L + 2]."""
        return values[:, ::-1][:, offset : offset + size]

    u_at, u_below, u_other = at(u, 0), at(u_up_to, 1 - tie), at(u_up_to, 1)
    v_at, v_below, v_other = at(v, 0), at(v_up_to, tie), at(v_up_to, 1)
    rows_a = np.full((2, size), -np.inf)
    rows_b = np.logaddexp.accumulate(v[:, ::-1], axis=1)[:, :size]  # v >= -y: a can not win
    rows = max(1, _BLOCK // size)
    for start in range(0, size, rows):
        stop = min(start + rows, size)
        block = np.empty((2, 3, stop - start, size))  # [law, outcome, x, y]
        for x in range(start, stop):
            # Each row one place to the right.
            rows_a = np.concatenate([rows_a[:, :1], rows_a[:, :-1]], axis=1)
            rows_b = np.concatenate([np.full((2, 1), -np.inf), rows_b[:, :-1]], axis=1)
            rows_a = np.logaddexp(rows_a, u_at[:, [x]] + v_below)
            rows_b = np.logaddexp(rows_b, v_at + u_below[:, [x]])
            block[:, 0, x - start], block[:, 1, x - start] = rows_a, rows_b
            block[:, 2, x - start] = u_other[:, [x]] + v_other  # neither reaches m
        flat = block.reshape(2, 3, -1)
        log_p = flat[0]
        with np.errstate(invalid="ignore"):
            yield log_p, np.where(np.isneginf(log_p), 0.0, flat[1] - log_p)
