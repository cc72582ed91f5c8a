"""The best Ind-KNN configuration for a budget: the most expected right labels.

UAI23, supplement, section 3: first the threshold without noise, then threshold and noise for each
budget and number of queries. Every candidate is simulated with the same order of queries and the
same noise; the winner is simulated again with new noise, so that its forecast has no selection
bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...teacher.accounting.accountant import certified_epsilon, require_affordable
from ...teacher.mechanisms.base import Priced
from ...teacher.mechanisms.calibration import calibrate
from ...teacher.mechanisms.ind_knn import IndKnn
from ...teacher.search.kernels import STEPS
from ...wall.errors import InvalidInput
from ...wall.progress import Progress, no_progress
from ..config.own import MIN_ROWS
from .goal import (
    Choice,
    Forecast,
    Goal,
    Optimum,
    PublicRows,
)
from .ind_knn_rehearsal import SimulatedRecords, threshold_at

LEVELS = tuple(step / 20 for step in range(1, 20))  # of the cosine, in the first round
STEP = 0.05  # of the levels
MAX_MISSES = 2  # consecutive levels that improve no budget end a pass of the second round
# sigma_label, in typical weights: 0.15 to 5.77
LABEL_NOISE = tuple(round(0.15 * 1.5**step, 3) for step in range(10))
COUNT_NOISE = (0.5, 1.0, 2.0)  # sigma_count, of the default sqrt(T / (6 rho))
ASKED = (0.125, 0.25, 0.5, 0.75, 1.0)  # number of queries, as a share of the public inputs
MIN_SIMULATED = 1000  # queries for every candidate, so that chance does not decide
REPEATS = 3  # simulations of the winner, as a multiple of a candidate's


def plan(kernel: IndKnn, goal: Goal, public: PublicRows, progress: Progress) -> Optimum[IndKnn]:
    """See ``goal.Planner``: threshold, noise and rho; all other fields are those of ``kernel``.

    No model can replace public rows.
    """
    if goal.mean_accuracy is not None:
        rule = f"left out with {IndKnn.kind}, whose neighbours no model knows"
        raise InvalidInput("mean_accuracy", rule, goal.mean_accuracy)
    if public.available < MIN_ROWS:
        rule = f"at least {MIN_ROWS} labelled rows, to rehearse {IndKnn.kind} with"
        raise InvalidInput("data.test", rule, public.available)
    features, labels, length = public.embed()
    records = SimulatedRecords.of(
        features, labels, goal.expected_records, public.num_classes, kernel, length
    )
    return optimise(kernel, records, goal, progress)


def optimise(
    kernel: IndKnn, records: SimulatedRecords, goal: Goal, progress: Progress = no_progress
) -> Optimum[IndKnn]:
    """See ``goal.Planner``; the records are simulated already."""
    goal.check()
    level, _ = best_level(records, kernel)
    epsilons = [share * goal.epsilon for share in goal.shares]
    by_asked = {}
    numbers = sorted({max(goal.rounds, round(share * goal.queries)) for share in ASKED})
    for done, asked in enumerate(numbers):
        progress("rehearsing", done, len(numbers))
        by_asked[asked] = best_noise(
            records,
            kernel,
            epsilons,
            goal.delta,
            asked,
            level=level,
            seed=goal.seed,
            repeats=_repeats(records),
        )
    progress("rehearsing", len(numbers), len(numbers))
    frontier = [
        _best(records, epsilon, goal, [(n, by_asked[n][i]) for n in numbers])
        for i, epsilon in enumerate(epsilons)
    ]
    best = frontier[-1]
    if best is None:
        raise goal.nothing_affordable()
    whole = best.plan(goal)
    require_affordable(whole)
    chosen = replace(best, epsilon=certified_epsilon(whole))
    return Optimum(
        chosen,
        (*(choice for choice in frontier[:-1] if choice is not None), chosen),
        records.description,
        f"The last row is certified: {chosen.within(goal)}, however many queries are asked. "
        "Kernel and hashing are the configuration's.",
    )


@dataclass(frozen=True)
class Trial:
    """A mechanism with its rho, and its share of right answers in the search, 0..1."""

    mechanism: IndKnn
    right: float


def best_level(records: SimulatedRecords, kernel: IndKnn) -> tuple[float, float]:
    """First round: (level of the cosine, share right) of the best threshold without noise."""
    tried = ((level, records.without_noise(_threshold(kernel, level))) for level in LEVELS)
    return max(tried, key=lambda found: found[1])


def _threshold(kernel: IndKnn, level: float) -> float:
    """The threshold at a level of the cosine, rounded to the mechanism's grid as it would be."""
    return max(1, round(threshold_at(kernel, level) * STEPS)) / STEPS


