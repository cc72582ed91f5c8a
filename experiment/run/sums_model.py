"""A linear model from noisy sums of gradients and PUBLIC features: post-processing, free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ...wall.weights import (
    COUNT,
    FRACTION,
    MAX_WEIGHT,
    SENSITIVITY,
    bias,
    longest_residual,
    residual_unit,
)
from .quality import Estimate

MAX_ROWS = 10_000  # public rows that the fit looks at
MIN_RECORDS = 1.0  # that a noisy count is taken for


@dataclass
class SumsModel(ABC):
    """The model after some steps. A label space has one of its own.

    Args:
        features: PUBLIC, int8 [n, d].
        outputs: their number: classes, attributes, or 1 for a value.
        length: of a unit vector after quantisation (``Embedder.length``).
        noise_multiplier: of a sum's noise.
        clip: of the mechanism.
        steps: of the mechanism.
        gain: of the mechanism. With more than 1 a sum's count is of weighted records.
        weights: int16 [d + 1, c], those of the next step; all 0 before the first sum.

    Class attributes:
        space: the label space's kind.
        has_probabilities: whether what it says is the probabilities of classes.
    """

    features: np.ndarray = field(repr=False)
    outputs: int
    length: float
    noise_multiplier: float
    clip: float
    steps: int
    gain: int = 1
    weights: np.ndarray = field(init=False, repr=False)

    space: ClassVar[str]
    has_probabilities: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.weights = np.zeros((self.features.shape[1] + 1, self.outputs), dtype=np.int16)
        self._unit = float(np.hypot(self.length, bias(self.length)))  # length of an input
        self._inputs = with_bias(self.features[:MAX_ROWS], self.length) / self._unit
        self._counts: list[float] = []

    def next_weights(self) -> np.ndarray:
        """The weights of the next step: int16 [d + 1, c]."""
        return self.weights

    def add(self, sums: np.ndarray) -> None:
        """Take the step of the noisy sum for ``next_weights``: int64 [(d + 1) * c + 1]."""
        self._counts.append(sums[-1] / COUNT)
        unit = residual_unit(self.weights, self.clip, self.length, self.space)
        counted = float(np.mean(self._counts)) if self.gain == 1 else self._counts[-1]
        total = self.gain * unit * max(MIN_RECORDS, counted) * self._unit
        if not self.weights.any():  # residuals are all as long here: a clip shrank all alike
            total *= self._longest(self.clip) / self._longest(np.inf)
        gradient = sums[:-1].reshape(self.weights.shape) / total
        deviation = self.noise_multiplier * SENSITIVITY / total
        self.weights = _integers(self._moved(self.real_weights, gradient, deviation) / self._unit)

    def _longest(self, clip: float) -> float:
        return longest_residual(self.space, self.outputs, clip, first=True)

    @property
    def real_weights(self) -> np.ndarray:
        """The weights of inputs of length 1: float64 [d + 1, c]."""
        return self.weights / 2.0**FRACTION * self._unit

    @abstractmethod
    def _moved(self, weights: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
        """The weights of inputs of length 1, float64 [d + 1, c], moved by a sum for them.

        ``gradient``: the records' mean at ``weights``, float64 [d + 1, c]; ``deviation``: of the
        noise on each of its entries.
        """

    @abstractmethod
    def says(self, features: np.ndarray) -> np.ndarray:
        """Of rows int8 [n, d]: float32 [n, c], probabilities, or values from -1 to 1."""

    @abstractmethod
    def labels(self, said: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
        """(labels, outcomes uint8 [n]) of what the model ``says``."""

    @abstractmethod
    def estimate(self, said: np.ndarray) -> Estimate:
        """How good the labels are, by what the model ``says`` of public rows."""

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Of rows int8 [n, d]: float64 [n, c]."""
        return with_bias(features, self.length) @ self.released

    @property
    def released(self) -> np.ndarray:
        """The result, weights of integer inputs: float64 [d + 1, c]."""
        return self.weights / 2.0**FRACTION


def with_bias(features: np.ndarray, length: float) -> np.ndarray:
    """Inputs float64 [n, d + 1] of rows int8 [n, d]."""
    return np.pad(features.astype(np.float64), ((0, 0), (0, 1)), constant_values=bias(length))


def _integers(weights: np.ndarray) -> np.ndarray:
    """In units of 2^-FRACTION, int16; all are shrunk alike where one is too large."""
    scaled = weights * 2.0**FRACTION
    largest = float(np.abs(scaled).max())
    return np.rint(scaled * min(1.0, MAX_WEIGHT / max(largest, 1.0))).astype(np.int16)
