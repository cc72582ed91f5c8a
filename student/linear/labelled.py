"""PUBLIC rows with labels: the model that they give alone, and what they add to private sums.

All of it is post-processing of released sums and of public rows. If all classes have labels, sums
are asked without a look at these, so that the labels tell how often the classifier of the sums is
right. If some class has none, the descent begins at the labels' classifier, and sums say what that
misses.
"""

import warnings
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import brentq, minimize_scalar, nnls
from scipy.special import expit, log_softmax, logit, logsumexp, ndtr
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV, Ridge, RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict

from ...wall.label_kinds import half_ranges
from ...wall.labels import LabelSpace
from .fitted import FACTORS
from .measure import MAX_ROWS, Gradient, unit_inputs
from .moments import class_probabilities
from .tuning import FOLDS, PENALTIES, UNLIKE_VALUES

MIN_SHARE = 1e-6  # of classes with few labels
LEAST_VALUES = 20  # rows, with fewer of which a regression tells nothing


@dataclass(frozen=True)
class Labelled:
    """PUBLIC rows with labels.

    Args:
        inputs: float64 [n, d + 1], of length 1.
        labels: int64 [n], indices of ``classes``.
        classes: that have FOLDS labels, int64 [k], k >= 2.
        shares: of all classes among all labels, float64 [c].
        weights: of logistic regression on these rows, float64 [d + 1, c], 0 for other classes.
        held: logits of each row by a regression on other ones, float64 [n, k].
    """

    inputs: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    classes: np.ndarray
    shares: np.ndarray
    weights: np.ndarray = field(repr=False)
    held: np.ndarray = field(repr=False)

    @property
    def right(self) -> float:
        """Share of all labels that these alone give, cross-validated: none of other classes."""
        return self.given(self.held) * float(self.shares[self.classes].sum())

    def given(self, logits: np.ndarray) -> float:
        """Share of these rows' labels that ``logits``, float64 [n, k], give."""
        return float((logits.argmax(axis=1) == self.labels).mean())

    def odds(self, logits: np.ndarray, others: np.ndarray) -> float:
        """Odds that ``logits`` give more labels than ``others`` do, both float64 [n, k]."""
        right, theirs = (each.argmax(axis=1) == self.labels for each in (logits, others))
        differ = max(int((right != theirs).sum()), 1)
        more = ndtr(np.clip((int(right.sum()) - int(theirs.sum())) / differ**0.5, -8, 8))
        return float(more / (1 - more))

    @property
    def complete(self) -> bool:
        """Whether every class has labels."""
        return len(self.classes) == self.weights.shape[1]


@dataclass(frozen=True)
class LabelledValues:
    """PUBLIC rows with values, in half ranges from the middle of the bounds.

    Args:
        inputs: float64 [n, d + 1], of length 1 at most.
        values: float64 [n].
        weights: of ridge regression on these rows, float64 [d + 1, 1].
        held: the value of each row by a regression on other ones, float64 [n].
    """

    inputs: np.ndarray = field(repr=False)
    values: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    held: np.ndarray = field(repr=False)

    @property
    def right(self) -> float:
        """R2 of the values by these rows alone, cross-validated."""
        return float(r2_score(self.values, self.held))

    def unlike(self, measured: Gradient, records: float) -> bool:
        """Whether the ``records`` have other moments than these rows, by more than chance.

        ``measured``: their gradient at weights of 0: the mean of input times value, negative.
        """
        each = self.inputs * self.values[:, np.newaxis]
        chance = each.var(axis=0) * (1 / len(each) + 1 / records)
        squares = (each.mean(axis=0) + measured.mean[:, 0]) ** 2
        excess = (squares / (chance + measured.deviation**2) - 1).sum()
        return bool(excess > UNLIKE_VALUES * (2 * len(squares)) ** 0.5)


PublicLabels = Labelled | LabelledValues


def labelled(
    features: np.ndarray, labels: np.ndarray | None, length: float, space: LabelSpace
) -> PublicLabels | None:
    """The labelled ones of PUBLIC rows int8 [n, d], and their classifier or regression.

    ``labels``: of a class or a value, int64 [n], -1 for none; ``length``: of a unit vector after
    quantisation. None if they are too few.
    """
    if labels is None:
        return None
    if space.kind == "value":
        return labelled_values(features, labels, length)
    return labelled_classes(features, labels, length, space.outputs)


