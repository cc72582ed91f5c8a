"""NOT RELEASABLE: smooth sensitivity of GNMAX's data-dependent cost, for the custodian alone.

Papernot et al. 2018, appendix B: what noise would make the cost public. The paper adds Gaussian
noise of deviation S sigma_ss to the total RDP at one order, S the beta-smooth sensitivity of that
total. Nothing is drawn here: there is no exact sampler for noise of a private scale, and about half
of the draws would lie below the true cost, where the sum is no bound. This module computes the
expected epsilon, which the paper's tables print; order, beta and sigma_ss must be fixed without
looking at the votes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from diagnosed_pate import log_flip_gaussian, theorem_6
from diagnosed_screening import BANNER
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri_exp

from labelwall.wall.errors import InvalidInput

_GRID_POINTS = 2000  # values of q at which monotonicity is tried


@dataclass(frozen=True, repr=False)
class Sanitised:
    """Expected epsilon of a noisy cost. Prints only with its banner.

    ``epsilon`` includes the cost of the noise; ``deviation``: of the noise, in the same unit.
    """

    epsilon: float
    deviation: float
    releases: str

    def render(self) -> str:
        """One line for the custodian's screen."""
        cost = f"expected epsilon {self.epsilon:.3f}, deviation {self.deviation:.3f}"
        method = "data-dependent, smooth sensitivity"
        return f"{BANNER} {self.releases} at the votes that were cast: {cost} ({method})"


@dataclass(frozen=True, repr=False)
class Measured:
    """Cost of GNMAX labels at one ``order``, and its local sensitivity. All of it is private.

    ``rdp``: of all labels. ``sensitivity``: float64 [teachers], the most that one more changed
    classifier can move it, after 0, 1, .. have changed: ``local_sensitivity``, summed over the
    labels.
    """

    rdp: float
    sensitivity: np.ndarray
    order: float
    labels: int

    def sanitised(self, *, delta: float, beta: float, sigma_ss: float) -> Sanitised:
        """Classic conversion, as in the paper.

        Raises InvalidInput for an order too large for beta.
        """
        largest = -1 / math.expm1(-2 * beta)
        if self.order >= largest:
            raise InvalidInput("order", f"below 1 / (1 - exp(-2 beta)) = {largest:g}", self.order)
        smooth = float((np.exp(-beta * np.arange(len(self.sensitivity))) * self.sensitivity).max())
        own = gaussian_smooth_rdp(self.order, beta, sigma_ss)
        epsilon = self.rdp + own - math.log(delta) / (self.order - 1)
        return Sanitised(epsilon, smooth * sigma_ss, f"{self.labels} GNMAX labels")


def measure(votes: np.ndarray, *, teachers: int, sigma: float, order: float) -> Measured:
    """Cost and local sensitivity of one label a row of ``votes``: int64 [n_queries, n_classes].

    Raises InvalidInput where the paper's conditions C5, C6 (appendix B.4.2) fail for this sigma,
    order and number of classes: its bounds then say nothing.
    """
    if not all(conditions(sigma, votes.shape[1], order)):
        raise InvalidInput(
            "order",
            "one at which the conditions of smooth sensitivity hold (a larger sigma, or another)",
            order,
        )
    total = _rdp(log_flip_gaussian(votes, sigma), sigma, order).sum()
    # Sorted, since the cost does not depend on the order of the classes.
    distinct, counts = np.unique(np.sort(votes, axis=1), axis=0, return_counts=True)
    moves = [
        n * local_sensitivity(row, teachers, sigma, order)
        for row, n in zip(distinct, counts, strict=True)
    ]
    return Measured(float(total), np.sum(moves, axis=0), order, len(votes))


def gaussian_smooth_rdp(order: float, beta: float, sigma_ss: float) -> float:
    """RDP of a value plus S N(0, sigma_ss^2), S its beta-smooth sensitivity.

    Valid for order (1 - e^(-2 beta)) < 1. Neighbours' values differ by at most the smaller of their
    S, and S by a factor r in e^-beta .. e^beta. With v(r) = order r^2 + 1 - order, the divergence
    of two Gaussians of deviations 1 and r (Gil, Alajaji and Linder 2013, Table 2) is
    order min(1, r)^2 / (2 sigma_ss^2 v(r)) + (order log r - log(v(r)) / 2) / (order - 1). The first
    term falls with r; the second falls until r = 1 and grows from there. Theorem 23, as the
    published code has it, has a smaller first term, order e^(2 beta) / sigma_ss^2, which these two
    Gaussians exceed where order beta is large (docs/privacy.md, section 10).
    """

    def spread(r: float) -> float:
        return (order * math.log(r) - math.log(order * r**2 + 1 - order) / 2) / (order - 1)

    low = math.exp(-2 * beta)
    shift = order * low / (2 * sigma_ss**2 * (order * low + 1 - order))
    return shift + max(spread(math.exp(beta)), spread(math.exp(-beta)))


