"""Classifiers from noisy sums: post-processing, free.

One softmax regression of classes, or one logistic regression an attribute.

Weights that come out of a descent are too long, so that their probabilities are too sure. Logits
are multiplied by the factor under which PUBLIC rows, whose labels the probabilities would give,
have the gradients that the records had in the later half of the steps.

If noise hides the classes from these gradients, PUBLIC rows tell more of them: the classifier is
moved half the way to one of Gaussian classes, while that explains the gradients about as well. It
is moved all the way if there was a single step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import expit

from .descent import Path, descend
from .fitted import FACTORS, Doubt, Fitted, best_factor
from .measure import FitSettings, Gradient, Measurements
from .moments import Moment, class_clipping, class_probabilities, clipping_factor
from .shift_of_gradients import shifted
from .tuning import MIN_WITHIN, REFINED_MISS, REFINEMENTS

MAX_SLOPES = 20_000_000  # entries of what tells residuals by probabilities: float64
MIN_SHARE = 1e-6  # of a class


@dataclass(frozen=True)
class Scaled:
    """``weights`` times the best ``factor``, and how far these miss the gradients, squared."""

    weights: np.ndarray
    factor: float
    missed: float


def class_weights(
    measure: Measurements, inputs: np.ndarray, how: FitSettings, start: np.ndarray | None = None
) -> Fitted | None:
    """Weights, shares of the classes, and how sure the probabilities should be.

    None if no sum was answered that a step follows. Shares are not compared if there was a single
    sum, or if records and public rows have equal ones.
    """
    path = descend(measure, inputs, how, start)
    if path is None:
        return None
    later = moment_of(path, path.gradient, path.deviation, path.asked)
    descended = scaled(path.average, later)
    refinements = REFINEMENTS if start is None else 0
    best = refined(descended, later, path, refinements=refinements, all_the_way=how.steps == 1)
    if path.first is path.asked[0] or how.alike:
        return Fitted(weights=best)
    first = moment_of(path, path.first.mean, path.first.deviation, [path.first])
    offsets, shares = shifted(path.inputs @ best, (first, later))
    weights = np.vstack([best[:-1], best[-1] + offsets / inputs[0, -1]])
    return Fitted(weights=weights, shares=shares, doubt=doubt(path, descended.factor))


def scaled(weights: np.ndarray, later: Moment) -> Scaled:
    """The weights times the factor under which public rows have the gradients of ``later``."""
    logits = later.inputs @ torch.tensor(weights)
    best = best_factor(lambda factor: float(later.missed(torch.softmax(factor * logits, dim=1))))
    return Scaled(weights=best.x * weights, factor=best.x, missed=best.fun)


def refined(
    descended: Scaled, later: Moment, path: Path, *, refinements: int, all_the_way: bool
) -> np.ndarray:
    """Weights that were moved towards Gaussian classes, while noise hides what that loses."""
    best, noise = descended.weights, path.deviation**2 * path.gradient.size  # squared length
    for _ in range(refinements):
        gaussian = gaussian_classes(path.inputs, class_probabilities(path.inputs @ best))
        moved = scaled(gaussian, later)
        if not all_the_way:
            moved = scaled((best + moved.weights) / 2, later)
            if moved.missed > descended.missed + REFINED_MISS * noise:
                break
        best = moved.weights
    return best


def gaussian_classes(inputs: np.ndarray, likely: np.ndarray) -> np.ndarray:
    """Weights float64 [d + 1, c] whose logits are those of Gaussian classes.

    A step of expectation maximisation: means and shares are those of ``likely``, probabilities
    float64 [n, c]; the covariance within classes is the rows' covariance less that of the means.
    ``inputs``: float64 [n, d + 1], the last one constant.
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