def labelled_classes(
    features: np.ndarray, labels: np.ndarray, length: float, classes: int
) -> Labelled | None:
    """The labelled ones, at most MAX_ROWS, of PUBLIC rows int8 [n, d], and their classifier.

    ``labels``: int64 [n], -1 for none; ``length``: of a unit vector after quantisation. None if
    fewer than two of the ``classes`` have FOLDS labels.
    """
    rows = np.flatnonzero(labels >= 0)[:MAX_ROWS]
    inputs, labels = unit_inputs(features[rows], length), labels[rows]
    counts = np.bincount(labels, minlength=classes)
    present = np.flatnonzero(counts >= FOLDS)
    if len(present) < 2:
        return None
    enough = np.flatnonzero(np.isin(labels, present))
    x, y = inputs[enough], np.searchsorted(present, labels[enough])
    model = LogisticRegressionCV(Cs=PENALTIES, cv=FOLDS, fit_intercept=False, max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    weights, held = np.zeros((x.shape[1], classes)), np.zeros((len(x), len(present)))
    weights[:, present] = _layer(model.coef_.T)
    (best,) = np.flatnonzero(model.Cs_ == model.C_[0])  # the same for each class
    paths = np.stack(list(model.coefs_paths_.values()), axis=-1)[:, best]
    for path, (_, fold) in zip(paths, StratifiedKFold(FOLDS).split(x, y), strict=True):
        held[fold] = x[fold] @ _layer(path)
    return Labelled(
        inputs=x,
        labels=y,
        classes=present,
        shares=counts / counts.sum(),
        weights=weights,
        held=held,
    )


def labelled_values(
    features: np.ndarray, codes: np.ndarray, length: float
) -> LabelledValues | None:
    """The ones with values, at most MAX_ROWS, of PUBLIC rows int8 [n, d], and their regression.

    ``codes``: steps of the values, int64 [n], -1 for none; ``length``: of a unit vector after
    quantisation. None of fewer than LEAST_VALUES rows.
    """
    rows = np.flatnonzero(codes >= 0)[:MAX_ROWS]
    if len(rows) < LEAST_VALUES:
        return None
    x, y = unit_inputs(features[rows], length), half_ranges(codes[rows])
    model = RidgeCV([1 / penalty for penalty in PENALTIES], fit_intercept=False).fit(x, y)
    alone = Ridge(alpha=model.alpha_, fit_intercept=False)
    held = cross_val_predict(alone, x, y, cv=KFold(FOLDS, shuffle=True, random_state=0))
    return LabelledValues(inputs=x, values=y, weights=model.coef_[:, np.newaxis], held=held)


def _layer(columns: np.ndarray) -> np.ndarray:
    """Weights whose logits add up to 0, of scikit-learn's: of two classes it has the second's."""
    both = columns if columns.shape[1] > 1 else columns * [-0.5, 0.5]
    return np.asarray(both - both.mean(axis=1, keepdims=True))


def better(public: Labelled, weights: np.ndarray, lost: float) -> tuple[np.ndarray, float]:
    """(weights float64 [d + 1, c], the share of the labels that they give).

    They are a mean of the released ``weights`` and those of the labels, at equal lengths of logits.
    Each counts by the odds that it gives more labels of rows that it has not seen than the plain
    mean does. The released ``weights`` stay as they are if the labels gain no more than the share
    ``lost``: that of the classes without labels, which a mean may lose.
    """
    released, own = _layer(weights[:, public.classes]), public.weights[:, public.classes]
    logits = _unseen(public, released, own)
    longer = np.linalg.norm(public.held) / max(float(np.linalg.norm(logits)), 1e-9)
    logits, released = longer * logits, longer * released
    both = logits + public.held
    if lost and max(public.given(public.held), public.given(both)) - public.given(logits) <= lost:
        return weights, public.given(logits)
    sums, labels = public.odds(logits, both), public.odds(public.held, both)
    share = (sums + 0.5) / (sums + labels + 1)
    logits = share * logits + (1 - share) * public.held
    layer = share * released + (1 - share) * own
    return _replaced(public, weights, _sureness(public, logits) * layer), public.given(logits)


def _unseen(public: Labelled, released: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Logits of the labelled rows by ``released`` weights, float64 [n, k].

    If the descent began at the labels' classifier (``own``), its part of them is replaced by the
    logits of a regression that has not seen the row.
    """
    logits, seen = public.inputs @ released, public.inputs @ own
    if not public.complete:
        logits += (public.held - seen) * (logits * seen).sum() / max((seen**2).sum(), 1e-9)
    return np.asarray(logits)


def _sureness(public: Labelled, logits: np.ndarray) -> float:
    """Factor of the ``logits`` under which the labels are most probable."""

    def surprise(factor: float) -> float:
        likely = log_softmax(factor * logits, axis=1)
        return -float(likely[np.arange(len(likely)), public.labels].sum())

    return float(minimize_scalar(surprise, bounds=FACTORS, method="bounded").x)


def _replaced(public: Labelled, weights: np.ndarray, layer: np.ndarray) -> np.ndarray:
    """The ``weights`` with a new ``layer`` for the classes that have labels enough.

    The others are then as likely as their labels are frequent or, without any, as the sums have
    them. The layer's logits have another length, so that where it is unsure these would win.
    """
    mixed, others = weights.copy(), np.setdiff1d(np.arange(weights.shape[1]), public.classes)
    mixed[:, public.classes] = layer + weights[:, public.classes].mean(axis=1, keepdims=True)
    if others.size:
        released = class_probabilities(public.inputs @ weights).mean(axis=0)
        target = np.where(public.shares > 0, public.shares, released)[others].sum()
        target = float(np.clip(target, MIN_SHARE, 1 - MIN_SHARE))
        logits = public.inputs @ mixed
        lead = logsumexp(logits[:, others], axis=1) - logsumexp(logits[:, public.classes], axis=1)
        less = lead - logit(target)  # by one of these each row would be on the target
        offset = brentq(
            lambda x: float(expit(lead - x).mean()) - target, less.min() - 1e-3, less.max() + 1e-3
        )
        mixed[-1, public.classes] += offset / public.inputs[0, -1]
    return mixed


def with_values(public: LabelledValues, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """(weights float64 [d + 1, 1], R2 of the public values that they give).

    They are a sum of the released ``weights`` and of the rows' own: the parts, not below 0, that
    miss the public values least, the own ones by regressions that have not seen the row.
    """
    both = np.column_stack([public.inputs @ weights[:, 0], public.held])
    parts, _ = nnls(both, public.values)
    right = float(r2_score(public.values, both @ parts))
    return parts[0] * weights + parts[1] * public.weights, right
