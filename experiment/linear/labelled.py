"""PUBLIC rows with labels: the classifier that they give alone, and what they add to private sums.

All of it is post-processing of released sums and of public rows. Where all classes have labels,
sums are asked without a look at these, which so tell how often the classifier of the sums is right.
Elsewhere the descent begins at the labels' classifier, and sums say what that misses.
"""

import warnings
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp, ndtr
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold

from .measure import MAX_ROWS, unit_inputs

FOLDS = 4  # of the cross-validation; a class needs as many labelled rows
PENALTIES = (1.0, 10.0, 100.0, 1000.0)  # inverse ones, of inputs of length 1
FACTORS = 0.0, 3.0  # of logits


@dataclass(frozen=True)
class Labelled:
    """PUBLIC rows with labels.

    Args:
        inputs: float64 [n, d + 1], of length 1.
        labels: int64 [n], places in ``classes``.
        classes: that have labels, int64 [k], k >= 2.
        weights: of logistic regression on these rows, float64 [d + 1, c], 0 for other classes.
        held: what it says of each row when fitted to other ones, logits float64 [n, k].
    """

    inputs: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    classes: np.ndarray
    weights: np.ndarray = field(repr=False)
    held: np.ndarray = field(repr=False)

    @property
    def right(self) -> float:
        """The share of the labels that these alone give, cross-validated."""
        return self.given(self.held)

    def given(self, logits: np.ndarray) -> float:
        """The share of the labels that ``logits``, float64 [n, k], give."""
        return float((logits.argmax(axis=1) == self.labels).mean())

    def odds(self, logits: np.ndarray, others: np.ndarray) -> float:
        """That ``logits`` give more labels than ``others`` do, both float64 [n, k]."""
        right, theirs = (each.argmax(axis=1) == self.labels for each in (logits, others))
        differ = max(int((right != theirs).sum()), 1)
        more = ndtr(np.clip((int(right.sum()) - int(theirs.sum())) / differ**0.5, -8, 8))
        return float(more / (1 - more))

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
    weights, held = np.zeros((x.shape[1], classes)), np.zeros((len(x), len(present)))
    weights[:, present] = _layer(model.coef_.T)
    (best,) = np.flatnonzero(model.Cs_ == model.C_[0])  # the same for each class
    paths = np.stack(list(model.coefs_paths_.values()), axis=-1)[:, best]
    for path, (_, own) in zip(paths, StratifiedKFold(FOLDS).split(x, y), strict=True):
        held[own] = x[own] @ _layer(path)
    return Labelled(x, y, present, weights, held)


def _layer(columns: np.ndarray) -> np.ndarray:
    """Weights whose logits add up to 0, of scikit-learn's: of two classes it has the second's."""
    both = columns if columns.shape[1] > 1 else columns * [-0.5, 0.5]
    return np.asarray(both - both.mean(axis=1, keepdims=True))


def better(known: Labelled, weights: np.ndarray, lost: float) -> tuple[np.ndarray, float]:
    """(weights float64 [d + 1, c], the share of the labels that they give).

    A mean of the released ``weights`` and those of the labels, at equal lengths of logits. Each
    counts by the odds that it gives more labels of rows that it has not seen than the plain mean
    does. Logits are as sure as the labels allow. ``lost``: share of the classes without labels,
    which others than the released weights may lose.
    """
    released, own = _layer(weights[:, known.classes]), known.weights[:, known.classes]
    logits, seen = known.inputs @ released, known.inputs @ own
    if not known.complete:  # of the labels' classifier, where the descent began
        logits += (known.held - seen) * (logits * seen).sum() / max((seen**2).sum(), 1e-9)
    longer = np.linalg.norm(known.held) / max(float(np.linalg.norm(logits)), 1e-9)
    logits, released = longer * logits, longer * released
    both = logits + known.held
    if lost and max(known.right, known.given(both)) - known.given(logits) <= lost:
        return weights, known.given(logits)
    sums, labels = known.odds(logits, both), known.odds(known.held, both)
    part = (sums + 0.5) / (sums + labels + 1)
    logits, layer = (part * a + (1 - part) * b for a, b in ((logits, known.held), (released, own)))

    def surprise(factor: float) -> float:
        likely = log_softmax(factor * logits, axis=1)
        return -float(likely[np.arange(len(likely)), known.labels].sum())

    factor = minimize_scalar(surprise, bounds=FACTORS, method="bounded").x
    mixed, old = weights.copy(), weights[:, known.classes]
    mixed[:, known.classes] = new = factor * layer + old.mean(axis=1, keepdims=True)
    # Against classes without labels these are as likely as the sums have them
    less = [logsumexp(known.inputs @ each, axis=1).mean() for each in (old, new)]
    mixed[-1, known.classes] += (less[0] - less[1]) / known.inputs[0, -1]
    return mixed, known.given(logits)
