"""How sure the probabilities of classes should be, by gradients that the weights had not seen."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from .descent import Path
from .fitted import FACTORS, Doubt
from .residuals import class_clipping, class_probabilities


@dataclass(frozen=True)
class Slopes:
    """Steps' gradients along the mean of all weights before each, which their noise is independent
    of.

    ``logits``: of PUBLIC rows by these means, float64 [n, c] a step; ``residuals``: what each label
    of a row would add to the gradient along the mean, float64 [n, c] a step; ``measured``: the sum
    of the records' gradients along the means; ``variance``: of its noise.
    """

    logits: list[np.ndarray]
    residuals: list[np.ndarray]
    measured: float
    variance: float

    def above(self, factor: float, deviations: float) -> float:
        """Expected less measured sum, if logits times the ``factor`` are true.

        ``deviations`` of the noise are added to the measured sum. It falls with the factor.
        """
        pairs = zip(self.logits, self.residuals, strict=True)
        parts = (class_probabilities(factor * z) * residuals for z, residuals in pairs)
        total = sum(float(part.sum()) for part in parts) / len(self.logits[0])
        return total - self.measured - deviations * math.sqrt(self.variance)


def doubt(path: Path, factor: float) -> Doubt | None:
    """Factors of the logits, by the gradients of the last quarter; None if noise hides them.

    ``factor``: of the average's logits that the classifier has. If logits by the mean of earlier
    weights are true after another factor, the gradient along this mean is known. So each factor is
    tested on noise that it was not fitted to.
    """
    slopes, (low, high) = slopes_of(path), FACTORS
    factors = []
    for deviations in (0.0, 1.0, -1.0):
        if slopes.above(high, deviations) >= 0:
            return None
        hidden = slopes.above(low, deviations) <= 0
        found = low if hidden else brentq(slopes.above, low, high, args=(deviations,))
        factors.append(found / max(factor, 1e-9))
    best, least, most = factors
    return best, least, most


def slopes_of(path: Path) -> Slopes:
    """Slopes of the second half of the steps that count."""
    logits, residuals, measured, variance = [], [], 0.0, 0.0
    mean = np.zeros_like(path.steps[0].weights)  # of the weights before
    for number, step in enumerate(path.asked):
        mean = mean + (step.weights - mean) / (number + 1)
        if number < len(path.asked) // 2:
            continue
        p, z = class_probabilities(path.inputs @ step.weights), path.inputs @ mean
        logits.append(z)
        away = (p * z).sum(axis=1, keepdims=True) - z
        residuals.append(away * class_clipping(p, step.clip))
        measured += float((mean * step.mean).sum() - mean.sum(axis=1) @ step.mean.mean(axis=1))
        variance += step.deviation**2 * float((mean * mean).sum())
    return Slopes(logits=logits, residuals=residuals, measured=measured, variance=variance)
