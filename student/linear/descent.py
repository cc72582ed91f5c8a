"""Gradient descent along noisy sums: post-processing, free."""

import math
from dataclasses import dataclass, field

import numpy as np

from ...wall.matrices import FRACTION, MAX_WEIGHT
from .measure import FitSettings, Gradient, Measurements
from .tuning import LOGIT_NOISE, MAX_RATE, MOMENTUM

MAX_ENTRIES = 10_000_000  # of the probabilities that a path's PUBLIC rows have at all its steps


def rate(steps: int, deviation: float) -> float:
    """Factor of a gradient whose entries have noise of that ``deviation``, in a descent of so many
    steps.

    A step is as long as its noise allows: if no later step took any of it back, the noise of all
    steps together would move a logit of an input of length 1 by LOGIT_NOISE deviations at the end,
    whatever the budget, the records, the clipping and the number of steps. Gradients of clipped
    residuals keep their length until most labels are right, so that longer steps only make the
    weights longer.
    """
    return min(LOGIT_NOISE * (1 - MOMENTUM) / (math.sqrt(steps) * deviation), MAX_RATE)


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
class Path:
    """The first measurement, and those of the steps that count: ``asked``.

    ``average``: of the weights after these, float64 [d + 1, c]; ``gradient``: the mean of those
    that they followed, with noise of ``deviation`` on every entry; ``inputs``: of the PUBLIC rows
    that explain it, float64 [n, d + 1].
    """

    first: Gradient
    asked: list[Gradient]
    average: np.ndarray = field(repr=False)
    gradient: np.ndarray = field(repr=False)
    deviation: float
    inputs: np.ndarray = field(repr=False)


def descend(
    measure: Measurements, inputs: np.ndarray, how: FitSettings, start: np.ndarray | None = None
) -> Path | None:
    """Descent along the sums of all steps; None if no sum was answered that a step follows.

    The first sum, at weights of 0, counts records and classes. With a ``start``, float64 [d + 1,
    c], the descent begins there after it. ``inputs``: of PUBLIC rows, float64 [n, d + 1].
    """
    zeros = np.zeros((inputs.shape[1], how.outputs))
    largest = MAX_WEIGHT / 2.0**FRACTION * how.unit
    moving = Momentum(weights=zeros, velocity=zeros, largest=largest)
    measured, weights = list[Gradient](), list[np.ndarray]()

    def centred(gradient: np.ndarray) -> np.ndarray:
        """Residuals of classes add up to 0."""
        middle = gradient.mean(axis=1, keepdims=True) if how.labels == "class" else 0.0
        return np.asarray(gradient - middle)

    for step in range(how.steps):
        gradient = measure.at(moving.weights)
        if gradient is None:
            break
        measured.append(gradient)
        if step == 0 and start is not None and how.steps > 1:
            moving.weights = start
            continue
        moving.follow(centred(gradient.mean), rate(how.steps, gradient.deviation))
        # The later half counts; the first step, at weights of 0, if there is no other
        if 2 * step < max(how.steps - 1, 3):
            weights = []
        weights.append(moving.weights)
    if not weights:
        return None
    # Later counts tell more of the records of earlier sums
    pairs = zip(measured, measure.records, strict=True)
    known = [gradient.of(float(records)) for gradient, records in pairs]
    asked = known[-len(weights) :]
    rows = max(1, MAX_ENTRIES // (len(asked) * how.outputs))
    return Path(
        first=known[0],
        asked=asked,
        average=np.mean(weights, axis=0),
        gradient=centred(np.mean([step.mean for step in asked], axis=0)),
        deviation=float(np.linalg.norm([step.deviation for step in asked])) / len(asked),
        inputs=inputs[:rows],
    )
