"""Classifiers from noisy sums of gradients and PUBLIC features: post-processing, free.

The first sum, at weights of 0, is one of noisy class sums. A classifier is fitted to it in three
stages, each of which matters at another level of noise (docs/decisions.md):

1. Gaussian classes with one covariance. Their means are fitted to the sums and, by expectation
   maximisation with the noise's law as prior, to the public rows, which have no labels.
2. The factor of those logits at which the public rows' moments are nearest to the sums.
3. Softmax regression: its moments E[p(y | x) x] over the public rows are fitted to the sums. The
   pull towards 2 grows with the noise.

A later sum is a noisy measurement of the gradient at the weights that it was asked for. It moves
the classifier as a Kalman filter does: by its precision beside that of what is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, logsumexp, softmax

from labelwall.experiment.run.judge import Estimate, by_probabilities
from labelwall.experiment.run.sums_model import SumsModel
from labelwall.wall.messages import ABSTAINED, Outcome

# Iterations of expectation maximisation; later ones drift from the classes to the rows' clusters.
ITERATIONS = 6
PUBLIC_SHARE = 0.2  # what a public row counts beside a record in expectation maximisation
MIN_WITHIN = 0.3  # least share of an axis' variance that is within classes
PULL = 3.0  # towards the Gaussian classifier, in standard deviations of the moments
SPREAD = 5.0  # of a weight of inputs of length 1, before anything is known about it
ROUNDING = 1e-10  # least precision, as a share of the largest: equal logits are never told
NEWTON_STEPS, HALVINGS = 4, 6  # of a later sum
GAIN = 1.0  # in twice the log probability: with less, a step is the last one
MAX_STATE = 3000  # weights up to which steps know the whole Hessian, not one block for all classes


@dataclass
class LinearModel(SumsModel):
    """Softmax regression."""

    space = "class"
    has_probabilities = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fit = SoftmaxFit(self._inputs, self.outputs, self.clip)

    def _first(self, gradient: np.ndarray, deviation: float) -> np.ndarray:
        gradient -= gradient.mean(axis=1, keepdims=True)  # residuals add up to 0
        return _centred(self._fit.first(gradient, deviation))

    def _corrected(self, weights: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
        gradient -= gradient.mean(axis=1, keepdims=True)
        return _centred(self._fit.corrected(weights, gradient, deviation))

    def says(self, features: np.ndarray) -> np.ndarray:
        found: np.ndarray = softmax(self.logits(features), axis=1).astype(np.float32)
        return found

    def labels(self, said: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
        """The most probable class, int64 [n], where it leads the next by more than ``margin``."""
        ordered = np.sort(said, axis=1)
        clear = ordered[:, -1] - ordered[:, -2] > margin
        labels = np.where(clear, said.argmax(axis=1), ABSTAINED).astype(np.int64)
        return labels, np.where(clear, Outcome.ANSWERED, Outcome.ABSTAINED).astype(np.uint8)

    def estimate(self, said: np.ndarray) -> Estimate:
        return by_probabilities(said.max(axis=1))


@dataclass
class AttributeModel(SumsModel):
    """One logistic regression an attribute: softmax regressions of absent and present.

    A row's residual r of an attribute is (-r, r) of the two; so is its noise, whose length is that
    of noise of sqrt(2) times the deviation on each, less its mean. Clipping all attributes of a
    record together, which is rare, is not modelled.
    """

    space = "attributes"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fits = [SoftmaxFit(self._inputs, 2, np.inf) for _ in range(self.outputs)]

    def _first(self, gradient: np.ndarray, deviation: float) -> np.ndarray:
        pairs = (np.stack([-column, column], axis=1) for column in gradient.T)
        fitted = zip(self._fits, pairs, strict=True)
        found = [fit.first(pair, np.sqrt(2) * deviation) for fit, pair in fitted]
        return np.stack([pair[:, 1] - pair[:, 0] for pair in found], axis=1)

    def _corrected(self, weights: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
        found = []
        for fit, own, column in zip(self._fits, weights.T, gradient.T, strict=True):
            pair = np.stack([-own, own], axis=1) / 2
            told = np.stack([-column, column], axis=1)
            found.append(fit.corrected(pair, told, np.sqrt(2) * deviation))
        return np.stack([pair[:, 1] - pair[:, 0] for pair in found], axis=1)

    def says(self, features: np.ndarray) -> np.ndarray:
        found: np.ndarray = expit(self.logits(features)).astype(np.float32)
        return found

    def labels(self, said: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
        """Presence, int64 [n, c], where one answer leads the other by more than ``margin``."""
        labels = np.where(np.abs(2 * said - 1) > margin, said > 0.5, ABSTAINED).astype(np.int64)
        some = (labels != ABSTAINED).any(axis=1)
        return labels, np.where(some, Outcome.ANSWERED, Outcome.ABSTAINED).astype(np.uint8)

    def estimate(self, said: np.ndarray) -> Estimate:
        return by_probabilities(np.maximum(said, 1 - said).mean(axis=1))


class SoftmaxFit:
    """Weights of one softmax regression, and their precision after the steps so far.

    Args:
        inputs: PUBLIC, float64 [n, d + 1], about 1 long; the last one is constant.
        classes: their number.
        clip: length of residuals above which they are shrunk.
    """

    def __init__(self, inputs: np.ndarray, classes: int, clip: float) -> None:
        self._inputs, self.classes, self.clip = inputs, classes, clip
        # Precision of the weights after the steps so far, computed if another step follows.
        self._known: Callable[[], np.ndarray] = lambda: np.zeros(0)

    def first(self, gradient: np.ndarray, deviation: float) -> np.ndarray:
        """The weights, float64 [d + 1, c], from the first sum's mean and its noise's deviation."""
        x, shape = self._inputs, gradient.shape
        public = x.var(axis=0).mean() * (1 - 1 / self.classes) / self.classes / len(x)
        deviation = float(np.hypot(deviation, np.sqrt(public)))  # the public mean is noisy, too
        start = _tempered(x, gradient, gaussian_classes(x, gradient, deviation))
        moments = x.mean(axis=0)[:, np.newaxis] / self.classes - gradient
        pull = PULL * deviation

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            w = flat.reshape(shape)
            logits, away = x @ w, w - start
            value = logsumexp(logits, axis=1).mean() - (w * moments).sum()
            slope = x.T @ softmax(logits, axis=1) / len(x) - moments + pull * away
            return value + 0.5 * pull * (away * away).sum(), slope.ravel()

        found = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 150})
        weights: np.ndarray = found.x.reshape(shape)

        def known() -> np.ndarray:
            slope = self._slope(weights, self._zero_residuals())
            symmetric = (slope + slope.T) / 2
            found: np.ndarray = slope.T @ slope / deviation**2 + PULL * symmetric / deviation
            return found

        self._known = known
        return weights

    def corrected(self, weights: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
        """The ``weights``, float64 [d + 1, c], moved to the most probable ones.

        ``gradient``: the records' mean at ``weights``. By Gauss-Newton steps: where rows are all
        but certain the curvature is tiny, and a full step can make things worse, so that it is
        halved until it does not.
        """
        residuals = _clipped_residuals(softmax(self._inputs @ weights, axis=1), self.clip)
        before, start = self._known(), self._flat(weights)
        least = 1 / SPREAD**2 + ROUNDING * np.diag(before).max()

        def misfit(weights: np.ndarray) -> tuple[float, np.ndarray]:
            """(-2 log probability, how far the expected gradient is from the measured one)."""
            missed = self._expected(weights, residuals) - gradient
            away = self._flat(weights) - start
            known = (away * (before @ away)).sum() + least * (away * away).sum()
            return float(known + (missed * missed).sum() / deviation**2), missed

        (value, missed), gained = misfit(weights), np.inf
        for _ in range(NEWTON_STEPS):
            if gained < GAIN:
                break
            slope = self._slope(weights, residuals)
            precision = before + slope.T @ slope / deviation**2
            told = slope.T @ self._flat(missed) / deviation**2
            away = self._flat(weights) - start
            told -= before @ away + least * away
            rounding = least + ROUNDING * np.diag(precision).max()
            step = solve(precision + rounding * np.eye(len(precision)), told, assume_a="pos")
            for halved in range(HALVINGS):
                tried = weights + self._matrix(step) / 2**halved
                found, error = misfit(tried)
                if found < value:
                    break
            else:
                break
            weights, missed, value, gained = tried, error, found, value - found

        def known() -> np.ndarray:
            slope = self._slope(weights, residuals)
            found: np.ndarray = before + slope.T @ slope / deviation**2
            return found

        self._known = known
        return weights

    def _zero_residuals(self) -> np.ndarray:
        """Residuals of every label at weights of 0: float64 [1, c (label), c]."""
        return (1 / self.classes - np.eye(self.classes))[np.newaxis]

    @property
    def _whole(self) -> bool:
        return self._inputs.shape[1] * self.classes <= MAX_STATE

    def _flat(self, matrix: np.ndarray) -> np.ndarray:
        """A state of [d + 1, c]: one column after the other, or as it is."""
        return matrix.T.reshape(-1) if self._whole else matrix

    def _matrix(self, state: np.ndarray) -> np.ndarray:
        return state.reshape(self.classes, -1).T if self._whole else state

    def _expected(self, weights: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """The mean gradient over the public rows if ``weights`` are true: float64 [d + 1, c].

        ``residuals``: float64 [n or 1, c, c], what a label adds.
        """
        p = softmax(self._inputs @ weights, axis=1)
        found: np.ndarray = self._inputs.T @ _mean_residuals(p, residuals) / len(p)
        return found

    def _slope(self, weights: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """The slope of ``_expected``, negative: [s, s] over states s of ``_flat``.

        One block of [d + 1, d + 1] for all classes where the whole is too large.
        """
        x, c = self._inputs, self.classes
        p = softmax(x @ weights, axis=1)
        mean = _mean_residuals(p, residuals)
        if not self._whole:
            own = np.einsum("ny,nyy->n", p, np.broadcast_to(residuals, (len(x), c, c)))
            curvature = ((p * mean).sum(axis=1) - own) / (c - 1)
            block: np.ndarray = (x * curvature[:, np.newaxis]).T @ x / len(x)
            return block
        slope = np.empty((c, x.shape[1], c, x.shape[1]))
        for a in range(c):
            for b in range(c):
                curvature = p[:, b] * (mean[:, a] - residuals[:, b, a])
                slope[a, :, b, :] = (x * curvature[:, np.newaxis]).T @ x / len(x)
        return slope.reshape(c * x.shape[1], -1)


def _mean_residuals(p: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """The residuals that labels of probabilities ``p``, [n, c], add on average: float64 [n, c]."""
    n, c = p.shape
    found: np.ndarray = np.einsum("ny,nya->na", p, np.broadcast_to(residuals, (n, c, c)))
    return found


def gaussian_classes(x: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
    """Weights float64 [d + 1, c] of Gaussian classes with one covariance.

    ``x``: PUBLIC inputs float64 [n, d + 1], the last one constant; ``gradient``: float64 [d + 1, c]
    mean of (1/c - label) x over the records, with noise of ``deviation`` on every entry.
    """
    rows, constant, c = x[:, :-1], x[0, -1], gradient.shape[1]
    center = rows.mean(axis=0)[:, np.newaxis]  # [d, 1]
    covariance = np.cov(rows.T).reshape(len(center), -1) + 1e-9 * np.eye(len(center))
    shares = _shares(gradient[-1] / constant, deviation / constant)
    noisy = center - (gradient[:-1] + (shares - 1 / c) * center) / shares
    spread = deviation / shares  # of the noise on a class's mean
    means = center + _shrunk(noisy - center, covariance, spread)
    for left in reversed(range(ITERATIONS)):
        precision = _within_precision(covariance, means - center, shares)
        weights = precision @ means
        offsets = -0.5 * (means * weights).sum(axis=0)
        if not left:
            break
        p = softmax(rows @ weights + offsets, axis=1)
        shares = p.mean(axis=0)
        for k in range(c):
            seen = PUBLIC_SHARE * precision
            known = seen * p[:, k].sum() + np.eye(len(center)) / spread[k] ** 2
            told = seen @ (rows.T @ p[:, k]) + noisy[:, k] / spread[k] ** 2
            means[:, k] = solve(known, told, assume_a="pos")
    found = np.vstack([weights, offsets / constant])
    centred: np.ndarray = found - found.mean(axis=1, keepdims=True)
    return centred


def _shares(gradient: np.ndarray, deviation: float) -> np.ndarray:
    """Shares of the classes, float64 [c], shrunk to equal ones as far as noise explains them."""
    away = -gradient
    kept = max(0.0, 1 - len(away) * deviation**2 / max((away * away).sum(), 1e-300))
    shares = np.maximum(1 / len(away) + kept * away, 0.1 / len(away))
    normal: np.ndarray = shares / shares.sum()
    return normal


def _shrunk(means: np.ndarray, covariance: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Noisy class means [d, c], shrunk along each principal axis as far as noise explains them."""
    _, axes = np.linalg.eigh(covariance)
    along = axes.T @ means
    squares = np.maximum((along * along).sum(axis=1), 1e-300)
    kept = np.maximum(0.0, 1 - (spread * spread).sum() / squares)
    found: np.ndarray = axes @ (along * kept[:, np.newaxis])
    return found


