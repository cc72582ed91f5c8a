"""The best private-kNN configuration for a budget: the most expected right labels, from public proxies (experiment/plan/simulated_votes.py).

Coarse grids first, then finer ones around the best; the price of a release is read off one family of exact curves. The
last choice is made to fit by the accountant's own certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Generic, TypeVar

import numpy as np

from labelwall.experiment.config.config import CapsConfig, Config, RoundConfig
from labelwall.experiment.plan.simulated_votes import Proxy, rates, simulate
from labelwall.teacher.accounting.accountant import certified_epsilon, reading, require_affordable
from labelwall.teacher.accounting.curves.rdp import ORDERS, screening_rdp
from labelwall.teacher.mechanisms.ind_knn.mechanism import IndKnn
from labelwall.teacher.mechanisms.private_knn.mechanism import PrivateKnn
from labelwall.wall.errors import BudgetRefused, InvalidInput

SAMPLING = (1.0, 0.5, 0.25, 0.1, 0.04, 0.015)
FRACTIONS = 9  # steps of the share of the data set that votes
LARGEST_FRACTION, SMALLEST_FRACTION = 0.3, 2e-4
SMALLEST_K, LARGEST_K = (
    10,
    2_000,
)  # votes per class below are mostly noise; lists above are long to search
SIGMA_SCREEN = tuple(float(2 ** (i / 2)) for i in range(2, 17))  # 2 to 256 votes
# The argmax curve of a new sigma takes up to 9 s of CPU in this range, minutes outside. k and the sampling probability
# scale: half of both with half of the noise gives nearly the same price and answers, so little is lost.
SIGMA_VOTE = (15.0, 18.0, 22.0, 27.0, 33.0, 40.0)
THRESHOLDS = np.linspace(0, 0.9, 10)  # share of k
ZOOMS = (2.0 ** (1 / 4), 2.0 ** (1 / 8))
CONTEST = 1.006  # an argmax curve over the bit curve at sigma / sqrt(2), at the orders that decide
_BIT_REACH = 6  # thresholds this many sigma away from the votes are covered by the bit curve
FRONTIER = (0.125, 0.25, 0.5, 0.75, 1.0)  # shares of the budget


@dataclass(frozen=True)
class Forecast:
    """What a configuration is expected to bring. ``asked``, ``cap``: the caps it pays for; ``passed``: rate of the screening.

    ``answered``: expected number of labels; ``accuracy``: expected share of them that is right.
    """

    asked: int
    cap: int
    passed: float
    answered: float
    accuracy: float

    @property
    def right(self) -> float:
        """Expected number of right labels, what is maximised."""
        return self.answered * self.accuracy


M = TypeVar("M", PrivateKnn, IndKnn)  # what is searched for


@dataclass(frozen=True)
class Choice(Generic[M]):
    """A mechanism for a budget. ``epsilon``: the budget it was searched for; certified for Optimum.chosen alone."""

    epsilon: float
    mechanism: M
    forecast: Forecast


@dataclass(frozen=True)
class Goal:
    """What is searched for. ``expected_records``: the public guess of n; ``queries``: most public inputs asked, each once."""

    delta: float
    expected_records: int
    queries: int
    fewest: int
    min_accuracy: float = 0.0


@dataclass(frozen=True)
class Optimum(Generic[M]):
    """``config``: complete, with the chosen mechanism, caps and rounds. ``frontier``: the best by budget, ascending."""

    config: Config
    chosen: Choice[M]
    frontier: tuple[Choice[M], ...]


def optimise(
    config: Config,
    proxy: Proxy,
    goal: Goal,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Optimum[PrivateKnn]:
    """The configuration of most expected right labels whose certificate is within ``config.budget``.

    Raises InvalidInput for a goal out of range or another mechanism than private_knn, BudgetRefused where no grid point is
    affordable (or accurate enough).
    """
    for mechanism in (
        config.mechanism,
        *(r.mechanism for r in config.rounds if r.mechanism is not None),
    ):
        if not isinstance(mechanism, PrivateKnn):
            raise InvalidInput(
                "mechanism.kind", "private_knn (the search knows no other)", mechanism.kind
            )
    check_goal(goal)
    budgets = [share * config.budget.epsilon for share in FRONTIER]
    best = search(proxy, goal, budgets, coarse_grid(proxy, goal.expected_records), progress)
    frontier = [_zoom(choice, proxy, goal) for choice in best if choice is not None]
    if best[-1] is None:
        raise nothing_affordable(config, goal)
    chosen, planned = fit(config, frontier[-1], proxy, goal)
    return Optimum(planned, chosen, (*frontier[:-1], chosen))


def check_goal(goal: Goal) -> None:
    """Raise InvalidInput unless there are as many records and queries as the rounds need."""
    for name, value in (("expected_records", goal.expected_records), ("queries", goal.queries)):
        if value < goal.fewest:
            raise InvalidInput(name, f"at least {goal.fewest}", value)


def nothing_affordable(config: Config, goal: Goal) -> BudgetRefused:
    """What is raised where no candidate is affordable and accurate enough."""
    return BudgetRefused(
        f"`budget.epsilon` must be large enough for {goal.fewest} useful queries. Found {config.budget.epsilon}. "
        "Raise it, lower min_accuracy, or check expected_records."
    )


@dataclass(frozen=True)
class Point:
    """Part of a grid: one electorate, and the thresholds and noises tried with it (float64 arrays, in votes)."""

    k: int
    sampling_probability: float
    thresholds: np.ndarray
    sigma_screen: tuple[float, ...]
    sigma_vote: tuple[float, ...]


def coarse_grid(proxy: Proxy, expected_records: int) -> list[Point]:
    """Every sampling probability with every fraction of the data set that voting may take."""
    smallest = max(SMALLEST_FRACTION, min(0.1, 4 / proxy.rows), 5 / expected_records)
    points = {}
    for gamma, fraction in product(SAMPLING, np.geomspace(smallest, LARGEST_FRACTION, FRACTIONS)):
        k = round(gamma * fraction * expected_records)
        if SMALLEST_K <= k <= LARGEST_K:
            points[k, gamma] = Point(
                k, gamma, np.unique(np.rint(THRESHOLDS * k)), SIGMA_SCREEN, SIGMA_VOTE
            )
    return list(points.values())


def search(
    proxy: Proxy,
    goal: Goal,
    budgets: Sequence[float],
    grid: Sequence[Point],
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[Choice[PrivateKnn] | None]:
    """The best of the grid for each epsilon of ``budgets``; None where nothing is affordable."""
    best: list[Choice[PrivateKnn] | None] = [None] * len(budgets)
    for number, point in enumerate(grid):
        progress("searching", number, len(grid))
        votes = simulate(proxy, point.k, point.sampling_probability, goal.expected_records)
        passing = votes.pass_rates(point.thresholds, np.array(point.sigma_screen))  # [t, s, q]
        right = (
            passing @ votes.right_rates(np.array(point.sigma_vote)).T / len(votes.labels)
        )  # [t, s, v]
        passed = np.broadcast_to(passing.mean(axis=2)[..., None], right.shape)
        for position, epsilon in enumerate(budgets):
            found = _best_of(point, passed, right, epsilon, proxy.rows, goal)
            known = best[position]
            if found and (known is None or found.forecast.right > known.forecast.right):
                best[position] = found
    progress("searching", len(grid), len(grid))
    return best


def _best_of(
    point: Point, passed: np.ndarray, right: np.ndarray, epsilon: float, rows: float, goal: Goal
) -> Choice[PrivateKnn] | None:
    """The best of one point's noises and thresholds; ``passed``, ``right``: rates, float64 [t, s, v]."""
    asked = _affordable(point, passed, epsilon, rows, goal)
    _, answered = answers(asked, passed, rows)
    accuracy = right / np.maximum(passed, 1e-300)
    score = np.where(
        (asked >= goal.fewest) & (accuracy >= goal.min_accuracy), answered * accuracy, 0.0
    )
    t, s, v = np.unravel_index(int(score.argmax()), score.shape)
    if score[t, s, v] <= 0:
        return None
    mechanism = PrivateKnn(
        k=point.k,
        threshold=int(point.thresholds[t]),
        sigma_screen=point.sigma_screen[s],
        sigma_vote=point.sigma_vote[v],
        sampling_probability=point.sampling_probability,
    )
    rate = float(passed[t, s, v]), float(right[t, s, v])
    return Choice(epsilon, mechanism, forecast(int(asked[t, s, v]), rate, rows))


