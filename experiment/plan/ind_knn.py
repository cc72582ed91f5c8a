"""The best Ind-KNN configuration for a budget: the most expected right labels, rehearsed on labelled PUBLIC rows.

UAI23, supplement, section 3: first the threshold without noise, then threshold and noise for each budget and number of queries.
Every candidate is rehearsed with the same order of queries and the same noise; what is chosen is then rehearsed afresh, so that
the forecast does not profit from having won. No private vote, and not the number of private rows, is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from labelwall.experiment.config.config import Config
from labelwall.experiment.plan.private_knn import (
    FRONTIER,
    Choice,
    Forecast,
    Goal,
    Optimum,
    check_goal,
    nothing_affordable,
    planned_config,
)
from labelwall.experiment.plan.simulated_records import StandIns, threshold_at
from labelwall.teacher.accounting.accountant import certified_epsilon, require_affordable
from labelwall.teacher.mechanisms.ind_knn.mechanism import IndKnn
from labelwall.teacher.search.kernels import STEPS
from labelwall.wall.errors import InvalidInput

LEVELS = tuple(step / 20 for step in range(1, 20))  # of the cosine, in the first round
STEP = 0.05  # of the levels
MISSES = 2  # levels in a row that are better for no budget end a walk of the second round
LABEL_NOISE = tuple(
    round(0.15 * 1.5**step, 3) for step in range(10)
)  # sigma_label, in typical weights: 0.15 to 5.77
COUNT_NOISE = (0.5, 1.0, 2.0)  # sigma_count, of the default sqrt(T / (6 rho))
ASKED = (0.125, 0.25, 0.5, 0.75, 1.0)  # number of queries, of the public inputs
REHEARSED = 1000  # queries at least for every candidate, so that chance does not choose
REPEATS = 3  # as many rehearsals again of what was chosen

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Trial:
    """A mechanism, complete with rho, and how often it was right when it was chosen, 0..1."""

    mechanism: IndKnn
    right: float


def best_level(stand_ins: StandIns, kernel: IndKnn) -> tuple[float, float]:
    """First round: (level of the cosine, share right) of the best threshold without noise."""
    tried = ((level, stand_ins.without_noise(_threshold(kernel, level))) for level in LEVELS)
    return max(tried, key=lambda found: found[1])


def _threshold(kernel: IndKnn, level: float) -> float:
    """On the mechanism's grid, which it is rounded to anyway."""
    return max(1, round(threshold_at(kernel, level) * STEPS)) / STEPS


def rehearse(
    stand_ins: StandIns,
    kernel: IndKnn,
    epsilons: Sequence[float],
    delta: float,
    asked: int,
    *,
    level: float,
    seed: int,
    repeats: int = 1,
) -> list[Trial]:
    """Second round, for ``asked`` queries: the best threshold with the best noise, for each epsilon.

    Where budgets are short, noise asks for more neighbours and payments for fewer: levels are tried from ``level`` downwards,
    then upwards, then halfway around the best.
    """
    planned = [
        replace(kernel, rho=None, sigma_count=None).calibrate(epsilon, delta, asked)
        for epsilon in epsilons
    ]
    best, best_levels = [Trial(mechanism, -1.0) for mechanism in planned], [level] * len(planned)

    def attempt(tried: float) -> bool:
        """Whether some budget is better off at this level."""
        threshold, better = _threshold(kernel, tried), False
        unit = stand_ins.typical_weight(threshold)
        mechanisms = [
            _noisy(mechanism, threshold, unit, count)
            for mechanism in planned
            for count in COUNT_NOISE
        ]
        flat = [mechanism for part in mechanisms for mechanism in part]
        shares = stand_ins.ind_knn(flat, asked, repeats, np.random.default_rng(seed)).reshape(
            len(planned), -1
        )
        for place, of_budget in enumerate(shares):
            winner = int(of_budget.argmax())
            if of_budget[winner] > best[place].right:
                best[place] = Trial(flat[place * len(of_budget) + winner], float(of_budget[winner]))
                best_levels[place], better = tried, True
        return better

    for way in (
        [each for each in reversed(LEVELS) if each <= level],
        [each for each in LEVELS if each > level],
    ):
        misses = 0
        for tried in way:
            misses = 0 if attempt(tried) else misses + 1
            if misses == MISSES:
                break
    for tried in sorted({found + side for found in best_levels for side in (-STEP / 2, STEP / 2)}):
        attempt(tried)
    return best