def _within_precision(covariance: np.ndarray, means: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Inverse of the covariance within classes, [d, d]; ``means``: from the centre, [d, c]."""
    variances, axes = np.linalg.eigh(covariance - (means * shares) @ means.T)
    least = MIN_WITHIN * np.einsum("ij,ik,kj->j", axes, covariance, axes)
    found: np.ndarray = (axes / np.maximum(variances, least)) @ axes.T
    return found


def _tempered(x: np.ndarray, gradient: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The multiple of ``weights`` whose mean gradient over the public rows is nearest."""
    logits, c = x @ weights, weights.shape[1]

    def distance(factor: float) -> float:
        moments = x.T @ (1 / c - softmax(factor * logits, axis=1)) / len(x)
        return float(((moments - gradient) ** 2).sum())

    return weights * minimize_scalar(distance, bounds=(0.0, 3.0), method="bounded").x


def _clipped_residuals(probabilities: np.ndarray, clip: float) -> np.ndarray:
    """What each label adds, float64 [n, c (label), c]: p - label, at most ``clip`` long."""
    found = probabilities[:, np.newaxis, :] - np.eye(probabilities.shape[1])
    lengths = np.linalg.norm(found, axis=2, keepdims=True)
    shrunk: np.ndarray = found * np.minimum(1.0, clip / np.maximum(lengths, 1e-12))
    return shrunk


def _centred(weights: np.ndarray) -> np.ndarray:
    """Equal logits say nothing."""
    found: np.ndarray = weights - weights.mean(axis=1, keepdims=True)
    return found
