"""The best screened vote for a budget: the most expected right labels, by simulated votes.

A query's neighbours are a fraction k / (gamma n) of the data set. Their labels are simulated by the
same fraction of other labelled PUBLIC rows that look like the private ones. n is the user's public
guess; neither private rows nor their number are read. Sampling and noise are computed analytically.

Coarse grids come first, then finer ones around the best. The search prices a release by a family
of exact curves; the final choice is fitted to the accountant's own certificate.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import TypeVar

import numpy as np
from scipy.special import ndtr

from ...teacher.accounting.accountant import odometer
from ...teacher.accounting.conversion import epsilons_from_rdp
from ...teacher.accounting.curves import ORDERS, screening_rdp
from ...teacher.mechanisms.votes import PrivateKnn, SampledVotes
from ...teacher.search.cpu import ExactIndex
from ...teacher.search.int8_matmul import float32_product
from ...wall.progress import Progress, no_progress
from .goal import Choice, Goal, Optimum, PublicRows

SAMPLING = (1.0, 0.5, 0.25, 0.1, 0.04, 0.015)
FRACTIONS = 9  # steps of the share of the data set that votes
MIN_FRACTION, MAX_FRACTION = 2e-4, 0.3
MIN_K, MAX_K = 10, 2_000  # fewer votes are mostly noise; longer lists take long to search
SIGMA_SCREEN = tuple(float(2 ** (i / 2)) for i in range(2, 17))  # 2 to 256 votes
# The argmax curve of a new sigma takes up to 9 s of CPU in this range, minutes outside. Halving k,
# the sampling probability and the noise gives nearly the same price and answers, so the range costs
# little accuracy.
SIGMA_VOTE = (15.0, 18.0, 22.0, 27.0, 33.0, 40.0)
THRESHOLDS = np.linspace(0, 0.9, 10)  # share of k
ZOOMS = (2.0 ** (1 / 4), 2.0 ** (1 / 8))
# Ratio of an argmax curve to the bit curve at sigma / sqrt(2), at the orders that decide.
CONTEST = 1.006
_BIT_REACH = 6  # the bit curve covers thresholds up to this many sigma away from the votes
MIN_VARIANCE = 0.1  # share of the noise's variance that remains without the simulation's own
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()

S = TypeVar("S", bound=SampledVotes)


@dataclass(frozen=True)
class SimulatedQueries:
    """Queries with the class shares of their neighbours.

    ``labels``: int64 [q], the right answers; ``shares(fraction)``: float64 [q, c], class shares
    among the nearest ``fraction`` of a data set, rows sum to 1; ``rows``: number of rows that stand
    for the data set; ``description``: of the source, for a reader.
    """

    labels: np.ndarray = field(repr=False)
    shares: Callable[[float], np.ndarray] = field(repr=False)
    rows: float
    description: str


def neighbours(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Other rows' labels, nearest first: int64 [m, m - 1] of int8 [m, d] and int64 [m]."""
    m = len(labels)
    index = ExactIndex(features, np.arange(m, dtype=np.int64), product=float32_product, threads=1)
    near = index.prefix(features, m)
    return labels[near[near != np.arange(m)[:, None]]].reshape(m, m - 1)


def votes_among(features: np.ndarray, labels: np.ndarray, num_classes: int) -> SimulatedQueries:
    """Exact neighbours among PUBLIC rows (int8 [m, d], int64 [m]), each left out of its own."""
    m, ordered = len(labels), neighbours(features, labels)

    def shares(fraction: float) -> np.ndarray:
        inside = min(fraction, 1.0) * (m - 1)
        whole = math.floor(inside)
        cells = ordered[:, :whole] + num_classes * np.arange(m)[:, None]
        counts = np.bincount(cells.ravel(), minlength=m * num_classes).astype(np.float64)
        counts = counts.reshape(m, num_classes)
        if inside > whole:  # the last row's vote is weighted by its part inside the fraction
            counts[np.arange(m), ordered[:, whole]] += inside - whole
        return counts / inside

    source = f"votes among {m} labelled public rows, each left out of its own"
    return SimulatedQueries(labels, shares, float(m - 1), source)


