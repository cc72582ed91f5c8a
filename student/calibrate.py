"""How sure a student may be: the temperature of its probabilities, and how far they are off.

Guo et al. 2017 ("On calibration of modern neural networks"): equation 9 for the temperature,
equation 3 for the expected calibration error.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from ..wall.messages import ABSTAINED
from ..wall.progress import TaskProgress, no_progress
from .config import StudentConfig
from .data import Pool
from .drop_doubtful import stratified
from .module import STUDENT_MODULES, Student
from .train import outputs, train

BINS = 15  # of equal width, for the expected calibration error
FEWEST = 30  # held-out labels; fewer would choose the temperature by chance
WIDEST = math.log(20)  # of the logarithm of a temperature


def temperature(
    config: StudentConfig,
    pool: Pool,
    labels: np.ndarray,
    *,
    seed: int,
    progress: TaskProgress = no_progress,
    soft: np.ndarray | None = None,
) -> float:
    """The temperature of the student that ``config`` trains on ``labels``: at least 1/20, at most
    20; 1 where it is not chosen.

    A second student is trained in the same way without one part in config.calibration_folds of
    the labels, and its temperature is the one under which those are most likely. ``labels``: int64
    [n] or [n, c], -1 where none was released. Released labels alone are used, so it is
    post-processing; no test label takes part. Not chosen for values, which have no probability,
    nor on fewer than FEWEST held-out labels. ``soft``: as for ``train``; rows that have released
    probabilities are held to these, which know that a label may be wrong.
    """
    kind, folds = STUDENT_MODULES[pool.labels.loss], config.calibration_folds
    if not folds or not issubclass(kind, Student):
        return 1.0
    held_out = np.flatnonzero(stratified(pool.labels.strata(labels), folds, seed) == 0)
    if len(held_out) < FEWEST:
        return 1.0
    seen = labels.copy()
    seen[held_out] = ABSTAINED
    taught = None if soft is None else soft.copy()
    if taught is not None:
        taught[held_out] = np.nan
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        second = train(
            config, pool, seen, run_dir=folder, seed=seed, progress=progress, soft=taught
        )
    logits = outputs(pool.spec(config.backbone, second.weights), pool.inputs[held_out])
    if soft is not None and np.isfinite(soft[held_out]).all():
        return nearest(torch.from_numpy(logits), torch.from_numpy(soft[held_out]))
    return most_likely(kind, torch.from_numpy(logits), torch.from_numpy(labels[held_out]))


def nearest(logits: torch.Tensor, soft: torch.Tensor) -> float:
    """The temperature with the least cross-entropy to probabilities [n, c], to four digits."""
    targets = soft.double()

    def surprise(log_temperature: float) -> float:
        tempered = logits.double() / math.exp(log_temperature)
        return float(torch.nn.functional.cross_entropy(tempered, targets))

    return _best(surprise)


def most_likely(kind: type[Student], logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The temperature under which ``labels`` are most likely, to four digits.

    ``logits``: float32 [n, c]; ``labels``: int64 [n] or [n, c], ABSTAINED where unknown.
    """
    known = labels != ABSTAINED

    def surprise(log_temperature: float) -> float:
        given = kind.probability(logits.double() / math.exp(log_temperature), labels.clamp(min=0))
        return -float(given[known].clamp(min=1e-300).log().mean())

    return _best(surprise)


def _best(surprise: Callable[[float], float]) -> float:
    """The temperature whose logarithm is the least surprise."""
    best = minimize_scalar(surprise, bounds=(-WIDEST, WIDEST), method="bounded")
    return float(f"{math.exp(best.x):.4g}")


def reliability(certainty: np.ndarray, right: np.ndarray) -> list[list[float]]:
    """BINS of [how many answers, their mean certainty, the share of them that is right].

    ``certainty``: float64 in 0..1; ``right``: bool of the same shape. An empty bin holds zeros.
    """
    place = np.minimum((certainty.ravel() * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(place, minlength=BINS)
    columns: list[list[float]] = [count.tolist()]
    for amounts in (certainty, right):
        total = np.bincount(place, amounts.ravel(), BINS)
        columns.append((total / np.maximum(count, 1)).round(6).tolist())
    return [list(row) for row in zip(*columns, strict=True)]


def calibration_error(bins: list[list[float]]) -> float | None:
    """The expected calibration error of ``reliability``'s bins, a share in 0..1.

    The mean distance between certainty and share of right answers; None without answers.
    """
    answers = sum(count for count, _, _ in bins)
    gaps = sum(count * abs(certainty - right) for count, certainty, right in bins)
    return gaps / answers if answers else None
