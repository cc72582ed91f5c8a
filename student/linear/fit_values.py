"""Linear regression from noisy moments and PUBLIC second moments: post-processing, free.

The first sum, at weights of 0, is one of value times features. Ridge regression solves it, with the
penalty under which the noisy moments are most probable, so that a direction counts by its signal
beside the noise. A later sum is a noisy measurement of what the present weights miss. It moves them
by its precision beside that of the weights.
"""

import numpy as np
from scipy.linalg import solve
from scipy.optimize import minimize_scalar

from .fitted import Fitted
from .measure import FitSettings, Gradient, Measurements

ITERATIONS = 5  # of the first fit: which values are clipped follows from the fit before
LOG_SPREADS = -12.0, 6.0  # natural logarithms of the weights' deviations that are tried


def value_weights(measure: Measurements, inputs: np.ndarray, how: FitSettings) -> Fitted | None:
    """Weights, and what they explain; None if no sum was answered.

    Values are from -1 at the lower bound to 1 at the upper.
    """
    weights, precision, moments = np.zeros((inputs.shape[1], 1)), np.zeros(0), None
    second = inputs.T @ inputs / len(inputs)
    for _ in range(how.steps):
        measured = measure.at(weights)
        if measured is None:
            break
        if not measured.weights.any():
            weights, precision = _first(inputs, measured)
            moments = measured
            continue
        precision = precision + second @ second / measured.deviation**2
        evidence = -second @ measured.mean / measured.deviation**2
        weights = measured.weights + solve(precision, evidence, assume_a="pos")
    if not measure.counts:
        return None
    return Fitted(
        weights=weights, explained=explained(inputs, weights[:, 0], precision), moments=moments
    )


def _first(inputs: np.ndarray, measured: Gradient) -> tuple[np.ndarray, np.ndarray]:
    """Weights [d + 1, 1] and their precision, by the noisy moments of value times input."""
    moments, lengths = -measured.mean[:, 0], np.linalg.norm(inputs, axis=1)
    weights, precision = np.zeros(inputs.shape[1]), np.zeros(0)
    for _ in range(ITERATIONS):
        values = inputs @ weights
        # A record's value times its input is at most 1 long.
        kept = np.minimum(1.0, 1 / np.maximum(np.abs(values) * lengths, 1e-12))
        second = (inputs * kept[:, np.newaxis]).T @ inputs / len(inputs)
        # Second moments of so many public rows are not quite the records'.
        public = (inputs * values[:, np.newaxis]).var(axis=0).mean() / len(inputs)
        weights, precision = ridge(
            second, moments, float(np.hypot(measured.deviation, public**0.5))
        )
    return weights[:, np.newaxis], precision


def explained(
    inputs: np.ndarray, weights: np.ndarray, precision: np.ndarray
) -> tuple[float, float]:
    """Variance of the values of PUBLIC inputs, in half ranges squared; deviation of its noise."""
    centred = inputs - inputs.mean(axis=0)
    values = centred @ weights
    slope = 2 * centred.T @ values / len(values)  # of the variance, by the weights
    noise = slope @ solve(precision, slope, assume_a="pos")
    return float(values.var()), float(np.sqrt(noise))


def ridge(
    second: np.ndarray, moments: np.ndarray, deviation: float
) -> tuple[np.ndarray, np.ndarray]:
    """Weights float64 [d], for which second @ weights is near ``moments``, and their precision.

    ``second``: symmetric, [d, d]; ``moments``: [d], with noise of ``deviation`` on each. Weights
    have a normal prior, whose deviation makes the moments most probable (empirical Bayes). The
    precision is [d, d].
    """
    scales, axes = np.linalg.eigh(second)
    along, noise = axes.T @ moments, max(deviation, 1e-12) ** 2

    def surprise(log_spread: float) -> float:
        variances = scales**2 * np.exp(2 * log_spread) + noise
        return float((np.log(variances) + along**2 / variances).sum())

    best = minimize_scalar(surprise, bounds=LOG_SPREADS, method="bounded")
    spread = float(np.exp(2 * best.x))
    weights = axes @ (scales * spread * along / (scales**2 * spread + noise))
    return weights, (axes * (scales**2 / noise + 1 / spread)) @ axes.T
