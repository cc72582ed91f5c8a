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
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .discrete_gaussian import log_excess, log_mixed_ratio, log_moment_excess, log_pmf

_LOG_TAIL = -60.0  # log of (1 + alpha) tau: 1e-26, against excesses of 1e-12 and more
_BLOCK = 1 << 16  # contests in a block
_BINS = 1 << 14  # of log r, for the bounds that skip contests
_GROUP = 8  # neighbouring contests that are bounded together
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
    """Largest log excess over all contests on G, tie orders and directions."""
    worst, edges = -math.inf, _edges(sigma, gamma, length)
    directions = [(t, log_moment_excess(t, edges)) for t in (order, 1.0 - order)]
    for tie in (0, 1):
        for log_p, log_shift in _contests(sigma, length, tie):
            block = _Block.of(log_p, log_mixed_ratio(log_shift, gamma), edges)
            worst = max(block.worst(*phi, worst) for phi in directions)
    return worst


def _edges(sigma: float, gamma: float, length: int) -> np.ndarray:
    """Edges of bins of log r, float64 [_BINS + 1].

    On G, log l = (u - v - 1) / sigma^2 lies between the ends, so every outcome's log r is between
    their mixtures, which the bins exceed by more than rounding.
    """
    ends = np.array([-2 * length - 1, 2 * length - 1]) / sigma**2
    low, high = log_mixed_ratio(ends, gamma)
    return np.linspace(low - _SLACK, high + _SLACK, _BINS + 1)


