"""Drop released labels that the other released labels speak against, before a training can learn
them by heart.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from labelwall.student.config import StudentConfig
from labelwall.student.data import Pool, has_soft
from labelwall.student.fit import TRAINEES
from labelwall.student.module import Student
from labelwall.student.train import outputs, train
from labelwall.wall.messages import ABSTAINED
from labelwall.wall.progress import TaskProgress, unheard


@dataclass(frozen=True, eq=False)
class Pruned:
    """``labels``: those to train on. ``agreement``: share of held-out labels that their judges
    give, None where none was judged; ``judged``: how many were.
    """

    labels: np.ndarray
    agreement: float | None = None
    judged: int = 0


def prune(
    config: StudentConfig,
    pool: Pool,
    labels: np.ndarray,
    *,
    seed: int,
    progress: TaskProgress = unheard,
    soft: np.ndarray | None = None,
) -> Pruned:
    """``labels`` (int64 [n] or, of attributes, [n, c], -1 where none was released) without the
    doubtful ones, of the same shape.

    Cross-validation as in confident learning (Northcutt et al. 2021, section 3.1): short supervised
    trainings on all folds but one judge the labels of that one; a label to which its judge gives a
    probability below config.prune_below goes. A class with fewer than two labels a fold keeps all
    of them: its judges saw too little of it. Values are all kept: noise moves each of them, and
    none has a probability. Rows with probabilities (``soft``, as for train) are judged for the
    agreement alone: they say their doubt themselves. Uses released labels alone.
    """
    folds, kind = config.prune_folds, TRAINEES[pool.labels.loss]
    if folds < 2 or not issubclass(kind, Student):
        return Pruned(labels)
    fold = stratified(pool.labels.strata(labels), folds, seed)
    brief = replace(
        config,
        objective="supervised",
        loss="cross_entropy",
        steps=config.prune_steps,
        warm_start=False,
    )
    pruned, right, judged = labels.copy(), 0, 0
    for number in range(folds):
        with tempfile.TemporaryDirectory() as scratch:
            seen = labels.copy()
            seen[fold == number] = -1
            judge = train(
                brief,
                pool,
                seen,
                run_dir=Path(scratch),
                seed=seed + number,
                progress=partial(_after, progress, number, folds),
            )
        spec = pool.spec(config.backbone, judge.weights)
        rows = np.flatnonzero(fold == number)
        logits = torch.from_numpy(outputs(spec, pool.inputs[rows]))
        given = kind.probability(logits, torch.from_numpy(labels[rows])).numpy()
        doubtful = given < config.prune_below
        pruned[rows] = np.where(doubtful, -1, labels[rows])
        known = labels[rows] != ABSTAINED
        right += int((pool.labels.predict(logits.numpy()) == labels[rows])[known].sum())
        judged += int(known.sum())
    kept = has_soft(soft if config.soft else None, len(labels))
    pruned[kept] = labels[kept]
    return Pruned(pruned, right / judged if judged else None, judged)


def _after(progress: TaskProgress, past: int, of: int, done: int, total: int) -> None:
    """Progress of one of several equal tasks, ``past`` of which are finished."""
    progress(past * total + done, of * total)


def stratified(strata: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """int64 [n]: the fold of each row, -1 for rows that are not judged; every fold gets its share
    of every stratum.
    """
    rng, fold = np.random.default_rng([seed, folds]), np.full(len(strata), -1)
    for stratum in np.unique(strata[strata >= 0]):
        rows = rng.permutation(np.flatnonzero(strata == stratum))
        if len(rows) >= 2 * folds:
            fold[rows] = np.arange(len(rows)) % folds
    return fold
