"""Weights that descend along noisy gradients: post-processing, free.

A step is as long as its noise allows: if no later step took any of it back, the noise of all steps
together would move a logit of an input of length 1 by NOISE deviations at the end, whatever the
budget, the records, the clipping and the number of steps. Gradients of clipped residuals keep their
length until most labels are right, so that longer steps only make the weights longer.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ...wall.weights import FRACTION, MAX_WEIGHT
from .sums_model import SumsModel

# Tried on five sets of features at epsilon 0.02 to 2 (docs/decisions.md).
NOISE = 3.0
MOMENTUM = 0.8
MAX_RATE = 10_000.0  # of a step, where there is hardly any noise
MAX_ENTRIES = 10_000_000  # of the probabilities of PUBLIC rows that tell the factor of logits


@dataclass
class DescentModel(SumsModel):
    """Gradient descent with momentum; the average of the later half of the weights is the result.

    ``average``: these weights of inputs of length 1, float64 [d + 1, c].
    """

    average: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._state, self._velocity, self.average = np.zeros((3, *self.weights.shape))
        # Of the later half of the steps: the weights that were asked for, and their mean gradient
        self._later: list[np.ndarray] = []
        self._gradient = np.zeros(self.weights.shape)
        self._deviation = 0.0  # of the noise on an entry of the mean gradient
        self._taken = 0
        self._found: np.ndarray | None = None

    def _moved(self, weights: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
        self._taken += 1
        self._found = None
        rate = min(NOISE * (1 - MOMENTUM) / (math.sqrt(self.steps) * deviation), MAX_RATE)
        self._velocity = MOMENTUM * self._velocity + rate * gradient
        self._state = self._state - self._velocity
        largest = MAX_WEIGHT / 2.0**FRACTION * self._unit
        self._state *= min(1.0, largest / max(float(np.abs(self._state).max()), 1e-300))
        # The first half, of which the last one counts, and weights of 0 where there are any others.
        if 2 * (self._taken - 1) < max(self.steps - 1, 3):
            self._later, self.average, self._gradient = [], 0 * weights, 0 * weights
        self._later.append(self.weights.copy())
        share = 1 / len(self._later)
        self.average = self.average + share * (self._state - self.average)
        self._gradient = self._gradient + share * (gradient - self._gradient)
        self._deviation = deviation * math.sqrt(share)
        return self._state

    @property
    def released(self) -> np.ndarray:
        """See ``SumsModel.released``."""
        if self._found is None:
            self._found = self._fitted() if self._later else self.average
        return self._found / self._unit

    @abstractmethod
    def _fitted(self) -> np.ndarray:
        """The result, weights of inputs of length 1, from ``average``: float64 [d + 1, c]."""

    def _asked(
        self, link: Callable[[np.ndarray], np.ndarray]
    ) -> Iterator[tuple[np.ndarray, float]]:
        """What the weights of each later step say of public rows, and what their residuals were
        clipped to: not at all at weights of 0, where gradients are taken for unclipped ones.
        """
        for weights in self._later:
            real = weights / 2.0**FRACTION * self._unit
            yield link(self._asked_of @ real), self.clip if weights.any() else np.inf

    @property
    def _asked_of(self) -> np.ndarray:
        """The inputs of the PUBLIC rows that ``_asked`` is about: float64 [n, d + 1]."""
        return self._inputs[: max(1, MAX_ENTRIES // (len(self._later) * self.outputs))]

    @property
    def _noise(self) -> float:
        """The squared length that is expected of the noise in the mean gradient."""
        return self._deviation**2 * self._gradient.size

    def _missed(self, residuals: np.ndarray) -> np.ndarray:
        """How far the gradient of public rows with these ``residuals`` is from the records'."""
        found: np.ndarray = self._asked_of.T @ residuals / len(residuals)
        return found - self._gradient
