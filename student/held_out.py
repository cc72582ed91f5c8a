"""Doubtful released labels, which students of the others disagree with: they are dropped before a
training can learn them by heart.
"""

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ..wall.messages import ABSTAINED
from ..wall.progress import TaskProgress, no_progress
from .batches import Lesson, has_soft
from .several_devices import parallel, process_count
from .student_config import StudentConfig
from .student_model import outputs
from .train import train
from .tuning import DOUBTFUL, LEAST_STEPS, PASSES


@dataclass(frozen=True, eq=False)
class Cleaned:
    """Labels without the doubtful ones, and how their judges fared."""

    labels: np.ndarray  # to train on
    agreement: float | None = None  # share of held-out labels that students of the others give
    judged: int = 0  # how many were held out


def drop_doubtful(
    config: StudentConfig,
    lesson: Lesson,
    *,
    seed: int,
    progress: TaskProgress = no_progress,
    workers: int = 1,
) -> Cleaned:
    """The lesson's labels without the doubtful ones, of the same shape.

    Cross-validation as in confident learning (Northcutt et al. 2021, section 3.1): short supervised
    trainings on all folds but one judge the labels of that one; a label to which its judge gives a
    probability below DOUBTFUL goes. A class with fewer than two labels a fold keeps all of them:
    its judges saw too little of it. Values are all kept: noise moves each of them, and none has a
    probability. Rows with probabilities (``chances``) are judged for the agreement alone: they say
    their doubt themselves. Uses released labels alone. ``progress`` hears the folds done;
    ``workers``: as for ``process_count``.
    """
    from sklearn.model_selection import StratifiedKFold  # slow

    folds, labels, space = config.doubtful_folds, lesson.labels, lesson.pool.labels
    if folds < 2 or space.kind == "value":
        return Cleaned(labels)
    strata = space.strata(labels)
    frequent = np.bincount(strata[strata >= 0], minlength=1) >= 2 * folds
    eligible = np.flatnonzero((strata >= 0) & frequent[strata])
    if not len(eligible):
        return Cleaned(labels)
    passes = max(LEAST_STEPS, PASSES * len(eligible) // config.batch_labelled)
    steps = min(config.doubtful_steps, passes)
    brief = replace(config, objective="supervised", loss="cross_entropy", steps=steps)
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    parts = [eligible[fold] for _, fold in split.split(eligible, strata[eligible])]
    unsaid = replace(lesson, chances=None)
    judges = parallel(
        process_count(workers, brief, lesson.pool),
        (partial(_judge, brief, unsaid, rows, seed + n) for n, rows in enumerate(parts)),
    )
    kept, right, judged = labels.copy(), 0, 0
    for number, (rows, logits) in enumerate(zip(parts, judges, strict=True), start=1):
        progress(number, folds)
        own, chances = labels[rows], space.probabilities(logits)
        of_classes = space.kind == "class"
        given = chances[np.arange(len(own)), own] if of_classes else np.abs(1 - own - chances)
        kept[rows] = np.where(given < DOUBTFUL, ABSTAINED, own)
        has = own != ABSTAINED
        right += int((space.predict(logits) == own)[has].sum())
        judged += int(has.sum())
    sure = has_soft(lesson.chances if config.soft else None, len(labels))
    kept[sure] = labels[sure]
    return Cleaned(kept, right / judged if judged else None, judged)


def _judge(config: StudentConfig, lesson: Lesson, rows: np.ndarray, seed: int) -> np.ndarray:
    """Outputs for ``rows`` by a student of the other labels: float32 [len(rows), c]."""
    seen, pool = lesson.labels.copy(), lesson.pool
    seen[rows] = ABSTAINED
    with tempfile.TemporaryDirectory() as folder:
        unheard = replace(config, logger="tensorboard")
        weights = train(unheard, replace(lesson, labels=seen), run_dir=Path(folder), seed=seed)
    return outputs(pool.spec(config.backbone, weights), pool.inputs[rows])
