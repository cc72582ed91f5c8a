"""Linear regression from noisy moments and PUBLIC second moments: post-processing, free.

The first sum, at weights of 0, is one of value times features. Ridge regression solves it: its
penalty is the one under which the noisy moments are most probable, so that a direction counts by
what is known of it beside the noise. A later sum is a noisy measurement of what the present weights
miss, and moves them by its precision beside that of what is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve
from scipy.optimize import minimize_scalar

from ...wall.labels.values import STEPS
from ...wall.messages import Outcome
from .quality import Estimate, by_moments
from .sums_model import SumsModel

ITERATIONS = 5  # of the first fit: which values are clipped follows from the fit before
LOG_SPREADS = -12.0, 6.0  # natural logarithms of the weights' deviations that are tried


@dataclass
class ValueModel(SumsModel):
    """Values as linear functions of the features, from -1 at the lower bound to 1 at the upper."""

    space = "value"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._known = np.zeros(0)  # precision of the weights after the steps so far

    def _moved(self, weights: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
        if weights.any():
            return self._corrected(weights, gradient, deviation)
        return self._first(gradient, deviation)

    def _first(self, gradient: np.ndarray, deviation: float) -> np.ndarray:
        x, moments = self._inputs, -gradient[:, 0]
        lengths, weights = np.linalg.norm(x, axis=1), np.zeros(x.shape[1])
        for _ in range(ITERATIONS):
            values = x @ weights
            # A record's value times its input is at most 1 long.
            kept = np.minimum(1.0, 1 / np.maximum(np.abs(values) * lengths, 1e-12))
            second = (x * kept[:, np.newaxis]).T @ x / len(x)
            # Second moments of so many public rows are not quite the records'.
            public = (x * values[:, np.newaxis]).var(axis=0).mean() / len(x)
            weights, self._known = ridge(second, moments, float(np.hypot(deviation, public**0.5)))
        return weights[:, np.newaxis]

    def _corrected(self, weights: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
        second = self._inputs.T @ self._inputs / len(self._inputs)
        self._known = self._known + second @ second / deviation**2
        told = -second @ gradient / deviation**2
        moved: np.ndarray = weights + solve(self._known, told, assume_a="pos")
        return moved

    def says(self, features: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.clip(self.logits(features), -1, 1).astype(np.float32)
        return found

    def labels(self, said: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
        """Steps above the lower bound, int64 [n]; every row has a value."""
        labels = np.rint((said[:, 0].astype(np.float64) + 1) / 2 * STEPS).astype(np.int64)
        return labels, np.full(len(said), Outcome.ANSWERED, dtype=np.uint8)

    def estimate(self, said: np.ndarray) -> Estimate:
        centred = self._inputs - self._inputs.mean(axis=0)
        values = centred @ self.real_weights[:, 0]
        slope = 2 * centred.T @ values / len(values)  # of the variance, by the weights
        noise = slope @ solve(self._known, slope, assume_a="pos")
        return by_moments(float(values.var()), float(np.sqrt(noise)), len(values))


def ridge(
    second: np.ndarray, moments: np.ndarray, deviation: float
) -> tuple[np.ndarray, np.ndarray]:
    """(weights float64 [d], their precision [d, d]) with second @ weights near ``moments``.

    ``second``: symmetric, [d, d]; ``moments``: [d], with noise of ``deviation`` on each. Weights
    have a normal prior with one deviation, the one that makes the moments most probable (empirical
    Bayes).
    """
    scales, axes = np.linalg.eigh(second)
    along, noise = axes.T @ moments, max(deviation, 1e-12) ** 2

    def surprise(log_spread: float) -> float:
        variances = scales**2 * np.exp(2 * log_spread) + noise
        return float((np.log(variances) + along**2 / variances).sum())

    found = minimize_scalar(surprise, bounds=LOG_SPREADS, method="bounded")
    spread = float(np.exp(2 * found.x))
    weights = axes @ (scales * spread * along / (scales**2 * spread + noise))
    return weights, (axes * (scales**2 / noise + 1 / spread)) @ axes.T