def best_noise(
    records: SimulatedRecords,
    kernel: IndKnn,
    epsilons: Sequence[float],
    delta: float,
    asked: int,
    *,
    level: float,
    seed: int,
    repeats: int = 1,
) -> list[Trial]:
    """Second round, for ``asked`` queries: the best threshold and noise for each epsilon.

    Where budgets are short, noise calls for more neighbours and payments for fewer. Levels are
    tried from ``level`` downwards, then upwards, then half a step around the best.
    """
    priced = Priced(replace(kernel, rho=None, sigma_count=None), asked, asked)
    planned = [calibrate((priced,), epsilon, delta)[0] for epsilon in epsilons]
    best = [Trial(mechanism, -1.0) for mechanism in planned]
    best_levels = [level] * len(planned)

    def attempt(tried: float) -> bool:
        """Whether some budget is better off at this level."""
        threshold, better = _threshold(kernel, tried), False
        unit = records.typical_weight(threshold)
        candidates = [
            candidate
            for mechanism in planned
            for count in COUNT_NOISE
            for candidate in _noisy(mechanism, threshold, unit, count)
        ]
        shares = records.ind_knn(candidates, asked, repeats, np.random.default_rng(seed))
        for i, of_budget in enumerate(shares.reshape(len(planned), -1)):
            winner = int(of_budget.argmax())
            right = float(of_budget[winner])
            if right > best[i].right:
                best[i] = Trial(candidates[i * len(of_budget) + winner], right)
                best_levels[i], better = tried, True
        return better

    downwards = [each for each in reversed(LEVELS) if each <= level]
    upwards = [each for each in LEVELS if each > level]
    for levels in (downwards, upwards):
        misses = 0
        for tried in levels:
            misses = 0 if attempt(tried) else misses + 1
            if misses == MAX_MISSES:
                break
    for tried in sorted({found + side for found in best_levels for side in (-STEP / 2, STEP / 2)}):
        attempt(tried)
    return best


def _noisy(planned: IndKnn, threshold: float, unit: float, count: float) -> list[IndKnn]:
    """One candidate for each noise on labels, with ``count`` times the default noise on counts.

    ``unit``: of the noise on labels, in weights.
    """
    assert planned.sigma_count is not None
    assert planned.rho is not None
    minimum = 1 / math.sqrt(2 * planned.rho)  # below this, no record can pay for one count
    sigma_count = math.ceil(100 * max(count * planned.sigma_count, 1.001 * minimum)) / 100
    labels = [float(f"{max(0.001, noise * unit):.3g}") for noise in LABEL_NOISE]
    return [
        replace(planned, threshold=threshold, sigma_label=label, sigma_count=sigma_count)
        for label in labels
    ]


def _best(
    records: SimulatedRecords, epsilon: float, goal: Goal, trials: Sequence[tuple[int, Trial]]
) -> Choice[IndKnn] | None:
    """The choice with the most right labels among one budget's ``trials``, (queries, trial).

    The forecast is simulated with new noise.
    """
    accurate = [(asked, trial) for asked, trial in trials if trial.right >= goal.min_accuracy]
    if not accurate:
        return None
    asked, trial = max(accurate, key=lambda found: found[0] * found[1].right)
    rng = np.random.default_rng([asked, REPEATS])
    (right,) = records.ind_knn([trial.mechanism], asked, REPEATS * _repeats(records), rng)
    return Choice(epsilon, trial.mechanism, Forecast(asked, asked, 1.0, float(asked), float(right)))


def _repeats(records: SimulatedRecords) -> int:
    return math.ceil(MIN_SIMULATED / len(records.labels))