def local_sensitivity(votes: np.ndarray, teachers: int, sigma: float, order: float) -> np.ndarray:
    """How much one classifier's change can move a label's RDP, after 0, 1, .. others have changed.

    float64 [teachers], upper bounds; ``votes``: int64 [n_classes]. Algorithms 3 to 5: q moves
    fastest when votes move between the two leading classes; from the interval between B_L(q0) and
    q0 on, where the bound is steepest, the sensitivity is constant.
    """
    top = crossover(sigma, order)
    bottom = log_lower(np.array([top]), sigma, len(votes))[0]
    found = np.full(teachers, _local(np.array([bottom]), sigma, order, len(votes))[0])
    path = _path(np.sort(votes)[::-1].copy(), sigma, bottom, top)[:teachers]
    found[: len(path)] = _local(path, sigma, order, len(votes))
    return found


def _path(votes: np.ndarray, sigma: float, bottom: float, top: float) -> np.ndarray:
    """log q of ``votes`` and after each vote moved towards bottom..top: float64 [n].

    ``votes``: int64 [c], descending; overwritten.
    """
    log_q = [log_flip_gaussian(votes[np.newaxis], sigma)[0]]
    above = log_q[0] > top
    while (log_q[-1] > top and votes[1] > 0) if above else log_q[-1] < bottom:
        votes[:2] += (1, -1) if above else (-1, 1)
        votes = np.sort(votes)[::-1].copy()
        log_q.append(log_flip_gaussian(votes[np.newaxis], sigma)[0])
    return np.array(log_q)


def _local(log_q: np.ndarray, sigma: float, order: float, classes: int) -> np.ndarray:
    """Algorithm 3: bound of one change's effect at float64 [n] log q, float64 [n]."""
    top = crossover(sigma, order)
    bottom = log_lower(np.array([top]), sigma, classes)[0]
    log_q = np.where((bottom <= log_q) & (log_q <= top), bottom, log_q)
    here = _rdp(log_q, sigma, order)
    up, down = (_rdp(move(log_q, sigma, classes), sigma, order) for move in (log_upper, log_lower))
    return np.maximum(up - here, here - down)


def _rdp(log_q: np.ndarray, sigma: float, order: float) -> np.ndarray:
    """The data-dependent bound below the crossover, order / sigma^2 from it on: float64 [n]."""
    top = crossover(sigma, order)
    dependent = theorem_6(np.array([order]), np.minimum(log_q, top), sigma)[0][:, 0]
    return np.where(log_q < top, dependent, order / sigma**2)


@cache
def crossover(sigma: float, order: float) -> float:
    """log q0, from which on the data-dependent bound is not valid or not smaller."""

    def excess(log_q: float) -> float:
        bound, _ = theorem_6(np.array([order]), np.array([log_q]), sigma)
        return float(bound[0, 0]) - order / sigma**2

    # The theorem's conditions hold below.
    highest = -(max(1 + 1 / sigma, (order - 0.99) / sigma) ** 2)
    if excess(highest) < 0:
        return highest
    lowest = 2 * highest
    while excess(lowest) > 0:
        if lowest < -1e4:
            rule = "one at which the data-dependent bound is ever the smaller one"
            raise InvalidInput("order", rule, order)
        lowest *= 1.5
    return float(brentq(excess, lowest, highest))


def log_upper(log_q: np.ndarray, sigma: float, classes: int) -> np.ndarray:
    """log of B_U, the largest q after one classifier's change: float64 [n].

    The change moves each gap by at most 2.
    """
    return np.minimum(_moved(log_q, math.sqrt(2) / sigma, classes), 0.0)


def log_lower(log_q: np.ndarray, sigma: float, classes: int) -> np.ndarray:
    """log of B_L, the smallest q after one classifier's change: float64 [n]."""
    return _moved(log_q, -math.sqrt(2) / sigma, classes)


def _moved(log_q: np.ndarray, shift: float, classes: int) -> np.ndarray:
    return math.log(classes - 1) + log_ndtr(ndtri_exp(log_q - math.log(classes - 1)) + shift)


@cache
def conditions(sigma: float, classes: int, order: float) -> tuple[bool, bool]:
    """Whether C5 and C6 hold: below q0 the bound grows with q; below B_L(q0) so does its growth.

    Growth under B_U. Tried on a grid of q, linear and logarithmic: as good as the paper's own
    numeric minimisation, and no proof.
    """
    top = crossover(sigma, order)
    below = log_lower(np.array([top]), sigma, classes)[0]
    if not math.isfinite(below):
        return False, False

    def grid(end: float) -> np.ndarray:
        return end + np.sort(
            np.concatenate(
                [
                    np.log(np.linspace(0, 1, _GRID_POINTS)[1:-1]),
                    np.linspace(-90, -1e-6, _GRID_POINTS),
                ]
            )
        )

    def growing(values: np.ndarray) -> bool:
        return bool((np.diff(values) >= -1e-10 * order / sigma**2).all())  # rounding

    rest = grid(below)
    step = _rdp(log_upper(rest, sigma, classes), sigma, order) - _rdp(rest, sigma, order)
    return growing(_rdp(grid(top), sigma, order)), growing(step)
