"""Weights of classes and attributes that descend along noisy gradients: post-processing, free.

A step is as long as its noise allows: if no later step took any of it back, the noise of all steps
together would move a logit of an input of length 1 by NOISE deviations at the end, whatever the
budget, the records, the clipping and the number of steps. Gradients of clipped residuals keep their
length until most labels are right, so that longer steps only make the weights longer.

The weights that come out are too long, so that their probabilities are too sure. Logits are
multiplied by the factor under which PUBLIC rows, whose labels the probabilities would give, have
the gradients that the records had in the later half of the steps.

Where noise hides the classes from these gradients, PUBLIC rows tell more of them: the classifier is
moved half the way to one of Gaussian classes, while that explains the gradients about as well; all
the way, where there was a single step.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import OptimizeResult, brentq, minimize_scalar
from scipy.special import expit, softmax

from ...wall.matrices import FRACTION, MAX_WEIGHT
from .measure import FitSettings, Gradient, Measurements
from .moments import Moment
from .shift import Shares, shifted

# Of the logits that the model has: the factor under which they are true, and this with one
# deviation of its noise taken off, and added.
Doubt = tuple[float, float, float]

# Tried on five sets of features at epsilon 0.02 to 2 (docs/decisions.md).
NOISE = 3.0
MOMENTUM = 0.8
MAX_RATE = 10_000.0  # of a step, where there is hardly any noise
MAX_ENTRIES = 10_000_000  # of the probabilities of PUBLIC rows that tell the factor of logits
MAX_SLOPES = 20_000_000  # entries of what tells residuals by probabilities: float64
FACTORS = 0.0, 3.0  # of logits
# Tried on images and texts, 4,000 records, epsilon 0.02 to 0.3 (docs/decisions.md).
REFINEMENTS = 2  # at most; later ones drift from the classes to the rows' clusters
MIN_WITHIN = 0.3  # least share of an axis' variance that is within classes
MIN_SHARE = 1e-6  # of a class
TOLERANCE = 0.1  # of the noise: by how much a refined classifier may miss the gradients more


@dataclass(frozen=True)
class Descent:
    """The first step and the later half of them.

    ``asked``: the later measurements; ``average``: of the weights after them, float64 [d + 1, c];
    ``gradient``: the mean of the measured ones, with noise of ``deviation`` on every entry;
    ``inputs``: of the PUBLIC rows that explain it, float64 [n, d + 1].
    """

    first: Gradient = field(repr=False)
    asked: tuple[Gradient, ...] = field(repr=False)
    average: np.ndarray = field(repr=False)
    gradient: np.ndarray = field(repr=False)
    deviation: float
    inputs: np.ndarray = field(repr=False)

    def probabilities(
        self, link: Callable[[np.ndarray], np.ndarray]
    ) -> Iterator[tuple[np.ndarray, float]]:
        """What the weights of each step say of public rows, and what residuals were clipped to."""
        return ((link(self.inputs @ step.weights), step.clip) for step in self.asked)

    def missed(self, residuals: np.ndarray) -> np.ndarray:
        """How far the gradient of public rows with these ``residuals`` is from the records'."""
        return np.asarray(self.inputs.T @ residuals / len(residuals) - self.gradient)

    @property
    def noise(self) -> float:
        """The squared length that is expected of the noise in ``gradient``."""
        return self.deviation**2 * self.gradient.size


