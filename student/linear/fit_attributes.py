"""One logistic regression an attribute, from noisy sums: post-processing, free."""

import numpy as np
from scipy.special import expit

from .descent import descend
from .fitted import Fitted, best_factor
from .measure import FitSettings, Measurements
from .moments import clipping_factor


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
