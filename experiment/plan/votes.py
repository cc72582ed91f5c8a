"""The best screened vote for a budget: the most expected right labels (simulated_votes.py).

Coarse grids come first, then finer ones around the best. The search prices a release by a family
of exact curves; the final choice is fitted to the accountant's own certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import TypeVar

import numpy as np

from ...teacher.accounting.accountant import odometer
from ...teacher.accounting.curves import ORDERS, screening_rdp
from ...teacher.mechanisms.votes import PrivateKnn, SampledVotes
from ...wall.progress import Progress, no_progress
from .goal import Choice, Goal, Optimum, PublicRows
from .simulated_votes import SimulatedQueries, rates, votes_among, votes_of

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

S = TypeVar("S", bound=SampledVotes)


def plan(mechanism: S, goal: Goal, public: PublicRows, progress: Progress) -> Optimum[S]:
    """See ``goal.Planner``: all fields are searched for, whatever the configuration's are."""
    features, labels, _ = public.labelled()
    simulated = votes_among(features, labels, public.num_classes)
    return optimise(type(mechanism), simulated, goal, progress)


def optimise(
    kind: type[S], simulated: SimulatedQueries, goal: Goal, progress: Progress = no_progress
) -> Optimum[S]:
    """See ``goal.Planner``; the queries are simulated already."""
    goal.check()
    budgets = [share * goal.epsilon for share in goal.shares]
    grid = coarse_grid(simulated, goal.expected_records, kind)
    best = search(simulated, goal, budgets, grid, kind, progress)
    frontier = [_zoom(choice, simulated, goal) for choice in best if choice is not None]
    if best[-1] is None:
        raise goal.nothing_affordable()
    chosen = fit(frontier[-1], simulated, goal)
    frontier[-1] = chosen
    note = "The others are searched with an approximate price, within about 1%."
    return Optimum(goal, chosen, tuple(frontier), simulated.description, note)


def noises(kind: type[SampledVotes]) -> tuple[float, ...]:
    """SIGMA_VOTE, or the noise that hides as much of votes that move by less."""
    return SIGMA_VOTE if kind.swap else tuple(float(round(s / math.sqrt(2))) for s in SIGMA_VOTE)


@dataclass(frozen=True)
class Point:
    """Part of a grid: one k and sampling probability, with the thresholds and noises to try.

    ``thresholds``: float64; ``sigma_screen``, ``sigma_vote``; all in votes.
    """

    k: int
    sampling_probability: float
    thresholds: np.ndarray
    sigma_screen: tuple[float, ...]
    sigma_vote: tuple[float, ...]


def coarse_grid(
    simulated: SimulatedQueries, expected_records: int, kind: type[SampledVotes] = PrivateKnn
) -> list[Point]:
    """Every sampling probability with every fraction of the data set that may vote."""
    smallest = max(MIN_FRACTION, min(0.1, 4 / simulated.rows), 5 / expected_records)
    points = {}
    for gamma, fraction in product(SAMPLING, np.geomspace(smallest, MAX_FRACTION, FRACTIONS)):
        k = round(gamma * fraction * expected_records)
        if MIN_K <= k <= MAX_K:
            thresholds = np.unique(np.rint(THRESHOLDS * k))
            points[k, gamma] = Point(k, gamma, thresholds, SIGMA_SCREEN, noises(kind))
    return list(points.values())


def search(
    simulated: SimulatedQueries,
    goal: Goal,
    budgets: Sequence[float],
    grid: Sequence[Point],
    kind: type[S],
    progress: Progress = no_progress,
) -> list[Choice[S] | None]:
    """The best of the grid for each epsilon of ``budgets``; None where nothing is affordable."""
    best: list[Choice[S] | None] = [None] * len(budgets)
    for number, point in enumerate(grid):
        progress("searching", number, len(grid))
        sized = kind.sized(point.k, point.sampling_probability, goal.expected_records, threshold=0)
        votes = votes_of(simulated, sized, goal.expected_records)
        passing = votes.pass_rates(point.thresholds, np.array(point.sigma_screen))  # [t, s, q]
        correct = votes.right_rates(np.array(point.sigma_vote))  # [v, q]
        right = passing @ correct.T / len(votes.labels)  # [t, s, v]
        passed = np.broadcast_to(passing.mean(axis=2)[..., None], right.shape)
        for position, epsilon in enumerate(budgets):
            choice = _best_of(point, sized, passed, right, epsilon, simulated.rows, goal)
            known = best[position]
            if choice and (known is None or choice.right > known.right):
                best[position] = choice
    progress("searching", len(grid), len(grid))
    return best


def _best_of(
    point: Point,
    sized: S,
    passed: np.ndarray,
    right: np.ndarray,
    epsilon: float,
    rows: float,
    goal: Goal,
) -> Choice[S] | None:
    """The best of one point's thresholds and noises; ``passed``, ``right``: rates [t, s, v]."""
    asked = _affordable(point, sized.swap, passed, epsilon, rows, goal)
    _, answered = answers(asked, passed, rows)
    accuracy = right / np.maximum(passed, 1e-300)
    score = np.where(
        (asked >= goal.rounds) & (accuracy >= goal.min_accuracy), answered * accuracy, 0.0
    )
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
    return forecast(epsilon, mechanism, int(asked[t, s, v]), rate, rows)


def _affordable(
    point: Point, swap: bool, passed: np.ndarray, epsilon: float, rows: float, goal: Goal
) -> np.ndarray:
    """Queries that epsilon pays for, float64 [t, s, v], at the best order.

    Each order has its own budget of Renyi divergence, from the canonical conversion
    (teacher/accounting/conversion.py): R = epsilon - c(alpha).
    """
    room = epsilon - np.log1p(-1 / ORDERS) + (math.log(goal.delta) + np.log(ORDERS)) / (ORDERS - 1)
    useful = np.flatnonzero(room > 0)
    if not useful.size:
        return np.zeros(passed.shape)
    gamma, asked = point.sampling_probability, np.full(passed.shape, float(goal.queries))
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
def bit_rdp(sigma: float, sampling_probability: float) -> np.ndarray:
    """An upper bound of the screening's curve for any k and threshold: float64 [n_orders].

    A hundred calls take seconds.
    """
    reach = math.ceil(_BIT_REACH * sigma) + 1
    return screening_rdp(
        ORDERS,
        max_votes=2 * reach,
        threshold=reach,
        sigma=sigma,
        sampling_probability=sampling_probability,
    )


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


def _zoom(choice: Choice[S], simulated: SimulatedQueries, goal: Goal) -> Choice[S]:
    """The best of finer grids around a choice, or the choice itself."""
    for step in ZOOMS:
        grid = list(_around(choice.mechanism, step, goal.expected_records))
        (finer,) = search(simulated, goal, [choice.epsilon], grid, type(choice.mechanism))
        if finer is not None and finer.right > choice.right:
            choice = finer
    return choice


def _around(centre: SampledVotes, step: float, expected_records: int) -> Iterable[Point]:
    gamma, votes = centre.sampling_probability, centre.expected_votes(expected_records)
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
    sigma_vote, sigma_screen = (
        _half_votes(choice.mechanism.require(name)) for name in ("sigma_vote", "sigma_screen")
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
    """The largest integer in low..high that fits, by bisection; ``low`` if none does.

    ``fits`` must be monotone: True, then False.
    """
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _half_votes(sigma: float) -> float:
    """Rounded down to half a vote, so that no accuracy is lost; at least 1."""
    return max(1.0, math.floor(2 * sigma) / 2)
