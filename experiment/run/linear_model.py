"""A softmax regression from noisy sums of gradients and PUBLIC features: post-processing, free.

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

from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import solve
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp, softmax

from labelwall.wall.weights import (
    COUNT,
    FRACTION,
    MAX_WEIGHT,
    SENSITIVITY,
    bias,
    residual_unit,
)

MAX_ROWS = 10_000  # public rows that the fit looks at
MIN_RECORDS = 1.0  # that a noisy count is taken for
# Iterations of expectation maximisation; later ones drift from the classes to the rows' clusters.
ITERATIONS = 6
PUBLIC_SHARE = 0.2  # what a public row counts beside a record in expectation maximisation
MIN_WITHIN = 0.3  # least share of an axis' variance that is within classes
PULL = 3.0  # towards the Gaussian classifier, in standard deviations of the moments
SPREAD = 5.0  # of a weight of inputs of length 1, before anything is known about it
ROUNDING = 1e-12  # of a matrix that is inverted, relative to its trace
MAX_STATE = 3000  # weights up to which steps know the whole Hessian, not one block for all classes


@dataclass
class LinearModel:
    """The regression after some steps.

    Args:
        features: PUBLIC, int8 [n, d].
        classes: their number.
        length: of a unit vector after quantisation (``Embedder.length``).
        noise_multiplier: of a sum's noise.
        clip: of the mechanism.
        weights: int16 [d + 1, c], the fitted ones; all 0 before the first sum.
    """

    features: np.ndarray = field(repr=False)
    classes: int
    length: float
    noise_multiplier: float
    clip: float
    weights: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.weights = np.zeros((self.features.shape[1] + 1, self.classes), dtype=np.int16)
        self._unit = float(np.hypot(self.length, bias(self.length)))  # length of an input
        self._inputs = _with_bias(self.features[:MAX_ROWS], self.length) / self._unit
        self._counts: list[float] = []
        self._known = np.zeros(0)  # precision of the weights after the steps so far

    def next_weights(self) -> np.ndarray:
        """The weights of the next step: int16 [d + 1, c]."""
        return self.weights

    def add(self, sums: np.ndarray) -> None:
        """Take the step of the noisy sum for ``next_weights``: int64 [(d + 1) * c + 1]."""
        self._counts.append(sums[-1] / COUNT)
        unit = residual_unit(self.weights, self.clip, self.length)
        total = unit * max(MIN_RECORDS, float(np.mean(self._counts))) * self._unit
        gradient = sums[:-1].reshape(self.weights.shape) / total
        gradient -= gradient.mean(axis=1, keepdims=True)  # residuals add up to 0
        deviation = self.noise_multiplier * SENSITIVITY / total
        started = self.weights.any()
        found = (
            self._corrected(gradient, deviation) if started else self._first(gradient, deviation)
        )
        self.weights = _integers((found - found.mean(axis=1, keepdims=True)) / self._unit)

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Of each class for rows int8 [n, d]: float32 [n, c]."""
        return probabilities(self.weights, features, self.length)

    def _first(self, gradient: np.ndarray, deviation: float) -> np.ndarray:
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
        _, slope = self._expected(weights, self._zero_residuals())
        symmetric = (slope + slope.T) / 2
        self._known = slope.T @ slope / deviation**2 + PULL * symmetric / deviation
        return weights

    def _corrected(self, gradient: np.ndarray, deviation: float) -> np.ndarray:
        """The weights, float64 [d + 1, c], moved by the mean gradient at the present ones."""
        weights = self.weights / 2.0**FRACTION * self._unit
        residuals = _clipped_residuals(softmax(self._inputs @ weights, axis=1), self.clip)
        expected, slope = self._expected(weights, residuals)
        self._known = self._known + slope.T @ slope / deviation**2
        surprise = slope.T @ self._flat(expected - gradient) / deviation**2
        ridge = 1 / SPREAD**2 + ROUNDING * np.trace(self._known)
        step = solve(self._known + ridge * np.eye(len(self._known)), surprise, assume_a="pos")
        moved: np.ndarray = weights + self._matrix(step)
        return moved

    def _zero_residuals(self) -> np.ndarray:
        """Residuals of every label at weights of 0: float64 [1, c (label), c]."""
        return (1 / self.classes - np.eye(self.classes))[np.newaxis]

    @property
    def _whole(self) -> bool:
        return self.weights.size <= MAX_STATE

    def _flat(self, matrix: np.ndarray) -> np.ndarray:
        """A state of [d + 1, c]: one column after the other, or as it is."""
        return matrix.T.reshape(-1) if self._whole else matrix

    def _matrix(self, state: np.ndarray) -> np.ndarray:
        return state.reshape(self.classes, -1).T if self._whole else state

    def _expected(
        self, weights: np.ndarray, residuals: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The mean gradient over the public rows if ``weights`` are true, and its slope, negative.

        ``residuals``: float64 [n or 1, c, c], what a label adds. Returns float64 [d + 1, c] and
        [s, s] over states s of ``_flat``; one block of [d + 1, d + 1] for all classes where the
        whole is too large.
        """
        x, c = self._inputs, self.classes
        p = softmax(x @ weights, axis=1)
        mean = np.einsum("ny,nya->na", p, np.broadcast_to(residuals, (len(x), c, c)))
        gradient = x.T @ mean / len(x)
        if not self._whole:
            own = np.einsum("ny,nyy->n", p, np.broadcast_to(residuals, (len(x), c, c)))
            curvature = ((p * mean).sum(axis=1) - own) / (c - 1)
            return gradient, (x * curvature[:, np.newaxis]).T @ x / len(x)
        slope = np.empty((c, x.shape[1], c, x.shape[1]))
        for a in range(c):
            for b in range(c):
                curvature = p[:, b] * (mean[:, a] - residuals[:, b, a])
                slope[a, :, b, :] = (x * curvature[:, np.newaxis]).T @ x / len(x)
        return gradient, slope.reshape(c * x.shape[1], -1)


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


def probabilities(weights: np.ndarray, features: np.ndarray, length: float) -> np.ndarray:
    """Class probabilities float32 [n, c] of rows int8 [n, d] by int16 [d + 1, c] weights."""
    logits = _with_bias(features, length) @ (weights / 2.0**FRACTION)
    return softmax(logits, axis=1).astype(np.float32)


def _with_bias(features: np.ndarray, length: float) -> np.ndarray:
    return np.pad(features.astype(np.float64), ((0, 0), (0, 1)), constant_values=bias(length))


def _integers(weights: np.ndarray) -> np.ndarray:
    """In units of 2^-FRACTION, int16; all are shrunk alike where one is too large."""
    scaled = weights * 2.0**FRACTION
    largest = float(np.abs(scaled).max())
    return np.rint(scaled * min(1.0, MAX_WEIGHT / max(largest, 1.0))).astype(np.int16)
