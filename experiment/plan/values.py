"""The best neighbours and sampling of a noisy mean or median for a budget, from PUBLIC rows.

Every labelled row is a query among the others, of which a fraction stands for k neighbours among
the expected number of records. The squared error of an answer is that of the fraction's own mean or
median, and that of the noise, computed and not drawn. How many queries are asked stays as
configured: with more of them each has more noise, and a student averages over more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ...teacher.mechanisms.base import Priced
from ...teacher.mechanisms.calibration import calibrate
from ...teacher.mechanisms.values import (
    MAX_NEIGHBOURS,
    PrivateKnnMean,
    PrivateKnnMedian,
    Regression,
)
from ...wall.label_kinds import STEPS
from ...wall.progress import Progress
from .goal import Choice, Goal, Optimum, PublicRows
from .votes import neighbours

SAMPLING = (0.03, 0.1, 0.3)
FRACTIONS = 8  # of the records that vote, from a few rows to MAX_FRACTION
MAX_FRACTION, LEAST_K = 0.3, 5
DEFAULT_ASKED = 300  # queries, where no round says how many
FOLDS = 4  # parts of the rows, between which R2 spreads
R = TypeVar("R", bound=Regression)


def plan(mechanism: R, goal: Goal, public: PublicRows, progress: Progress) -> Optimum[R]:
    """See ``goal.Planner``: k and the sampling probability; other fields are the configuration's.

    The accuracy is R2. Answers are not screened.
    """
    goal.check()
    features, labels, _ = public.embed()
    near = neighbours(features, labels)
    tried = _tried(mechanism, goal, near, labels, progress)
    source = f"values of {len(labels)} labelled public rows, each left out of its own"
    note = "The accuracy is R2."
    return Optimum(goal, tried[0].certified(goal), source, note, tuple(tried))


def _tried(
    mechanism: R, goal: Goal, near: np.ndarray, labels: np.ndarray, progress: Progress
) -> list[Choice[R]]:
    """Best first. ``near``: see ``neighbours``."""
    asked = goal.asked or min(goal.queries, max(goal.rounds, DEFAULT_ASKED))
    n, rows, choices = goal.expected_records, near.shape[1], list[Choice[R]]()
    smallest = min(MAX_FRACTION, max(1 / rows, LEAST_K / n))
    open_noise: dict[str, Any] = dict.fromkeys(mechanism.calibrated)
    shape = replace(mechanism, threshold=None, **open_noise)
    for number, gamma in enumerate(SAMPLING):
        progress(f"planning {mechanism.kind}", number, len(SAMPLING))
        shape = replace(shape, sample_rate=gamma)
        (noisy,) = calibrate([Priced(shape, asked, asked)], goal.epsilon, goal.delta)
        for fraction in np.geomspace(smallest, MAX_FRACTION, FRACTIONS).tolist():
            k = round(gamma * fraction * n)
            if not LEAST_K <= k <= MAX_NEIGHBOURS:
                continue
            sized = replace(noisy, k=k)  # on which the noise does not depend
            voting = near[:, : max(1, round(fraction * rows))]
            r2, spread = explained(squared_errors(sized, voting, labels), labels)
            worth = max(r2, 0.0)
            choices.append(Choice(goal.epsilon, sized, asked, asked, asked, worth, spread))
    progress(f"planning {mechanism.kind}", len(SAMPLING), len(SAMPLING))
    if not choices:
        raise goal.nothing_affordable()
    return sorted(choices, key=lambda choice: -choice.accuracy)


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
    squares: np.ndarray = (chances * away**2).sum(axis=1)
    return squares


def explained(errors: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """(R2, its standard deviation between FOLDS parts of the rows)."""
    variance = max(float(np.var(labels / STEPS)), 1e-12)
    parts = [1 - float(errors[part::FOLDS].mean()) / variance for part in range(FOLDS)]
    return 1 - float(errors.mean()) / variance, float(np.std(parts, ddof=1))
