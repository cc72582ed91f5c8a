"""Classifiers from noisy sums of gradients and PUBLIC features: post-processing, free.

Softmax regression has a normal prior: logits of an input of length 1 deviate by SPREAD. A sum is
a noisy measurement of the records' mean gradient at the weights that it was asked for. What that
gradient would be under other weights, the public rows tell. So each sum moves the weights to the
most probable ones, by its precision beside that of what is known.

The most probable weights are too short, so that their probabilities are too even. Logits are
multiplied by the factor that explains the last sum best. Where Gaussian classes, which public rows
refine (gaussian_classes.py), explain a faint first sum better, they take the weights' place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve
from scipy.optimize import minimize_scalar
from scipy.special import expit, softmax

from labelwall.experiment.run.gaussian_classes import gaussian_classes
from labelwall.experiment.run.judge import Estimate, by_probabilities
from labelwall.experiment.run.sums_model import SumsModel
from labelwall.wall.messages import ABSTAINED, Outcome

SPREAD = 1.0  # of a weight of inputs of length 1, before anything is known about it
BIAS_SPREAD = 8.0  # of a weight of the constant: classes may be rare
# Public rows are not quite the records. They tell a gradient like as many labels do from weights of
# 0, later like more of them, since the gradients differ less.
PUBLIC, PUBLIC_LATER = 1.0, 0.03
ROUNDING = 1e-10  # least precision, as a share of the largest: equal logits are never told
NEWTON_STEPS, HALVINGS = 4, 6  # of a sum
GAIN = 1.0  # in twice the log probability: with less, a step is the last one
FACTORS = 0.0, 3.0  # of logits
FAINT = 2.0  # a first sum's root mean square, in deviations of its noise
MAX_STATE = 3000  # weights up to which steps know the whole Hessian, not one block for all classes


@dataclass
class LinearModel(SumsModel):
    """Softmax regression."""

    space = "class"
    has_probabilities = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fit = SoftmaxFit(self._inputs, self.outputs, self.clip)

    def _moved(self, weights: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
        gradient -= gradient.mean(axis=1, keepdims=True)  # residuals add up to 0
        found = _centred(self._fit.moved(weights, gradient, deviation))
        self.factors[:] = self._fit.factor
        return found

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

    def _moved(self, weights: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
        found = []
        for fit, own, column in zip(self._fits, weights.T, gradient.T, strict=True):
            pair = np.stack([-own, own], axis=1) / 2
            told = np.stack([-column, column], axis=1)
            found.append(fit.moved(pair, told, np.sqrt(2) * deviation))
        self.factors[:] = [fit.factor for fit in self._fits]
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

    ``factor``: of the logits, after a sum.
    """

    def __init__(self, inputs: np.ndarray, classes: int, clip: float) -> None:
        self._inputs, self.classes, self.clip = inputs, classes, clip
        self.factor = 1.0
        prior = np.full(inputs.shape[1], 1 / SPREAD**2)
        prior[-1] = 1 / BIAS_SPREAD**2
        # Precision of the weights after the sums so far, to within a last step of the fit
        self._known = np.diag(np.tile(prior, classes) if self._whole else prior)

    def moved(self, weights: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
        """The ``weights``, float64 [d + 1, c], moved to the most probable ones.

        ``gradient``: the records' mean at ``weights``. By Gauss-Newton steps: where rows are all
        but certain the curvature is tiny, and a full step can make things worse, so that it is
        halved until it does not.
        """
        p = softmax(self._inputs @ weights, axis=1)
        first = not weights.any()  # all residuals are as long, and none is shrunk
        public = (PUBLIC if first else PUBLIC_LATER) * (p * (1 - p)).mean()
        public *= self._inputs.var(axis=0).mean() / len(p)
        deviation = float(np.hypot(deviation, np.sqrt(public)))
        residuals = _clipped_residuals(p[:1], np.inf) if first else _clipped_residuals(p, self.clip)
        before, start = self._known, self._flat(weights)

        def misfit(weights: np.ndarray) -> tuple[float, np.ndarray]:
            """(-2 log probability, how far the expected gradient is from the measured one)."""
            missed = self._expected(weights, residuals) - gradient
            away = self._flat(weights) - start
            known = (away * (before @ away)).sum()
            return float(known + (missed * missed).sum() / deviation**2), missed

        (value, missed), gained = misfit(weights), np.inf
        faint = first and value < FAINT**2 * (self.classes - 1) * len(gradient)
        for _ in range(NEWTON_STEPS):
            if gained < GAIN:
                break
            slope = self._slope(weights, residuals)
            self._known = before + slope.T @ slope / deviation**2
            told = slope.T @ self._flat(missed) / deviation**2
            told -= before @ (self._flat(weights) - start)
            rounding = ROUNDING * np.diag(self._known).max() * np.eye(len(before))
            step = solve(self._known + rounding, told, assume_a="pos")
            for halved in range(HALVINGS):
                tried = weights + self._matrix(step) / 2**halved
                found, error = misfit(tried)
                if found < value:
                    break
            else:
                break
            weights, missed, value, gained = tried, error, found, value - found

        def distance(factor: float, weights: np.ndarray) -> float:
            return float(((self._expected(factor * weights, residuals) - gradient) ** 2).sum())

        def best(weights: np.ndarray) -> float:
            fitted = minimize_scalar(distance, args=(weights,), bounds=FACTORS, method="bounded")
            return float(fitted.x)

        self.factor = best(weights)
        if faint:
            others = gaussian_classes(self._inputs, gradient, deviation)
            others *= best(others)
            if distance(1.0, others) < distance(1.0, weights):
                weights, self.factor = others, 1.0
        return weights

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
        slope, x = np.empty((c, x.shape[1], c, x.shape[1])), x.astype(np.float32)  # half the time
        for a in range(c):
            for b in range(c):
                curvature = p[:, b] * (mean[:, a] - residuals[:, b, a]) / len(x)
                slope[a, :, b, :] = (x * curvature.astype(np.float32)[:, np.newaxis]).T @ x
        return slope.reshape(c * x.shape[1], -1)


def _mean_residuals(p: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """The residuals that labels of probabilities ``p``, [n, c], add on average: float64 [n, c]."""
    n, c = p.shape
    found: np.ndarray = np.einsum("ny,nya->na", p, np.broadcast_to(residuals, (n, c, c)))
    return found


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
