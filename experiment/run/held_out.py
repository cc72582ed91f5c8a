"""Doubtful released labels, which classifiers of the others disagree with: they are dropped before
a training can learn them by heart.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...wall.labels import LabelSpace
from ...wall.messages import ABSTAINED
from .features import MAX_ROWS, principal_axes

# Tried on MNIST, Fashion-MNIST and clouds of vectors, with 360 and 900 labels of which a twentieth
# and a seventh are wrong; as good as short trainings of the student, in a hundredth of their time.
DOUBTFUL = 0.1  # a label goes when the other folds' classifier gives it a smaller probability
AXES, LOOSENESS = 64, 5.0  # of the features, and LogisticRegression's C for rows of length 1


@dataclass(frozen=True, eq=False)
class Cleaned:
    """Labels without the doubtful ones, and how their judges fared."""

    labels: np.ndarray  # to train on
    agreement: float | None = None  # share of held-out labels that classifiers of the others give
    judged: int = 0  # how many were held out


def drop_doubtful(
    folds: int,
    space: LabelSpace,
    features: np.ndarray,
    labels: np.ndarray,
    *,
    seed: int,
    sure: np.ndarray | None = None,
) -> Cleaned:
    """``labels`` (int64 [n] or, of attributes, [n, c], -1 where none was released) without the
    doubtful ones, of the same shape.

    Cross-validation as in confident learning (Northcutt et al. 2021, section 3.1): logistic
    regression on the ``features`` (float [n, d], public rows) of all folds but one judges the
    labels of that one; a label to which it gives a probability below DOUBTFUL goes. A class with
    fewer than two labels a fold keeps all of them: its judges saw too little of it. Values are all
    kept: noise moves each of them, and none has a probability. Rows that are ``sure`` (bool [n])
    are judged for the agreement alone. Uses released labels alone. ``folds``: 0 keeps all.
    """
    from sklearn.model_selection import StratifiedKFold  # slow

    if folds < 2 or space.kind == "value":
        return Cleaned(labels)
    strata = space.strata(labels)
    frequent = np.bincount(strata[strata >= 0], minlength=1) >= 2 * folds
    known = np.flatnonzero((strata >= 0) & frequent[strata])
    if not len(known):
        return Cleaned(labels)
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    parts = [known[part] for _, part in split.split(known, strata[known])]
    rows = _on_axes(features)
    kept, right, judged = labels.copy(), 0, 0
    columns = labels.reshape(len(labels), -1).T  # of each attribute, or of the classes
    for own, left in zip(columns, kept.reshape(len(labels), -1).T, strict=True):
        chances, agrees = _judged(rows, own, parts)
        left[chances < DOUBTFUL] = ABSTAINED
        right += int(agrees.sum())
        judged += int((own[known] != ABSTAINED).sum())
    if sure is not None:
        kept[sure] = labels[sure]
    return Cleaned(kept, right / judged if judged else None, judged)


def _on_axes(features: np.ndarray) -> np.ndarray:
    """float64 [n, at most AXES], of length 1 on average."""
    mean, axes = principal_axes(features[:MAX_ROWS], AXES, 0.0)
    rows = np.nan_to_num(features.astype(np.float64) - mean) @ axes.astype(np.float64)
    length = float(np.sqrt((rows**2).sum(axis=1).mean()))
    return np.asarray(rows / (length or 1.0))


def _judged(
    rows: np.ndarray, labels: np.ndarray, parts: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """How likely each label is by those of the other parts, float64 [n], 1 where nobody judged it;
    and whether they would choose it, bool [n].
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    chances, agrees = np.ones(len(labels)), np.zeros(len(labels), dtype=bool)
    for part in parts:
        others = labels != ABSTAINED
        others[part] = False
        part = part[labels[part] != ABSTAINED]
        if not len(part):
            continue
        if len(np.unique(labels[others])) < 2:
            agrees[part] = np.isin(labels[part], labels[others])
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            judge = LogisticRegression(C=LOOSENESS).fit(rows[others], labels[others])
        given = judge.predict_proba(rows[part])
        column = np.searchsorted(judge.classes_, labels[part])
        chances[part] = given[np.arange(len(part)), np.minimum(column, given.shape[1] - 1)]
        agrees[part] = judge.classes_[given.argmax(axis=1)] == labels[part]
    return chances, agrees