def _largest(log_phi: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The largest log of phi_t(r) = r^t - 1 - t (r - 1) between the edges ``low`` and ``high``.

    ``log_phi``: at all edges of the bins, float64 [_BINS + 1]; edges: int64 of any shape. phi_t is
    convex, so an interval's largest value is at an end.
    """
    return np.maximum(log_phi.take(low), log_phi.take(high))


@dataclass(frozen=True)
class _Block:
    """n contests: ``log_p``, ``log_r`` float64 [3, n], ``bins`` of log r, int64 [3, n].

    Of groups of _GROUP contests, the last one shorter: ``most``, the largest log p, float64
    [3, groups]; ``low`` and ``high``, the edges around their log r, int64 [3, groups].
    """

    log_p: np.ndarray
    log_r: np.ndarray
    bins: np.ndarray
    most: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, log_p: np.ndarray, log_r: np.ndarray, edges: np.ndarray) -> "_Block":
        places = (log_r - edges[0]) * (_BINS / (edges[-1] - edges[0]))
        bins = np.clip(places.astype(np.int64), 0, _BINS - 1)
        groups = np.arange(0, log_p.shape[1], _GROUP)
        most = np.maximum.reduceat(log_p, groups, axis=1)
        low = np.minimum.reduceat(bins, groups, axis=1)
        return cls(log_p, log_r, bins, most, low, np.maximum.reduceat(bins, groups, axis=1) + 1)

    def worst(self, t: float, log_phi: np.ndarray, so_far: float) -> float:
        """The larger of ``so_far`` and the block's largest log excess.

        Contests that are bounded by less are skipped, first by groups, then one by one. An excess
        is a sum of three products p phi_t: at most three times the largest.
        """
        bound = (self.most + _largest(log_phi, self.low, self.high)).max(axis=0) + math.log(3)
        first = int(bound.argmax())
        if bound[first] < so_far - _MARGIN:
            return so_far
        so_far = max(so_far, self._excess(t, self._members(np.array([first]))))
        chosen = self._members(np.flatnonzero(bound >= so_far - _MARGIN))
        bins = self.bins.take(chosen, axis=1)
        bound = np.logaddexp.reduce(
            self.log_p.take(chosen, axis=1) + _largest(log_phi, bins, bins + 1), axis=0
        )
        so_far = max(so_far, self._excess(t, chosen[bound.argmax()][np.newaxis]))
        return max(so_far, self._excess(t, chosen[bound >= so_far - _MARGIN]))

    def _members(self, groups: np.ndarray) -> np.ndarray:
        """Contests of these groups, int64 [n]."""
        members = (groups[:, np.newaxis] * _GROUP + np.arange(_GROUP)).ravel()
        return members[members < self.log_p.shape[1]]

    def _excess(self, t: float, chosen: np.ndarray) -> float:
        return float(
            log_excess(t, self.log_p[:, chosen], self.log_r[:, chosen]).max(initial=-np.inf)
        )


def _contests(sigma: float, length: int, tie: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of (log P, log P'/P), float64 [3, n], of every contest -L - 1 <= x, y <= L on G.

    The three outcomes are a, b, other. Along a diagonal (x - y constant) the region where a wins
    grows by one line, u = -x with v <= -y
    - tie, and the one where b wins by v = -y with u <= -x - 1 + tie: a row of the table is the row
    before, moved by one, plus a product.
    """
    z = np.arange(-length, length + 1)
    plain, added, removed = (log_pmf(z - shift, sigma) for shift in (0, 1, -1))
    laws = ((plain, plain), (added, removed))  # of (u, v), without the record and with it
    size = 2 * length + 2
    tables = [_Table.of(u, v, tie) for u, v in laws]
    rows_a = np.full((2, size), -np.inf)
    rows_b = np.stack([table.b_before for table in tables])
    rows = max(1, _BLOCK // size)
    for start in range(0, size, rows):
        stop = min(start + rows, size)
        block = np.empty((2, 3, stop - start, size))  # [law, outcome, x, y]
        for x in range(start, stop):
            rows_a, rows_b = _moved(rows_a, first=None), _moved(rows_b, first=-np.inf)
            for i, table in enumerate(tables):
                np.logaddexp(rows_a[i], table.u_at[x] + table.v_below, out=rows_a[i])
                np.logaddexp(rows_b[i], table.v_at + table.u_below[x], out=rows_b[i])
                block[i, 2, x - start] = table.u_other[x] + table.v_other
            block[:, 0, x - start], block[:, 1, x - start] = rows_a, rows_b
        flat = block.reshape(2, 3, -1)
        log_p = flat[0]
        with np.errstate(invalid="ignore"):
            yield log_p, np.where(np.isneginf(log_p), 0.0, flat[1] - log_p)


def _moved(rows: np.ndarray, first: float | None) -> np.ndarray:
    """Each row one place to the right: entry y becomes y - 1's.

    The first one is kept (None) or set.
    """
    out = np.empty_like(rows)
    out[:, 1:] = rows[:, :-1]
    out[:, 0] = rows[:, 0] if first is None else first
    return out


@dataclass(frozen=True)
class _Table:
    """Log pmf and cumulative sums of one law of (u, v) on G, float64 [2L + 2] each.

    At the arguments that the recursion needs: entry i of an array belongs to x (or y) = i - L - 1.
    """

    u_at: np.ndarray  # u = -x
    v_at: np.ndarray  # v = -y
    u_below: np.ndarray  # u <= -x - 1 + tie
    v_below: np.ndarray  # v <= -y - tie
    u_other: np.ndarray  # u <= -x - 1: a does not reach m
    v_other: np.ndarray  # v <= -y - 1: b does not reach m
    b_before: np.ndarray  # v >= -y: where b wins when a can not

    @classmethod
    def of(cls, log_u: np.ndarray, log_v: np.ndarray, tie: int) -> "_Table":
        def descending(values: np.ndarray, offset: int) -> np.ndarray:
            """values at -x - offset for x = -L - 1 .. L, where values run over -L - 1 .. L + 1."""
            return values[::-1][offset : offset + len(values) - 1]

        nothing = np.array([-np.inf])
        below_u, below_v = (np.logaddexp.accumulate(law) for law in (log_u, log_v))
        at_u, at_v = (np.concatenate([nothing, law, nothing]) for law in (log_u, log_v))
        below_u, below_v = (np.concatenate([nothing, c, c[-1:]]) for c in (below_u, below_v))
        # v >= -L .. L + 1
        above_v = np.concatenate([np.logaddexp.accumulate(log_v[::-1])[::-1], nothing])
        return cls(
            u_at=descending(at_u, 0),
            v_at=descending(at_v, 0),
            u_below=descending(below_u, 1 - tie),
            v_below=descending(below_v, tie),
            u_other=descending(below_u, 1),
            v_other=descending(below_v, 1),
            b_before=above_v[::-1],
        )
