"""A softmax regression from noisy sums of gradients and PUBLIC features: post-processing, free.

Each sum is one damped Newton step. The Hessian is that of the public rows, its directions are
shrunk where the noise hides the gradient (James and Stein 1961, positive part).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import softmax

from labelwall.wall.weights import (
    COUNT,
    FRACTION,
    MAX_WEIGHT,
    SENSITIVITY,
    bias,
    residual_unit,
)

RIDGE = 1e-3  # added to the Hessian's eigenvalues, as a share of the largest
MIN_RECORDS = 1.0  # that a noisy count is taken for


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

    def next_weights(self) -> np.ndarray:
        """The weights of the next step: int16 [d + 1, c]."""
        return self.weights

    def add(self, sums: np.ndarray) -> None:
        """Take the step of the noisy sum for ``next_weights``: int64 [(d + 1) * c + 1]."""
        unit = residual_unit(self.weights, self.clip, self.length)
        records = max(MIN_RECORDS, sums[-1] / COUNT)
        deviation = self.noise_multiplier * SENSITIVITY / unit / records
        gradient = sums[:-1].reshape(self.weights.shape) / unit / records
        gradient -= gradient.mean(axis=1, keepdims=True)  # residuals add up to 0
        curvature, directions = np.linalg.eigh(self._hessian())
        along = directions.T @ gradient  # [d + 1, c]
        squares = np.maximum((along * along).sum(axis=1), 1e-300)
        kept = np.maximum(0.0, 1 - (self.classes - 1) * deviation**2 / squares)
        step = directions @ (along * (kept / (curvature + RIDGE * curvature[-1]))[:, np.newaxis])
        found = self.weights / 2.0**FRACTION - step
        self.weights = _integers(found - found.mean(axis=1, keepdims=True))

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Of each class for rows int8 [n, d]: float32 [n, c]."""
        return probabilities(self.weights, features, self.length)

    def _hessian(self) -> np.ndarray:
        """Mean over the public rows of the loss' curvature, one block for all classes: [d + 1]^2.

        Its diagonal blocks p_j (1 - p_j) are replaced by their mean, times c / (c - 1) for the
        off-diagonal ones: exact for equal probabilities.
        """
        p = self.probabilities(self.features)
        curvature = (1 - (p * p).sum(axis=1)) / (self.classes - 1)  # float32 [n]
        inputs = _with_bias(self.features, self.length)
        return (inputs * curvature[:, np.newaxis]).T @ inputs / len(inputs)


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
