"""What students say of released labels that they were not shown: which labels to drop before a
training can learn them by heart, and how sure a student may be.
"""

import math
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar

from ..wall.messages import ABSTAINED
from ..wall.progress import TaskProgress, no_progress
from .config import StudentConfig
from .data import Pool, has_soft, targets
from .devices import parallel, process_count
from .module import STUDENT_MODULES, Student
from .train import outputs, train

DOUBTFUL = 0.1  # a label goes when the other folds' student gives it a smaller probability
FEWEST = 30  # held-out labels; fewer would choose the temperature by chance
WIDEST = math.log(20)  # of the logarithm of a temperature


@dataclass(frozen=True, eq=False)
class Cleaned:
    """Labels without the doubtful ones, and how their judges fared."""

    labels: np.ndarray  # to train on
    agreement: float | None = None  # share of held-out labels that students of the others give
    judged: int = 0  # how many were held out


def drop_doubtful(
    config: StudentConfig,
    pool: Pool,
    labels: np.ndarray,
    *,
    seed: int,
    progress: TaskProgress = no_progress,
    soft: np.ndarray | None = None,
    workers: int = 1,
) -> Cleaned:
    """``labels`` (int64 [n] or, of attributes, [n, c], -1 where none was released) without the
    doubtful ones, of the same shape.

    Cross-validation as in confident learning (Northcutt et al. 2021, section 3.1): short supervised
    trainings on all folds but one judge the labels of that one; a label to which its judge gives a
    probability below DOUBTFUL goes. A class with fewer than two labels a fold keeps all of them:
    its judges saw too little of it. Values are all kept: noise moves each of them, and none has a
    probability. Rows with probabilities (``soft``, as for train) are judged for the agreement
    alone: they say their doubt themselves. Uses released labels alone. ``progress`` hears the folds
    done; ``workers``: as for ``process_count``.
    """
    folds, kind = config.doubtful_folds, STUDENT_MODULES[pool.labels.kind]
    if folds < 2 or not issubclass(kind, Student):
        return Cleaned(labels)
    fold = stratified(pool.labels.strata(labels), folds, seed)
    brief = replace(
        config, objective="supervised", loss="cross_entropy", steps=config.doubtful_steps
    )
    parts = [np.flatnonzero(fold == number) for number in range(folds)]
    judges = parallel(
        process_count(workers, brief, pool),
        (partial(_unseen, brief, pool, labels, rows, seed + n) for n, rows in enumerate(parts)),
    )
    kept, right, judged = labels.copy(), 0, 0
    for number, (rows, logits) in enumerate(zip(parts, judges, strict=True), start=1):
        progress(number, folds)
        given = kind.probability(torch.from_numpy(logits), torch.from_numpy(labels[rows])).numpy()
        kept[rows] = np.where(given < DOUBTFUL, ABSTAINED, labels[rows])
        known = labels[rows] != ABSTAINED
        right += int((pool.labels.predict(logits) == labels[rows])[known].sum())
        judged += int(known.sum())
    sure = has_soft(soft if config.soft else None, len(labels))
    kept[sure] = labels[sure]
    return Cleaned(kept, right / judged if judged else None, judged)


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
    the labels, and its temperature is the one under which those are most likely (Guo et al. 2017,
    equation 9). ``labels``: int64 [n] or [n, c], -1 where none was released. Released labels alone
    are used, so it is post-processing; no test label takes part. Not chosen for values, which have
    no probability, nor on fewer than FEWEST held-out labels. ``soft``: as for ``train``; rows that
    have released probabilities are held to these, which know that a label may be wrong.
    """
    kind, folds = STUDENT_MODULES[pool.labels.kind], config.calibration_folds
    if not folds or not issubclass(kind, Student):
        return 1.0
    rows = np.flatnonzero(stratified(pool.labels.strata(labels), folds, seed) == 0)
    if len(rows) < FEWEST:
        return 1.0
    logits = _unseen(config, pool, labels, rows, seed, soft, progress)
    wanted = labels[rows] if soft is None else targets(labels[rows], soft[rows])[1]
    return most_likely(kind, torch.from_numpy(logits), torch.from_numpy(wanted))


def most_likely(kind: type[Student], logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The temperature under which ``labels`` are most likely, to four digits.

    ``logits``: float32 [n, c]; ``labels``: int64 [n] or [n, c], ABSTAINED where unknown, or
    probabilities float32 [n, c].
    """

    def surprise(log_temperature: float) -> float:
        tempered = logits.double() / math.exp(log_temperature)
        if labels.is_floating_point():
            return float(F.cross_entropy(tempered, labels.double()))
        given = kind.probability(tempered, labels.clamp(min=0))[labels != ABSTAINED]
        return -float(given.clamp(min=1e-300).log().mean())

    best = minimize_scalar(surprise, bounds=(-WIDEST, WIDEST), method="bounded")
    return float(f"{math.exp(best.x):.4g}")


def _unseen(
    config: StudentConfig,
    pool: Pool,
    labels: np.ndarray,
    rows: np.ndarray,
    seed: int,
    soft: np.ndarray | None = None,
    progress: TaskProgress = no_progress,
) -> np.ndarray:
    """Outputs for ``rows`` by a student of the others: float32 [len(rows), c]."""
    seen, taught = labels.copy(), None if soft is None else soft.copy()
    seen[rows] = ABSTAINED
    if taught is not None:
        taught[rows] = np.nan
    with tempfile.TemporaryDirectory() as folder:
        student = train(
            config, pool, seen, run_dir=Path(folder), seed=seed, progress=progress, soft=taught
        )
    return outputs(pool.spec(config.backbone, student.weights), pool.inputs[rows])


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
