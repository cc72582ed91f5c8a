"""Sureness of the probabilities of classes, by gradients that the weights had not seen."""

import math

import numpy as np
from scipy.optimize import brentq

from .descent import Path
from .fitted import FACTORS, Doubt
from .moments import class_clipping, class_probabilities


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