def _affordable(
    point: Point, passed: np.ndarray, epsilon: float, rows: float, goal: Goal
) -> np.ndarray:
    """Queries that epsilon pays for, float64 [t, s, v], at the best order: each order has its own budget of Renyi divergence.

    The canonical conversion (teacher/accounting/conversion.py) solved for the divergence: R = epsilon - c(alpha).
    """
    room = epsilon - np.log1p(-1 / ORDERS) + (math.log(goal.delta) + np.log(ORDERS)) / (ORDERS - 1)
    useful = np.flatnonzero(room > 0)
    gamma, asked = point.sampling_probability, np.full(passed.shape, float(goal.queries))
    screen = np.array([bit_rdp(sigma, gamma) for sigma in point.sigma_screen])[:, useful]
    argmax = np.array(
        [CONTEST * bit_rdp(sigma / math.sqrt(2), gamma) for sigma in point.sigma_vote]
    )[:, useful]
    for _ in range(2):  # the cap's margin depends, a little, on the number of queries
        share = answers(asked, passed, rows)[0] / asked
        most = np.zeros(passed.shape)
        for order, limit in enumerate(room[useful]):
            cost = screen[None, :, None, order] + share * argmax[None, None, :, order]
            np.maximum(most, limit / cost, out=most)
        asked = np.clip(np.floor(most), 1, goal.queries) if useful.size else np.ones(passed.shape)
    return np.where(most >= goal.fewest, asked, 0.0) if useful.size else np.zeros(passed.shape)


