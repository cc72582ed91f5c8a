"""The best neighbours and sampling of a noisy mean or median for a budget, from PUBLIC rows.

Every labelled row is a query among the others, of which a fraction stands for k neighbours among
the expected number of records. The squared error of an answer is that of the fraction's own mean or
median, and that of the noise, computed and not drawn. How many queries are asked stays as
configured: with more of them each has more noise, and a student averages over more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ...teacher.accounting.accountant import certified_epsilon, require_affordable
from ...teacher.mechanisms.base import Mechanism, Priced
from ...teacher.mechanisms.solve import solve
from ...teacher.mechanisms.values import (
    MAX_NEIGHBOURS,
    PrivateKnnMean,
    PrivateKnnMedian,
    Regression,
)
from ...teacher.search.cpu import ExactIndex
from ...teacher.search.int8_matmul import float32_product
from ...wall.errors import InvalidInput
from ...wall.labels.values import STEPS
from ...wall.progress import Progress, no_progress
from ..config.own import MIN_ROWS
from .goal import (
    Choice,
    Forecast,
    Goal,
    Optimum,
    PublicRows,
)

SAMPLING = (0.03, 0.1, 0.3)
FRACTIONS = 8  # of the records that vote, from a few rows to MAX_FRACTION
MAX_FRACTION, LEAST_K = 0.3, 5
DEFAULT_ASKED = 300  # queries, where no round says how many
FOLDS = 4  # parts of the rows, between which R2 spreads


@dataclass(frozen=True)
class ValuesPlanner:
    """The search for k and the sampling probability; other fields are those of ``mechanism``."""

    mechanism: Regression
    rehearses: ClassVar[bool] = False

    def check_rounds(self, own: Sequence[Mechanism]) -> None:
        """See ``Planner.check_rounds``: all rounds must share one mechanism."""
        if own:
            rule = "left out: all rounds share the mechanism that is searched for"
            raise InvalidInput("rounds.mechanism", rule, own[0].kind)

    def settings(self, mechanism: Regression) -> dict[str, str]:
        """See ``Planner.settings``."""
        names = ("k", "sampling_probability", *mechanism.calibrated)
        found = {name: vars(mechanism)[name] for name in names}
        return {name: f"{value:g}" for name, value in found.items() if value is not None}

    def plan(
        self, goal: Goal, public: PublicRows, progress: Progress = no_progress
    ) -> Optimum[Regression]:
        """See ``Planner.plan``; the accuracy is R2. Answers are not screened."""
        goal.check()
        if public.available < MIN_ROWS:
            raise InvalidInput("public rows", f"at least {MIN_ROWS} with values", public.available)
        features, labels, _ = public.embed()
        known = neighbours(features, labels)
        best, tried = [], list[Choice[Regression]]()
        for number, share in enumerate(goal.shares):
            progress(f"planning {self.mechanism.kind}", number, len(goal.shares))
            tried = self._candidates(goal, share * goal.epsilon, known, labels)
            best.append(tried[0])
        progress(f"planning {self.mechanism.kind}", len(goal.shares), len(goal.shares))
        plan = tried[0].plan(goal)
        require_affordable(plan)
        exact = replace(tried[0], epsilon=certified_epsilon(plan))
        note = f"The last row is certified: {exact.within(goal)}. The accuracy is R2."
        source = f"values of {len(labels)} labelled public rows, each left out of its own"
        return Optimum(exact, (*best[:-1], exact), source, (note,), {}, tuple(tried))

    def _candidates(
        self, goal: Goal, epsilon: float, known: np.ndarray, labels: np.ndarray
    ) -> list[Choice[Regression]]:
        """Best first."""
        asked = goal.asked or min(goal.queries, max(goal.rounds, DEFAULT_ASKED))
        n, rows, found = goal.expected_records, known.shape[1], list[Choice[Regression]]()
        smallest = min(MAX_FRACTION, max(1 / rows, LEAST_K / n))
        open_noise: dict[str, Any] = dict.fromkeys(self.mechanism.calibrated)
        shape = replace(self.mechanism, threshold=None, **open_noise)
        for gamma in SAMPLING:
            shape = replace(shape, sampling_probability=gamma)
            (noisy,) = solve([Priced(shape, asked, asked)], epsilon, goal.delta)
            for fraction in np.geomspace(smallest, MAX_FRACTION, FRACTIONS).tolist():
                k = round(gamma * fraction * n)
                if not LEAST_K <= k <= MAX_NEIGHBOURS:
                    continue
                mechanism = replace(noisy, k=k)  # on which the noise does not depend
                near = known[:, : max(1, round(fraction * rows))]
                r2, spread = explained(squared_errors(mechanism, near, labels), labels)
                forecast = Forecast(asked, asked, 1.0, asked, max(r2, 0.0), spread)
                found.append(Choice(epsilon, mechanism, forecast))
        if not found:
            raise goal.nothing_affordable()
        return sorted(found, key=lambda choice: -choice.forecast.accuracy)


def neighbours(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Other rows' labels, nearest first: int64 [m, m - 1] of int8 [m, d] and int64 [m]."""
    m = len(labels)
    index = ExactIndex(features, np.arange(m, dtype=np.int64), product=float32_product, threads=1)
    near = index.prefix(features, m)
    return labels[near[near != np.arange(m)[:, None]]].reshape(m, m - 1)


def squared_errors(mechanism: Regression, near: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Expected ones of each row's answer, in ranges: float64 [m].

    ``near``: int64 [m, r], labels of the rows that stand for the k neighbours.
    """
    if isinstance(mechanism, PrivateKnnMean):
        away = (near.mean(axis=1) - labels) / STEPS
        noise = mechanism.require("sigma_mean") / mechanism.k
        return np.minimum(away**2 + noise**2, 1.0)
    assert isinstance(mechanism, PrivateKnnMedian)
    cells = mechanism.cells
    counts = np.zeros((len(near), cells))
    np.add.at(counts, (np.arange(len(near))[:, None], near * cells // (STEPS + 1)), 1.0)
    counts *= mechanism.k / near.shape[1]
    up_to = counts.cumsum(axis=1)
    losses = np.maximum(up_to - counts, up_to[:, -1:] - up_to)
    losses -= losses.min(axis=1, keepdims=True)
    chances = np.exp(-mechanism.require("epsilon") / 2 * losses)
    chances /= chances.sum(axis=1, keepdims=True)
    middles = (2 * np.arange(cells) + 1) / (2 * cells)
    away = middles - labels[:, None] / STEPS
    found: np.ndarray = (chances * away**2).sum(axis=1)
    return found


def explained(errors: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """(R2, its standard deviation between FOLDS parts of the rows)."""
    variance = max(float(np.var(labels / STEPS)), 1e-12)
    parts = [1 - float(errors[part::FOLDS].mean()) / variance for part in range(FOLDS)]
    return 1 - float(errors.mean()) / variance, float(np.std(parts, ddof=1))