@dataclass(frozen=True)
class Votes:
    """Simulated votes before noise.

    ``mean``: expected votes, float64 [q, c]; ``excess``: variance beyond the noise, as a multiple
    of the mean, negative where the simulation itself varies more than real votes; ``spread``:
    variance of the number of voters over its square, 0 where it is k.
    """

    labels: np.ndarray = field(repr=False)
    mean: np.ndarray = field(repr=False)
    excess: float
    spread: float = 0.0

    def pass_rates(self, thresholds: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
        """P(max_j n_j + Z > T) of every query, float64 [t, s, q].

        ``thresholds`` [t] and ``sigmas`` [s] in votes. The plurality is the larger of two
        correlated normals, with mean and variance by Clark 1961.
        """
        total = self.mean.sum(axis=1)
        second, first = np.sort(self.mean, axis=1)[:, -2:].T
        # multinomial: Var(n_1 - n_2) = n_1 + n_2 - (n_1 - n_2)^2 / k
        contest = np.maximum(first + second - (first - second) ** 2 / total, 0)
        common = self.spread * (first - second) ** 2
        gap = np.sqrt(max(self.excess, 0.0) * contest + common + 1e-12)
        density = np.exp(-((first - second) ** 2) / (2 * gap**2)) / math.sqrt(2 * math.pi)
        plurality = first + gap * density - (first - second) * ndtr(-(first - second) / gap)
        excess = first * (1 - first / total) * self.excess + self.spread * first**2
        variance = _total_variance(sigmas[:, None], excess)  # [s, q]
        return ndtr((plurality - thresholds[:, None, None] - 0.5) / np.sqrt(variance))

    def right_rates(self, sigmas: np.ndarray) -> np.ndarray:
        """P(argmax_j (n_j + Z_j) is the right class) of every query, float64 [s, q].

        By Gauss-Hermite quadrature over the right class's votes. Classes vary like Poisson counts:
        where two are close, which is where it matters, their difference has the multinomial's
        variance.
        """
        rows = np.arange(len(self.labels))
        rates = np.empty((len(sigmas), len(rows)))
        ahead = self.mean[rows, self.labels][:, None] - self.mean  # [q, c]
        for position, sigma in enumerate(sigmas):
            scale = np.sqrt(_total_variance(sigma, self.mean * self.excess))  # [q, c]
            own = scale[rows, self.labels]
            moved = ahead[:, None, :] + own[:, None, None] * _NODES[:, None]  # [q, nodes, c]
            below = ndtr(moved / scale[:, None, :])
            below[rows, :, self.labels] = 1.0
            rates[position] = below.prod(axis=2) @ _WEIGHTS
        return rates


def _total_variance(sigma: np.ndarray | float, excess: np.ndarray) -> np.ndarray:
    return np.maximum(np.square(sigma) + excess, MIN_VARIANCE * np.square(sigma))


def votes_of(simulated: SimulatedQueries, mechanism: SampledVotes, expected_records: int) -> Votes:
    """Votes of the nearest rows of a Poisson sample of ``expected_records`` records.

    Neighbours are drawn from a population in which a query's nearest ``fraction`` has class shares
    p: k votes are multinomial, variance k p (over data set and sample jointly; the sampling
    probability cancels). The simulated shares are such a sample themselves, of r = fraction * rows,
    and already have the variance k^2 p / r: adding normal noise of variance
    sigma^2 + k p (1 - k / r) gives the law of the real votes.
    """
    k = round(mechanism.expected_votes(expected_records))
    sample = mechanism.sample_rate * expected_records
    votes = min(float(k), sample)
    fraction = votes / sample
    excess = 1 - votes / (fraction * simulated.rows)
    shares = simulated.shares(fraction)
    return Votes(simulated.labels, votes * shares, excess, mechanism.spread(k))


def rates(
    simulated: SimulatedQueries, mechanism: SampledVotes, expected_records: int
) -> tuple[float, float]:
    """(share of queries that pass the screening, share that also get the right label)."""
    votes = votes_of(simulated, mechanism, expected_records)
    thresholds, sigmas = np.array([mechanism.threshold]), np.array([mechanism.sigma_screen])
    passed = votes.pass_rates(thresholds, sigmas)[0, 0]
    right = votes.right_rates(np.array([mechanism.sigma_vote]))[0]
    return float(passed.mean()), float((passed * right).mean())


def plan(mechanism: S, goal: Goal, public: PublicRows, progress: Progress) -> Optimum[S]:
    """See ``goal.Planner``: all fields are searched for, whatever the configuration's are."""
    features, labels, _ = public.embed()
    simulated = votes_among(features, labels, public.num_classes)
    return optimise(type(mechanism), simulated, goal, progress)


def optimise(
    kind: type[S], simulated: SimulatedQueries, goal: Goal, progress: Progress = no_progress
) -> Optimum[S]:
    """See ``goal.Planner``; the queries are simulated already."""
    goal.check()
    grid = coarse_grid(simulated, goal.expected_records, kind)
    best = search(simulated, goal, grid, kind, progress)
    if best is None:
        raise goal.nothing_affordable()
    for step in ZOOMS:
        near = list(_around(best.mechanism, step, goal.expected_records))
        finer = search(simulated, goal, near, kind)
        best = finer if finer is not None and finer.right > best.right else best
    return Optimum(goal, fit(best, simulated, goal), simulated.description)


def noises(kind: type[SampledVotes]) -> tuple[float, ...]:
    """SIGMA_VOTE, or the noise that hides as much of votes that move by less."""
    return SIGMA_VOTE if kind.swap else tuple(float(round(s / math.sqrt(2))) for s in SIGMA_VOTE)


@dataclass(frozen=True)
class Point:
    """One k and sampling probability of a grid, with the thresholds and noises to try, in votes."""

    k: int
    sample_rate: float
    thresholds: np.ndarray
    sigma_screen: tuple[float, ...]
    sigma_vote: tuple[float, ...]


def coarse_grid(
    simulated: SimulatedQueries, expected_records: int, kind: type[SampledVotes] = PrivateKnn
) -> list[Point]:
    """Every sampling probability with every fraction of the data set that may vote."""
    smallest = max(MIN_FRACTION, min(0.1, 4 / simulated.rows), 5 / expected_records)
    fractions = np.geomspace(smallest, MAX_FRACTION, FRACTIONS)
    sizes = {(round(g * part * expected_records), g) for g, part in product(SAMPLING, fractions)}
    return [
        Point(k, gamma, np.unique(np.rint(THRESHOLDS * k)), SIGMA_SCREEN, noises(kind))
        for k, gamma in sorted(sizes)
        if MIN_K <= k <= MAX_K
    ]


def search(
    simulated: SimulatedQueries,
    goal: Goal,
    grid: Sequence[Point],
    kind: type[S],
    progress: Progress = no_progress,
) -> Choice[S] | None:
    """The best of the grid; None where nothing is affordable."""
    best: Choice[S] | None = None
    for number, point in enumerate(grid):
        progress("searching", number, len(grid))
        sized = kind.sized(point.k, point.sample_rate, goal.expected_records, threshold=0)
        votes = votes_of(simulated, sized, goal.expected_records)
        passing = votes.pass_rates(point.thresholds, np.array(point.sigma_screen))  # [t, s, q]
        correct = votes.right_rates(np.array(point.sigma_vote))  # [v, q]
        right = passing @ correct.T / len(votes.labels)  # [t, s, v]
        passed = np.broadcast_to(passing.mean(axis=2)[..., None], right.shape)
        choice = _best_of(point, sized, passed, right, simulated.rows, goal)
        if choice and (best is None or choice.right > best.right):
            best = choice
    progress("searching", len(grid), len(grid))
    return best


def _best_of(
    point: Point, sized: S, passed: np.ndarray, right: np.ndarray, rows: float, goal: Goal
) -> Choice[S] | None:
    """The best of one point's thresholds and noises; ``passed``, ``right``: rates [t, s, v]."""
    asked = _affordable(point, sized.swap, passed, rows, goal)
    _, answered = answers(asked, passed, rows)
    accuracy = right / np.maximum(passed, 1e-300)
    enough = (asked >= goal.rounds) & (accuracy >= goal.min_accuracy)
    score = np.where(enough, answered * accuracy, 0.0)
    t, s, v = np.unravel_index(int(score.argmax()), score.shape)
    if score[t, s, v] <= 0:
        return None
    mechanism = replace(
        sized,
        threshold=int(point.thresholds[t]),
        sigma_screen=point.sigma_screen[s],
        sigma_vote=point.sigma_vote[v],
    )
    rate = float(passed[t, s, v]), float(right[t, s, v])
    return forecast(goal.epsilon, mechanism, int(asked[t, s, v]), rate, rows)


def _affordable(
    point: Point, swap: bool, passed: np.ndarray, rows: float, goal: Goal
) -> np.ndarray:
    """Queries that the budget pays for, float64 [t, s, v], at the best order.

    Each order has its own budget of Renyi divergence, R = epsilon - c(alpha).
    """
    room = goal.epsilon - epsilons_from_rdp(ORDERS, np.zeros_like(ORDERS), goal.delta)
    useful = np.flatnonzero(room > 0)
    if not useful.size:
        return np.zeros(passed.shape)
    gamma, asked = point.sample_rate, np.full(passed.shape, float(goal.queries))
    screen = np.array([bit_rdp(sigma, gamma) for sigma in point.sigma_screen])[:, useful]
    factor, narrower = (CONTEST, math.sqrt(2)) if swap else (1.0, 1.0)
    contests = [factor * bit_rdp(sigma / narrower, gamma) for sigma in point.sigma_vote]
    argmax = np.array(contests)[:, useful]
    for _ in range(2):  # the cap's margin depends slightly on the number of queries
        share = answers(asked, passed, rows)[0] / asked
        affordable = np.zeros(passed.shape)
        for order, limit in enumerate(room[useful]):
            cost = screen[None, :, None, order] + share * argmax[None, None, :, order]
            np.maximum(affordable, limit / cost, out=affordable)
        asked = np.clip(np.floor(affordable), 1, goal.queries)
    return np.where(affordable >= goal.rounds, asked, 0.0)


@lru_cache(maxsize=2048)
def bit_rdp(sigma: float, sample_rate: float) -> np.ndarray:
    """An upper bound of the screening's curve for any k and threshold: float64 [n_orders]."""
    reach = math.ceil(_BIT_REACH * sigma) + 1
    noise = {"sigma": sigma, "sample_rate": sample_rate}
    return screening_rdp(ORDERS, max_votes=2 * reach, threshold=reach, **noise)


def answers(asked: np.ndarray, passed: np.ndarray, rows: float) -> tuple[np.ndarray, np.ndarray]:
    """(cap, expected number of answers), float64 like ``asked``.

    The cap is one standard deviation above the mean number of passes. The deviation includes the
    queries asked and those that the rate was estimated from. The expectation is E min(X, mean + sd)
    of a normal X.
    """
    deviation = np.sqrt(passed * (1 - passed) * (asked + asked**2 / rows))
    cap = np.minimum(asked, np.ceil(passed * asked + deviation))
    mean = passed * asked - 0.0833 * np.where(cap < asked, deviation, 0.0)
    return np.maximum(cap, 1.0), np.minimum(mean, cap)


def forecast(
    epsilon: float, mechanism: S, asked: int, rate: tuple[float, float], rows: float
) -> Choice[S]:
    """The choice at ``rate``: shares of queries that pass, and that also get the right label."""
    cap, answered = (float(x) for x in answers(np.array(float(asked)), np.array(rate[0]), rows))
    return Choice(epsilon, mechanism, asked, int(cap), answered, rate[1] / rate[0])


def _around(centre: SampledVotes, step: float, expected_records: int) -> Iterable[Point]:
    gamma, votes = centre.sample_rate, centre.expected_votes(expected_records)
    noise = noises(type(centre))
    high = min(MAX_K, max(MIN_K, round(MAX_FRACTION * gamma * expected_records)))
    scaled = (round(votes * step**power) for power in (-2, -1, 0, 1, 2))
    for k in sorted({min(high, max(MIN_K, k)) for k in scaled}):
        share = centre.threshold / votes + (step - 1) * np.array([-0.3, -0.15, 0, 0.15, 0.3])
        thresholds = np.unique(np.clip(np.rint(k * share), 0, k))
        screen = tuple(centre.require("sigma_screen") * step**power for power in (-1, 0, 1))
        vote = tuple(
            min(noise[-1], max(noise[0], centre.require("sigma_vote") * step**power))
            for power in (-1, 0, 1)
        )
        yield Point(k, gamma, thresholds, screen, vote)


def fit(choice: Choice[S], simulated: SimulatedQueries, goal: Goal) -> Choice[S]:
    """Round the noise, then maximise queries and minimise screening noise within epsilon.

    The accountant's own certificate decides.
    """
    sigma_vote, sigma_screen = (  # down to half a vote, so that no accuracy is lost
        max(1.0, math.floor(2 * choice.mechanism.require(name)) / 2)
        for name in ("sigma_vote", "sigma_screen")
    )

    def candidate(asked: int, sigma_screen: float) -> Choice[S]:
        mechanism = replace(choice.mechanism, sigma_screen=sigma_screen, sigma_vote=sigma_vote)
        rate = rates(simulated, mechanism, goal.expected_records)
        return forecast(goal.epsilon, mechanism, asked, rate, simulated.rows)

    def fits(trial: Choice[S]) -> bool:
        plan = trial.plan(goal)
        return odometer(plan, [release.cap for release in plan.releases()]) <= goal.epsilon

    asked = _largest(lambda n: fits(candidate(n, sigma_screen)), goal.rounds, goal.queries)
    high = max(1, round(4 * sigma_screen))
    tenths = _largest(lambda n: fits(candidate(asked, sigma_screen - n / 10)), 0, high)
    return candidate(asked, round(sigma_screen - tenths / 10, 1)).certified(goal)


def _largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest integer in low..high up to which all fit; ``low`` if none does."""
    return low + bisect_left(range(low + 1, high + 1), True, key=lambda n: not fits(n))
