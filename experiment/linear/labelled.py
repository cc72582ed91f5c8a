"""PUBLIC rows with labels: the classifier that they give alone, and what they add to private sums.

All of it is post-processing of released sums and of public rows; private sums are asked at weights
that may follow from public labels (docs/privacy.md, section 21).
"""

import warnings
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV

from .measure import MAX_ROWS, unit_inputs
from .moments import Moment, minimised

FOLDS = 4  # of the cross-validation; a class needs as many labelled rows
PENALTIES = (1.0, 10.0, 100.0, 1000.0)  # inverse ones, of inputs of length 1
PRIOR = 3.0  # precision of the logarithm of a class's share among labelled rows over the records'


@dataclass(frozen=True)
class Labelled:
    """PUBLIC rows with labels.

    Args:
        inputs: float64 [n, d + 1], of length 1.
        labels: int64 [n], places in ``classes``.
        classes: that have labels, int64 [k], k >= 2.
        weights: of logistic regression on these rows, float64 [d + 1, c], 0 for other classes.
        right: share of their labels that it gives, cross-validated.
    """

    inputs: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    classes: np.ndarray
    weights: np.ndarray = field(repr=False)
    right: float

    @property
    def complete(self) -> bool:
        """Whether every class has labels."""
        return len(self.classes) == self.weights.shape[1]


def labelled(
    features: np.ndarray, labels: np.ndarray | None, length: float, classes: int
) -> Labelled | None:
    """Of the first MAX_ROWS of PUBLIC rows int8 [n, d], of that ``length``, that have ``labels``,
    int64 [n], -1 for none. None where fewer than two of the ``classes`` have FOLDS labels.
    """
    if labels is None:
        return None
    known = np.flatnonzero(labels >= 0)[:MAX_ROWS]
    inputs, labels = unit_inputs(features[known], length), labels[known]
    counts = np.bincount(labels, minlength=classes)
    present = np.flatnonzero(counts >= FOLDS)
    if len(present) < 2:
        return None
    rows = np.flatnonzero(np.isin(labels, present))
    x, y = inputs[rows], np.searchsorted(present, labels[rows])
    model = LogisticRegressionCV(Cs=PENALTIES, cv=FOLDS, fit_intercept=False, max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    layer = model.coef_.T if len(present) > 2 else model.coef_.T * [-0.5, 0.5]
    weights = np.zeros((x.shape[1], classes))
    weights[:, present] = layer - layer.mean(axis=1, keepdims=True)
    right = float(next(iter(model.scores_.values())).mean(axis=0).max())  # the same for each class
    return Labelled(x, y, present, weights, right)


def explained(known: Labelled, moment: Moment, weights: np.ndarray, deviation: float) -> np.ndarray:
    """The most probable weights, float64 [d + 1, c], by public labels and by a ``moment``.

    Their prior is normal around ``weights`` with that ``deviation``, which the noise of a descent
    gave them. The moment is probable where labels by these weights have it, within its noise; the
    shares of the classes among the labelled rows may be others than among the records; the weights
    are for them where all classes have labels, and for the records' elsewhere.
    """
    moment, center = moment.first(moment.most), torch.tensor(weights)
    x, labels, present = (torch.tensor(a) for a in (known.inputs, known.labels, known.classes))
    precision = moment.precision(torch.tensor(softmax(moment.inputs.numpy() @ weights, axis=1)))

    def surprise(point: torch.Tensor) -> torch.Tensor:
        w, offsets = point[:-1], point[-1]
        logits = (x @ w + offsets)[:, present]
        given = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        away = ((w - center) ** 2).sum() / deviation**2 + PRIOR * (offsets**2).sum()
        likely = torch.softmax(moment.inputs @ w, dim=1)
        return given + (away + moment.missed(likely, precision)) / 2

    best = minimised(surprise, np.vstack([weights, np.zeros(weights.shape[1])]))
    if known.complete:
        best[-2] += best[-1] / known.inputs[0, -1]
    return best[:-1]