def _noisy(planned: IndKnn, threshold: float, unit: float, count: float) -> list[IndKnn]:
    """With each noise on labels, and ``count`` of the default noise on the number of neighbours."""
    assert planned.sigma_count is not None
    assert planned.rho is not None
    least = 1 / math.sqrt(2 * planned.rho)  # below, nobody can pay for being counted
    counting = round(max(count * planned.sigma_count, 1.001 * least), 2)
    labels = [float(f"{max(0.001, noise * unit):.3g}") for noise in LABEL_NOISE]
    return [
        replace(planned, threshold=threshold, sigma_label=label, sigma_count=counting)
        for label in labels
    ]


def optimise_individual(
    config: Config,
    stand_ins: StandIns,
    goal: Goal,
    progress: Progress = lambda what, done, total: None,
) -> Optimum[IndKnn]:
    """The threshold, noise and number of queries of most expected right labels that ``config.budget`` pays for.

    Kernel, bandwidth and hashing stay ``config``'s. Raises InvalidInput for a goal out of range or a round with a mechanism of
    its own, BudgetRefused where the budget buys nothing (or nothing accurate enough).
    """
    kernel = config.mechanism
    if not isinstance(kernel, IndKnn) or any(r.mechanism is not None for r in config.rounds):
        raise InvalidInput(
            "mechanism", "one ind_knn for all rounds, to be searched for", "other mechanisms"
        )
    check_goal(goal)
    level, _ = best_level(stand_ins, kernel)
    epsilons = [share * config.budget.epsilon for share in FRONTIER]
    by_asked = {}
    wanted = sorted({max(goal.fewest, round(share * goal.queries)) for share in ASKED})
    for number, asked in enumerate(wanted):
        progress("rehearsing", number, len(wanted))
        by_asked[asked] = rehearse(
            stand_ins,
            kernel,
            epsilons,
            goal.delta,
            asked,
            level=level,
            seed=config.seed,
            repeats=_repeats(stand_ins),
        )
    progress("rehearsing", len(wanted), len(wanted))
    frontier = [
        _best(stand_ins, epsilon, goal, [(n, by_asked[n][i]) for n in wanted])
        for i, epsilon in enumerate(epsilons)
    ]
    chosen = frontier[-1]
    if chosen is None:
        raise nothing_affordable(config, goal)
    planned = planned_config(config, chosen)
    require_affordable(planned.plan())
    chosen = replace(chosen, epsilon=certified_epsilon(planned.plan()))
    return Optimum(
        planned, chosen, (*(choice for choice in frontier[:-1] if choice is not None), chosen)
    )


def _best(
    stand_ins: StandIns, epsilon: float, goal: Goal, trials: Sequence[tuple[int, Trial]]
) -> Choice[IndKnn] | None:
    """The most right labels of one budget's trials, each (queries, trial), with a forecast of its own noise."""
    fitting = [(asked, trial) for asked, trial in trials if trial.right >= goal.min_accuracy]
    if not fitting:
        return None
    asked, trial = max(fitting, key=lambda found: found[0] * found[1].right)
    again = REPEATS * _repeats(stand_ins), np.random.default_rng([asked, REPEATS])
    (right,) = stand_ins.ind_knn([trial.mechanism], asked, *again)
    return Choice(epsilon, trial.mechanism, Forecast(asked, asked, 1.0, float(asked), float(right)))


def _repeats(stand_ins: StandIns) -> int:
    return math.ceil(REHEARSED / len(stand_ins.labels))