@lru_cache(maxsize=2048)
def bit_rdp(sigma: float, sampling_probability: float) -> np.ndarray:
    """An upper bound of the screening's curve whatever k and the threshold, float64 [n_orders]; seconds for a hundred."""
    reach = math.ceil(_BIT_REACH * sigma) + 1
    return screening_rdp(
        ORDERS,
        max_votes=2 * reach,
        threshold=reach,
        sigma=sigma,
        sampling_probability=sampling_probability,
    )


def answers(asked: np.ndarray, passed: np.ndarray, rows: float) -> tuple[np.ndarray, np.ndarray]:
    """(cap, expected number of answers), float64 like ``asked``: the cap is one deviation above what passes on average.

    The deviation counts the queries asked and those the rate was estimated from; E min(X, mean + sd) of a normal X.
    """
    spread = np.sqrt(passed * (1 - passed) * (asked + asked**2 / rows))
    cap = np.minimum(asked, np.ceil(passed * asked + spread))
    return np.maximum(cap, 1.0), np.minimum(
        passed * asked - 0.0833 * np.where(cap < asked, spread, 0.0), cap
    )


def forecast(asked: int, rate: tuple[float, float], rows: float) -> Forecast:
    """``rate``: the shares of queries that pass, and that pass and are labelled right."""
    cap, answered = (float(x) for x in answers(np.array(float(asked)), np.array(rate[0]), rows))
    return Forecast(asked, int(cap), rate[0], answered, rate[1] / rate[0])


def _zoom(choice: Choice[PrivateKnn], proxy: Proxy, goal: Goal) -> Choice[PrivateKnn]:
    """Finer grids around a choice; never a worse one."""
    for step in ZOOMS:
        found = search(
            proxy,
            goal,
            [choice.epsilon],
            list(_around(choice.mechanism, step, goal.expected_records)),
        )[0]
        if found is not None and found.forecast.right > choice.forecast.right:
            choice = found
    return choice


def _around(centre: PrivateKnn, step: float, expected_records: int) -> Iterable[Point]:
    gamma = centre.sampling_probability
    most = min(LARGEST_K, max(SMALLEST_K, round(LARGEST_FRACTION * gamma * expected_records)))
    for k in sorted(
        {min(most, max(SMALLEST_K, round(centre.k * step**power))) for power in (-2, -1, 0, 1, 2)}
    ):
        share = centre.threshold / centre.k + (step - 1) * np.array([-0.3, -0.15, 0, 0.15, 0.3])
        thresholds = np.unique(np.clip(np.rint(k * share), 0, k))
        screen = tuple(centre.sigma_screen * step**power for power in (-1, 0, 1))
        vote = tuple(
            min(SIGMA_VOTE[-1], max(SIGMA_VOTE[0], centre.sigma_vote * step**power))
            for power in (-1, 0, 1)
        )
        yield Point(k, gamma, thresholds, screen, vote)