def descend(
    measure: Measurements, inputs: np.ndarray, how: FitSettings, start: np.ndarray | None = None
) -> Descent | None:
    """Gradient descent with momentum; None where no sum was answered that a step follows.

    The first sum, at weights of 0, counts records and classes. With a ``start``, float64 [d + 1,
    c], the descent begins there after it.
    """
    state = velocity = np.zeros((inputs.shape[1], how.outputs))
    largest = MAX_WEIGHT / 2.0**FRACTION * how.unit
    later: list[tuple[Gradient, np.ndarray, np.ndarray]] = []
    first: Gradient | None = None
    for step in range(how.steps):
        measured = measure.at(state)
        if measured is None:
            break
        gradient = measured.mean
        if first is None and start is not None and how.steps > 1:
            first, state = measured, start
            continue
        first = first or measured
        if how.labels == "class":  # residuals of classes add up to 0
            gradient = gradient - gradient.mean(axis=1, keepdims=True)
        rate = min(NOISE * (1 - MOMENTUM) / (math.sqrt(how.steps) * measured.deviation), MAX_RATE)
        velocity = MOMENTUM * velocity + rate * gradient
        state = state - velocity
        state = state * min(1.0, largest / max(float(np.abs(state).max()), 1e-300))
        # Of the first half the last one counts; weights of 0 do where there are no others.
        if 2 * step < max(how.steps - 1, 3):
            later = []
        later.append((measured, gradient, state))
    if first is None or not later:
        return None
    asked, gradients, states = zip(*later, strict=True)
    rows = max(1, MAX_ENTRIES // (len(later) * how.outputs))
    return Descent(
        first,
        asked,
        np.mean(states, axis=0),
        np.mean(gradients, axis=0),
        asked[-1].deviation / math.sqrt(len(later)),
        inputs[:rows],
    )


def class_weights(
    measure: Measurements, inputs: np.ndarray, how: FitSettings, start: np.ndarray | None = None
) -> tuple[np.ndarray, Shares | None, Doubt | None] | None:
    """Softmax regression: (weights of inputs of length 1, float64 [d + 1, c], for the classes'
    shares among PUBLIC rows; the shares, where they were compared with the records'; how sure its
    probabilities should be).
    """
    path = descend(measure, inputs, how, start)
    if path is None:
        return None
    later = _moment(path, path.gradient, path.deviation, path.asked)

    def scaled(weights: np.ndarray) -> tuple[np.ndarray, float, float]:
        """(weights times the best factor, the factor, how far these miss the gradients)."""
        logits = later.inputs @ torch.tensor(weights)
        best = _best(lambda factor: float(later.missed(torch.softmax(factor * logits, dim=1))))
        return best.x * weights, best.x, best.fun

    best, factor, least = scaled(path.average)
    for _ in range(REFINEMENTS if start is None else 0):
        refined, *_ = scaled(gaussian_classes(path.inputs, _softmax(path.inputs @ best)))
        if how.steps > 1:
            refined, _, missed = scaled((best + refined) / 2)
            if missed > least + TOLERANCE * path.noise:
                break
        best = refined
    if path.first is path.asked[0] or how.alike:  # one sum does not tell the shares apart
        return best, None, (1.0, 1.0, 1.0)
    doubt = _doubt(path, factor)
    moments = _moment(path, path.first.mean, path.first.deviation, [path.first]), later
    offsets, shares = shifted(path.inputs @ best, moments)
    return np.vstack([best[:-1], best[-1] + offsets / inputs[0, -1]]), shares, doubt


def _moment(
    path: Descent, gradient: np.ndarray, deviation: float, asked: Sequence[Gradient]
) -> Moment:
    """A mean ``gradient`` of the records at the weights that were ``asked``."""
    rows = path.inputs[: max(1, MAX_SLOPES // gradient.shape[1] ** 2)]
    said = [(_softmax(rows @ step.weights), step.clip) for step in asked]
    return Moment(
        torch.tensor(gradient - gradient.mean(axis=1, keepdims=True)),
        deviation,
        torch.tensor(rows),
        [(torch.tensor(p), torch.tensor(_clipped(p, clip))) for p, clip in said],
    )


def gaussian_classes(inputs: np.ndarray, likely: np.ndarray) -> np.ndarray:
    """Weights float64 [d + 1, c] whose logits are those of Gaussian classes.

    Means and shares are those of ``likely``, probabilities float64 [n, c]; the covariance within
    classes is what their means leave of the rows'. ``inputs``: float64 [n, d + 1], the last one
    constant. A step of expectation maximisation.
    """
    rows, constant = inputs[:, :-1], inputs[0, -1]
    center = rows.mean(axis=0)
    shares = np.maximum(likely.mean(axis=0), MIN_SHARE)
    means = (rows.T @ likely) / (len(rows) * shares)  # [d, c]
    covariance = np.cov(rows.T, bias=True).reshape(len(center), -1) + 1e-9 * np.eye(len(center))
    away = means - center[:, np.newaxis]
    variances, axes = np.linalg.eigh(covariance - (away * shares) @ away.T)
    least = MIN_WITHIN * np.einsum("ij,ik,kj->j", axes, covariance, axes)
    weights = (axes / np.maximum(variances, least)) @ axes.T @ means
    offsets = np.log(shares) - 0.5 * (means * weights).sum(axis=0)
    both = np.vstack([weights, offsets / constant])
    return np.asarray(both - both.mean(axis=1, keepdims=True))  # probabilities are the same


def _doubt(path: Descent, factor: float) -> Doubt | None:
    """By the gradients of the last quarter; None where their noise hides it.

    ``factor``: of the average's logits that is taken. The noise of a gradient is independent of all
    weights before it. If logits by the mean of these are true after another factor, the gradient
    along this mean is known; so each factor is tested on noise that it was not fitted to.
    """
    rows, quarter = path.inputs, len(path.asked) // 2
    logits, expected, measured, variance = [], [], 0.0, 0.0
    before = np.zeros_like(path.average)
    for number, step in enumerate(path.asked):
        before = before + (step.weights - before) / (number + 1)
        if number < quarter:
            continue
        p = _softmax(rows @ step.weights)
        logits.append(z := rows @ before)
        expected.append(((p * z).sum(axis=1, keepdims=True) - z) * _clipped(p, step.clip))
        measured += float((before * step.mean).sum() - before.sum(axis=1) @ step.mean.mean(axis=1))
        variance += step.deviation**2 * float((before * before).sum())

    def above(factor: float, deviations: float = 0.0) -> float:
        parts = (_softmax(factor * z) * e for z, e in zip(logits, expected, strict=True))
        total = sum(float(part.sum()) for part in parts) / len(rows)
        return total - measured - deviations * math.sqrt(variance)

    low, high = FACTORS
    factors = []
    for deviations in (0.0, 1.0, -1.0):  # the expected gradient falls with the factor
        if above(high, deviations) >= 0:
            return None
        hidden = above(low, deviations) <= 0
        factors.append(low if hidden else brentq(above, low, high, args=(deviations,)))
    best, least, most = (each / max(factor, 1e-9) for each in factors)
    return best, least, most


def attribute_weights(
    measure: Measurements, inputs: np.ndarray, how: FitSettings
) -> np.ndarray | None:
    """One logistic regression an attribute: weights of inputs of length 1, float64 [d + 1, c].

    Residuals of a record's attributes are clipped together. Of the other attributes an expected
    length is taken: first one factor for all is fitted, then, with what it says of lengths, one for
    each attribute.
    """
    path = descend(measure, inputs, how)
    if path is None:
        return None
    asked = [(p, clip * np.sqrt(how.outputs)) for p, clip in path.probabilities(expit)]
    logits = path.inputs @ path.average

    def missed(factor: float, lengths: float) -> np.ndarray:
        """If logits times ``factor`` are true, and times ``lengths`` tell others' lengths."""
        likely, usual = expit(factor * logits), expit(lengths * logits)
        residuals = np.zeros_like(likely)
        for p, clip in asked:
            squares = p * p * (1 - usual) + (1 - p) ** 2 * usual
            others = squares.sum(axis=1, keepdims=True) - squares
            absent, present = _kept(others + p * p, clip), _kept(others + (1 - p) ** 2, clip)
            residuals += absent * p * (1 - likely) - present * (1 - p) * likely
        return path.missed(residuals / len(asked)) ** 2

    common = _best(lambda factor: float(missed(factor, factor).sum())).x
    factors = [
        _best(lambda factor, own=own: float(missed(factor, common)[:, own].sum())).x  # type: ignore[misc]
        for own in range(how.outputs)
    ]
    return np.asarray(path.average * factors)


def _softmax(logits: np.ndarray) -> np.ndarray:
    return np.asarray(softmax(logits, axis=1))


def _kept(squares: np.ndarray, clip: float) -> np.ndarray:
    """What clipping leaves of residuals of these squared lengths: a factor, at most 1."""
    return np.asarray(np.minimum(1.0, clip / np.sqrt(np.maximum(squares, 1e-12))))


def _clipped(p: np.ndarray, clip: float) -> np.ndarray:
    """What clipping leaves of the residual for each label, where a class is ``p`` likely."""
    return _kept((p * p).sum(axis=1, keepdims=True) + 1 - 2 * p, clip)


def _best(missed: Callable[[float], float]) -> OptimizeResult:
    """``x``, the factor that misses the measured gradients least, and ``fun``, by how much."""
    enough = {"xatol": 0.001}  # far below what noise leaves of it
    return minimize_scalar(missed, bounds=FACTORS, method="bounded", options=enough)
