"""Public weights of a linear classifier: each record adds its own part of the gradient, once.

Weights go in, one noisy sum comes out. What is computed from sums is post-processing and free. The
units of a sum are public functions of the weights, the extractor and the mechanism: this file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .matrix import Matrix

FRACTION = 16  # bits: a logit is an integer times 2^-16
MAX_WEIGHT = 32_767
MAX_DIMENSIONS, MAX_CLASSES = 4000, 4096
MAX_ENTRIES = 1 << 20  # of one matrix
MAX_BIAS = 63  # the last input of every record is a public constant
CLIP = 1 << 20  # largest length of a record's part of the gradient, in units of the sum
COUNT = CLIP >> 3  # what a record adds to the last entry, by which records are counted
MAX_GAIN = 64  # of a record's gradient before it is clipped
MAX_UNIT = 1 << 18  # of residuals, so that products of squares fit int64
# Length of a record's whole part, rounded up: the L2 sensitivity of a sum.
SENSITIVITY = math.isqrt(CLIP**2 + COUNT**2 - 1) + 1


@dataclass(frozen=True)
class Weights(Matrix):
    """Weights of a linear model of features, whose last row belongs to the bias.

    ``weights``: int16 [d + 1, c], entries in -32767..32767, 1 <= d <= 4000, 1 <= c <= 4096, at most
    2^20 of them. The logits of a record with features x, or its value between -1 and 1, are
    2^-16 (x, bias)^T weights.
    ``slot``: the entry of the plan that pays.

    Raises InvalidInput for any other dtype, shape or entry.
    """

    weights: np.ndarray
    slot: int = 0

    kind = "weights"
    array = "weights"

    def __post_init__(self) -> None:
        w = self.weights
        fits = w.ndim == 2 and 2 <= len(w) <= MAX_DIMENSIONS + 1 and 1 <= w.shape[1] <= MAX_CLASSES
        fits = fits and w.size <= MAX_ENTRIES
        rule = f"[d + 1, c] with d in 1..{MAX_DIMENSIONS}, c in 1..{MAX_CLASSES}"
        self.require(np.int16, f"{rule} and at most 2^20 entries", fits, MAX_WEIGHT)

    @property
    def entries(self) -> np.ndarray:
        """The weights."""
        return self.weights


def bias(length: float) -> int:
    """The constant last input of all records: about a quarter of a unit vector's length, 1..63.

    ``length``: of a unit vector after quantisation, public (``Embedder.length``).
    """
    return max(1, min(MAX_BIAS, round(length / 4)))


def residual_unit(weights: np.ndarray, clip: float, length: float, labels: str = "class") -> int:
    """Integer that stands for a residual of 1 in the sums of ``weights`` (int16 [d + 1, c]).

    Residuals as long as ``longest_residual`` reach the limit CLIP at an input of length
    |(``length``, bias)|. ``labels``: what a record has, a label space's kind.
    """
    longest = longest_residual(labels, weights.shape[1], clip, first=not weights.any())
    most = max_unit(labels, weights.shape[1])
    return max(1, min(most, int(CLIP / (longest * math.hypot(length, bias(length))))))


def max_unit(labels: str, outputs: int) -> int:
    """The largest unit: residuals of attributes, each at most 1, add up to a square."""
    alike = math.isqrt(outputs - 1) + 1 if labels == "attributes" else 1
    return MAX_UNIT // alike


def longest_residual(labels: str, outputs: int, clip: float, *, first: bool) -> float:
    """Length of a record's residuals, prediction minus truth, above which they are shrunk.

    ``clip``: of a class's residuals; of each attribute's, in the root mean square; of a value's, in
    half ranges. ``first``: whether all weights are 0. The residuals of a class or of attributes all
    have one length there, so that the unit is larger and noise is smaller where clip allows more.
    Those of a value are the values, and the range limits them.
    """
    if labels == "value":
        return 1.0 if first else clip
    alike = math.sqrt(outputs) / 2 if labels == "attributes" else math.sqrt(1 - 1 / outputs)
    longest = clip * math.sqrt(outputs) if labels == "attributes" else clip
    return min(longest, alike) if first else longest