def planned_config(config: Config, choice: Choice[M]) -> Config:
    """``config`` with the choice's mechanism and caps, its queries split evenly over as many rounds."""
    count, asked = len(config.rounds), choice.forecast.asked
    cap = (
        choice.forecast.cap if isinstance(choice.mechanism, PrivateKnn) else None
    )  # others answer whatever is asked
    rounds = [
        RoundConfig(queries=asked // count + (number < asked % count)) for number in range(count)
    ]
    return replace(config, mechanism=choice.mechanism, caps=CapsConfig(asked, cap), rounds=rounds)


def fit(
    config: Config, choice: Choice[PrivateKnn], proxy: Proxy, goal: Goal
) -> tuple[Choice[PrivateKnn], Config]:
    """The choice with handsome numbers, as many queries and as little screening noise as the true certificate allows."""
    sigma_vote, limit = _handsome(choice.mechanism.sigma_vote), config.budget.epsilon

    def candidate(asked: int, sigma_screen: float) -> Choice[PrivateKnn]:
        mechanism = replace(choice.mechanism, sigma_screen=sigma_screen, sigma_vote=sigma_vote)
        return Choice(
            limit,
            mechanism,
            forecast(asked, rates(proxy, mechanism, goal.expected_records), proxy.rows),
        )

    def fits(trial: Choice[PrivateKnn]) -> bool:
        plan = planned_config(config, trial).plan()
        return reading(plan, [release.cap for release in plan.releases()]) <= limit

    sigma_screen = _handsome(choice.mechanism.sigma_screen)
    asked = _last(lambda n: fits(candidate(n, sigma_screen)), goal.fewest, goal.queries)
    tenths = _last(
        lambda less: fits(candidate(asked, sigma_screen - less / 10)),
        0,
        max(1, round(4 * sigma_screen)),
    )
    fitted = candidate(asked, round(sigma_screen - tenths / 10, 1))
    planned = planned_config(config, fitted)
    require_affordable(planned.plan())
    return replace(fitted, epsilon=certified_epsilon(planned.plan())), planned


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The largest integer of low..high for which a property that ends once holds; ``low`` where it never does."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _handsome(sigma: float) -> float:
    """Rounded down, so that no accuracy is lost, to half a vote."""
    return max(1.0, math.floor(2 * sigma) / 2)


def theorem10(
    mechanism: PrivateKnn, asked: int, answered: int, delta: float
) -> tuple[float, list[str]]:
    """(epsilon, the assumptions that do not hold) of CVPR20 Theorem 10's asymptotic rate; only with none is it a statement.

    epsilon = 20 gamma sqrt(log(1/delta)) (sqrt(m) / sigma_1 + sqrt(m_selected) / sigma_2).
    """
    gamma, log, s1, s2 = (
        mechanism.sampling_probability,
        math.log(1 / delta),
        mechanism.sigma_screen,
        mechanism.sigma_vote,
    )
    epsilon = 20 * gamma * math.sqrt(log) * (math.sqrt(asked) / s1 + math.sqrt(answered) / s2)
    below = gamma**2 * (min(s1, s2) ** 2 * math.log(gamma) ** 2 - 2)
    holds = {
        "gamma < 0.1": gamma < 0.1,
        "sigma_screen >= sqrt(5)": s1 >= math.sqrt(5),
        "sigma_vote >= 2 sqrt(5)": s2 >= 2 * math.sqrt(5),
        "asked at least 4 log(1/delta) sigma_screen^2 / (gamma^2 (min(sigma)^2 log^2(1/gamma) - 2))": below
        > 0
        and 4 * log * s1**2 / below <= asked,
        "asked at most sigma_screen^2 log(1/delta) / (3 gamma^2)": asked
        <= s1**2 * log / (3 * gamma**2),
        "answered at most sigma_vote^2 log(1/delta) / (6 gamma^2)": answered
        <= s2**2 * log / (6 * gamma**2),
    }
    return epsilon, [rule for rule, held in holds.items() if not held]
