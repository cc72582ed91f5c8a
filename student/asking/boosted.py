"""Boosted trees of labelled PUBLIC rows: what they say alone, and columns beside those of a row.

Trees say logits of classes, or a value from -1 at its lower bound to 1 at the upper. What they say
of a labelled row is by trees that have not seen it, since a private row's is, too.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, StratifiedKFold
from threadpoolctl import threadpool_limits

from ...wall.errors import InvalidInput
from ...wall.label_kinds import half_ranges
from ...wall.labels import LabelSpace
from ..linear.measure import MAX_ROWS
from ..linear.tuning import FOLDS, VALUES_UNIT

TREES, DEPTH, NODES = "trees", 4, 15  # as wall.networks has them: name, levels, nodes above leaves
STEPS = 100  # of the boosting
LEAST_ROWS, MOST_COLUMNS, MOST_CLASSES = 100, 128, 30  # else they learn little, or take too long
LARGEST = float(np.finfo(np.float32).max)

Model: TypeAlias = HistGradientBoostingClassifier | HistGradientBoostingRegressor


@dataclass(frozen=True)
class Boosted:
    """Boosted trees of PUBLIC rows with labels.

    Args:
        tensors: of the trunk of the network TREES, float32: those of all folds, whose sum is the
            mean of what the folds say.
        held: what is said of all PUBLIC rows, float32 [n, c], in the unit of the tensors.
        right: share of the labels that this gives, none of classes with fewer than FOLDS; or R2 of
            values.
    """

    tensors: dict[str, np.ndarray] = field(repr=False)
    held: np.ndarray = field(repr=False)
    right: float

    def beside(self, rows: np.ndarray) -> np.ndarray:
        """Features of all PUBLIC ``rows``, float32 [n, d], in their order: float32 [n, d + c]."""
        return np.concatenate([rows, self.held], axis=1)


def boosted(rows: np.ndarray, labels: np.ndarray | None, space: LabelSpace) -> Boosted | None:
    """Trees of PUBLIC rows, float32 [n, d], with ``labels``, int64 [n], -1 for none.

    Labels are classes or steps of a value. None of images, of many columns or classes, and of few
    labels.
    """
    if labels is None or rows.ndim != 2:
        return None
    if rows.shape[1] > MOST_COLUMNS or space.outputs > MOST_CLASSES:
        return None
    labelled, classes = np.flatnonzero(labels >= 0)[:MAX_ROWS], space.outputs
    known, present = len(labelled), np.arange(classes)
    if space.kind == "class":
        present = np.flatnonzero(np.bincount(labels[labelled], minlength=classes) >= FOLDS)
        labelled = labelled[np.isin(labels[labelled], present)]
    if len(labelled) < LEAST_ROWS or len(np.unique(labels[labelled])) < 2:
        return None
    x, y = rows[labelled], labels[labelled]
    if space.kind == "value":
        y, split = half_ranges(y), KFold(FOLDS, shuffle=True, random_state=0)
    else:
        split = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    folds = list(split.split(x, y))
    with threadpool_limits(limits=1):  # so that a resumed run has the same ones
        models = [_model(space.kind).fit(x[others], y[others]) for others, _ in folds]
        said = [_said(model, rows, classes) for model in models]
    held = np.mean(said, axis=0)
    for own, (_, fold) in zip(said, folds, strict=True):
        held[labelled[fold]] = own[labelled[fold]]
    spread = held.var(axis=0).sum()
    unit = (x.var(axis=0).sum() / spread) ** 0.5 if spread else 1.0
    unit *= VALUES_UNIT if space.kind == "value" else 1.0
    if space.kind == "value":
        right = r2_score(y, held[labelled, 0])
    else:
        right = (present[held[labelled][:, present].argmax(axis=1)] == y).sum() / known
    parts = [_tensors(model, classes, unit / FOLDS) for model in models]
    tensors = {name: np.concatenate([of_fold[name] for of_fold in parts]) for name in parts[0]}
    return Boosted(tensors=tensors, held=(unit * held).astype(np.float32), right=float(right))


def lacking() -> InvalidInput:
    """The error for features of trees where there are none."""
    rows = f"at least {LEAST_ROWS} labelled public rows of at most {MOST_COLUMNS} columns"
    kinds = f"values or at most {MOST_CLASSES} classes"
    text = f"`features: {TREES}` needs `public_labels: train`, {rows}, and {kinds}."
    return InvalidInput("features", "another one", TREES, text=text)


def _model(kind: str) -> Model:
    known = {"class": HistGradientBoostingClassifier, "value": HistGradientBoostingRegressor}
    return known[kind](max_iter=STEPS, max_depth=DEPTH, early_stopping=False, random_state=0)


def _own(model: Model) -> np.ndarray:
    """The outputs that a model has trees of: of two classes the second."""
    if isinstance(model, HistGradientBoostingRegressor):
        return np.zeros(1, dtype=np.int64)
    return np.asarray(model.classes_ if len(model.classes_) > 2 else model.classes_[1:])


def _said(model: Model, rows: np.ndarray, outputs: int) -> np.ndarray:
    """float64 [n, outputs], 0 for classes without trees."""
    if isinstance(model, HistGradientBoostingRegressor):
        return np.asarray(model.predict(rows)[:, np.newaxis])
    said, own = np.zeros((len(rows), outputs)), _own(model)
    said[:, own] = model.decision_function(rows).reshape(-1, len(own))
    return said


def _tensors(model: Model, classes: int, unit: float) -> dict[str, np.ndarray]:
    """A model's trees as complete ones, one of each output in turn, whose leaves add up to what it
    says times ``unit``.

    A float32 is above a threshold if it is above the next float32 below that. A leaf above the last
    level goes to the left, as nothing is above the largest float32.
    """
    column = np.zeros((STEPS * classes, NODES))
    threshold, leaf = np.full(column.shape, LARGEST), np.zeros((len(column), NODES + 1))
    own = _own(model)
    for step, trees in enumerate(model._predictors):
        for kind, tree in zip(own, trees, strict=True):
            number, left = step * classes + kind, [(0, 0, DEPTH)]
            while left:
                node, position, levels = left.pop()
                found = tree.nodes[node]
                if found["is_leaf"]:
                    leaf[number, ((position + 1) << levels) - 1 - NODES] = found["value"]
                    continue
                column[number, position] = found["feature_idx"]
                threshold[number, position] = found["num_threshold"]
                left.append((found["left"], 2 * position + 1, levels - 1))
                left.append((found["right"], 2 * position + 2, levels - 1))
    leaf[own] += np.reshape(model._baseline_prediction, (-1, 1))
    below = np.clip(threshold, -LARGEST, LARGEST).astype(np.float32)
    below = np.where(below > threshold, np.nextafter(below, np.float32(-LARGEST)), below)
    return {
        "column": column.astype(np.float32),
        "threshold": below,
        "leaf": (unit * leaf).astype(np.float32),
    }
