"""Gradient descent along noisy sums: post-processing, free.

``Schedule`` says how long a step is and which steps count, ``Momentum`` is the step itself, and
``descend`` asks for one sum after another.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ...wall.matrices import FRACTION, MAX_WEIGHT
from .measure import FitSettings, Gradient, Measurements
from .tuning import LOGIT_NOISE, MAX_RATE, MOMENTUM

MAX_ENTRIES = 10_000_000  # of the probabilities that a path's PUBLIC rows have at all its steps


@dataclass(frozen=True)
class Schedule:
    """Lengths of so many ``steps``, and which of them count.

    A step is as long as its noise allows: if no later step took any of it back, the noise of all
    steps together would move a logit of an input of length 1 by LOGIT_NOISE deviations at the end,
    whatever the budget, the records, the clipping and the number of steps. Gradients of clipped
    residuals keep their length until most labels are right, so that longer steps only make the
    weights longer.
    """

    steps: int

    def rate(self, deviation: float) -> float:
        """Factor of a gradient whose entries have noise of that ``deviation``."""
        noise = math.sqrt(self.steps) * deviation
        return min(LOGIT_NOISE * (1 - MOMENTUM) / noise, MAX_RATE)

    def forgets(self, step: int) -> bool:
        """Whether no step before this one counts, from 0: the later half counts.

        The first step, at weights of 0, counts if there are at most two.
        """
        return 2 * step < max(self.steps - 1, 3)


@dataclass
class Momentum:
    """Weights w of inputs of length 1, float64 [d + 1, c], that follow gradients g.

        v <- MOMENTUM v + rate g
        w <- (w - v) min(1, largest / max |w - v|)

    ``largest``: the largest weight that can be asked about.
    """

    weights: np.ndarray
    velocity: np.ndarray
    largest: float

    def follow(self, gradient: np.ndarray, rate: float) -> None:
        self.velocity = MOMENTUM * self.velocity + rate * gradient
        state = self.weights - self.velocity
        self.weights = state * min(1.0, self.largest / max(float(np.abs(state).max()), 1e-300))


@dataclass(frozen=True)
class Followed:
    """A step: what was ``measured``, the ``gradient`` that was followed, the ``weights`` after."""

    measured: Gradient
    gradient: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Path:
    """The first measurement and the steps that count.

    ``inputs``: of PUBLIC rows, by which gradients are explained, float64 [n, d + 1].
    """

    first: Gradient
    steps: tuple[Followed, ...]
    inputs: np.ndarray = field(repr=False)

    @property
    def asked(self) -> list[Gradient]:
        """Measurements of the steps that count."""
        return [step.measured for step in self.steps]

    @cached_property
    def average(self) -> np.ndarray:
        """Mean of the weights after these steps, float64 [d + 1, c]."""
        return np.asarray(np.mean([step.weights for step in self.steps], axis=0))

    @cached_property
    def gradient(self) -> np.ndarray:
        """Mean of the gradients of these steps, float64 [d + 1, c]."""
        return np.asarray(np.mean([step.gradient for step in self.steps], axis=0))

    @property
    def deviation(self) -> float:
        """Deviation of the noise on each entry of ``gradient``."""
        return self.steps[-1].measured.deviation / math.sqrt(len(self.steps))

    @property
    def noise(self) -> float:
        """Expected squared length of the noise in ``gradient``."""
        return self.deviation**2 * self.gradient.size

    def missed(self, residuals: np.ndarray) -> np.ndarray:
        """Gradient of public rows that have these ``residuals``, [n, c], less the records'."""
        return np.asarray(self.inputs.T @ residuals / len(residuals) - self.gradient)


def descend(
    measure: Measurements, inputs: np.ndarray, how: FitSettings, start: np.ndarray | None = None
) -> Path | None:
    """Descent along the sums of all steps; None if no sum was answered that a step follows.

    The first sum, at weights of 0, counts records and classes. With a ``start``, float64 [d + 1,
    c], the descent begins there after it. ``inputs``: of PUBLIC rows, float64 [n, d + 1].
    """
    schedule, zeros = Schedule(how.steps), np.zeros((inputs.shape[1], how.outputs))
    largest = MAX_WEIGHT / 2.0**FRACTION * how.unit
    moving = Momentum(weights=zeros, velocity=zeros, largest=largest)
    first: Gradient | None = None
    counted: list[Followed] = []
    for step in range(how.steps):
        measured = measure.at(moving.weights)
        if measured is None:
            break
        if first is None:
            first = measured
            if start is not None and how.steps > 1:
                moving.weights = start
                continue
        gradient = measured.mean
        if how.labels == "class":  # residuals of classes add up to 0
            gradient = gradient - gradient.mean(axis=1, keepdims=True)
        moving.follow(gradient, schedule.rate(measured.deviation))
        if schedule.forgets(step):
            counted = []
        counted.append(Followed(measured=measured, gradient=gradient, weights=moving.weights))
    if first is None or not counted:
        return None
    rows = max(1, MAX_ENTRIES // (len(counted) * how.outputs))
    return Path(first=first, steps=tuple(counted), inputs=inputs[:rows])