def moment_of(
    path: Path, gradient: np.ndarray, deviation: float, asked: Sequence[Gradient]
) -> Moment:
    """A mean ``gradient`` of the records at the weights that were ``asked``."""
    rows = path.inputs[: max(1, MAX_SLOPES // gradient.shape[1] ** 2)]
    said = [(class_probabilities(rows @ step.weights), step.clip) for step in asked]
    return Moment(
        gradient=torch.tensor(gradient - gradient.mean(axis=1, keepdims=True)),
        deviation=deviation,
        inputs=torch.tensor(rows),
        asked=[(torch.tensor(p), torch.tensor(class_clipping(p, clip))) for p, clip in said],
    )


def doubt(path: Path, factor: float) -> Doubt | None:
    """Factors of the logits, by the gradients of the last quarter; None if noise hides them.

    ``factor``: of the average's logits that the classifier has. A gradient's noise is independent
    of all weights before it. If logits by the mean of these are true after another factor, the
    gradient along this mean is known. So each factor is tested on noise that it was not fitted to.
    """
    slopes, (low, high) = Slopes(path), FACTORS
    factors = []
    for deviations in (0.0, 1.0, -1.0):
        if slopes.above(high, deviations) >= 0:
            return None
        hidden = slopes.above(low, deviations) <= 0
        factors.append(low if hidden else brentq(slopes.above, low, high, args=(deviations,)))
    best, least, most = (each / max(factor, 1e-9) for each in factors)
    return best, least, most


class Slopes:
    """Gradients of a path's later half, each along the mean of all weights before it."""

    def __init__(self, path: Path) -> None:
        self._logits: list[np.ndarray] = []  # of public rows by these means
        self._residuals: list[np.ndarray] = []  # a label's part of the gradient along the mean
        self._measured = self._variance = 0.0
        mean = np.zeros_like(path.average)
        for number, step in enumerate(path.asked):
            mean = mean + (step.weights - mean) / (number + 1)
            if number < len(path.asked) // 2:
                continue
            p, z = class_probabilities(path.inputs @ step.weights), path.inputs @ mean
            away = (p * z).sum(axis=1, keepdims=True) - z
            self._logits.append(z)
            self._residuals.append(away * class_clipping(p, step.clip))
            along = (mean * step.mean).sum(), mean.sum(axis=1) @ step.mean.mean(axis=1)
            self._measured += float(along[0] - along[1])
            self._variance += step.deviation**2 * float((mean * mean).sum())

    def above(self, factor: float, deviations: float) -> float:
        """Expected sum, if logits times the ``factor`` are true, less the records' sum.

        So many ``deviations`` of its noise are added to the records'. It falls with the factor.
        """
        pairs = zip(self._logits, self._residuals, strict=True)
        parts = (class_probabilities(factor * z) * residuals for z, residuals in pairs)
        total = sum(float(expected.sum()) for expected in parts) / len(self._logits[0])
        return total - self._measured - deviations * math.sqrt(self._variance)


def attribute_weights(measure: Measurements, inputs: np.ndarray, how: FitSettings) -> Fitted | None:
    """Weights whose lengths make the probabilities of each attribute true.

    Residuals of a record's attributes are clipped together. Of the other attributes an expected
    length is taken: first one factor for all is fitted, then, with what it says of lengths, one for
    each attribute. None if no sum was answered.
    """
    path = descend(measure, inputs, how)
    if path is None:
        return None
    steps = [(step.weights, step.clip * np.sqrt(how.outputs)) for step in path.asked]
    said = [(expit(path.inputs @ weights), clip) for weights, clip in steps]
    logits = path.inputs @ path.average

    def misses(factor: float, others: float) -> np.ndarray:
        """Squares, [d + 1, c], of what PUBLIC rows' gradients miss if logits times ``factor`` are
        true. Logits times ``others`` tell the lengths of the other attributes' residuals.
        """
        likely, usual = expit(factor * logits), expit(others * logits)
        residuals = np.zeros_like(likely)
        for p, clip in said:
            expected = p * p * (1 - usual) + (1 - p) ** 2 * usual
            rest = expected.sum(axis=1, keepdims=True) - expected
            absent = clipping_factor(rest + p * p, clip)
            present = clipping_factor(rest + (1 - p) ** 2, clip)
            residuals += absent * p * (1 - likely) - present * (1 - p) * likely
        gradient = path.inputs.T @ (residuals / len(said)) / len(likely)
        return np.asarray((gradient - path.gradient) ** 2)

    common = best_factor(lambda factor: float(misses(factor, factor).sum())).x
    factors = []
    for attribute in range(how.outputs):

        def missed(factor: float, attribute: int = attribute) -> float:
            return float(misses(factor, common)[:, attribute].sum())

        factors.append(best_factor(missed).x)
    return Fitted(weights=np.asarray(path.average * factors))
