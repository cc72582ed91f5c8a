"""Noisy sums of gradients as gradients of a mean record, for inputs of length 1."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ...wall.matrices import (
    COUNT,
    FRACTION,
    MAX_WEIGHT,
    SENSITIVITY,
    bias,
    longest_residual,
    residual_unit,
)
from .tuning import AXES_BY_STRENGTH, MAX_AXES, MIN_AXES

MAX_ROWS = 10_000  # public rows that a fit looks at
MIN_RECORDS = 1.0  # least number of records that a noisy count is taken for

# (step from 1, weights int16 [d + 1, c]) -> (weights that were sent, their noisy sum int64
# [(d + 1) * c + 1], None if a cap refuses it).
Ask = Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray | None]]


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit, which it needs beside sums and public rows.

    Args:
        labels: the label space's kind: class, attributes or value.
        outputs: number of classes or attributes, 1 for a value.
        length: of a unit vector after quantisation (``Embedder.length``).
        noise_multiplier: deviation of a sum's noise, in sensitivities.
        clip: limit of a record's residual.
        steps: number of sums.
        gain: with more than 1 a sum's count is of weighted records.
        alike: whether the records have the shares of the classes that public rows have.
        balanced: whether the classifier favours each class alike.
    """

    labels: str
    outputs: int
    length: float
    noise_multiplier: float
    clip: float
    steps: int
    gain: int = 1
    alike: bool = False
    balanced: bool = False

    @property
    def unit(self) -> float:
        """Length of an integer input, the bias's included."""
        return float(np.hypot(self.length, bias(self.length)))


@dataclass(frozen=True)
class Gradient:
    """One measurement.

    ``weights``: of inputs of length 1, at which it was taken, float64 [d + 1, c]; ``mean``: the
    records' mean gradient with noise, float64 [d + 1, c]; ``deviation``: of the noise on each of
    its entries; ``clip``: length that residuals were clipped to. At weights of 0 all residuals are
    equally long, so that gradients are taken for unclipped ones. ``records``: that the sum was
    divided by.
    """

    weights: np.ndarray = field(repr=False)
    mean: np.ndarray = field(repr=False)
    deviation: float
    clip: float
    records: float

    def of(self, records: float) -> "Gradient":
        """The mean if there are so many ``records``."""
        factor = self.records / records
        mean, deviation = factor * self.mean, factor * self.deviation
        return replace(self, mean=mean, deviation=deviation, records=records)


def carried_axes(strength: float, classes: int, most: int) -> int:
    """Number of axes, at most ``most``, that a linear classifier learns with.

    The noise on each axis is the same. ``strength``: records per class, divided by the noise's
    standard deviation if one step took the whole budget.
    """
    fewest = min(2 * classes, MIN_AXES)
    return int(min(max(strength * AXES_BY_STRENGTH, fewest), most, MAX_AXES))


class Measurements:
    """Noisy sums of one fit, one after another. ``counts``: a noisy number of records for each."""

    def __init__(self, ask: Ask, settings: FitSettings) -> None:
        self._ask, self._settings = ask, settings
        self.counts: list[float] = []

    def at(self, weights: np.ndarray) -> Gradient | None:
        """Gradient at weights of inputs of length 1; None if a cap refuses the sum."""
        how = self._settings
        sent, noisy = self._ask(len(self.counts) + 1, to_integers(weights / how.unit))
        if noisy is None:
            return None
        self.counts.append(float(noisy[-1] / COUNT))
        records = float(self.records[-1])
        unit = residual_unit(sent, how.clip, how.length, how.labels)
        total, first = how.gain * unit * records * how.unit, not sent.any()
        if first:
            longest = partial(longest_residual, how.labels, how.outputs, first=True)
            total *= longest(how.clip) / longest(np.inf)
        return Gradient(
            weights=sent / 2.0**FRACTION * how.unit,
            mean=noisy[:-1].reshape(sent.shape) / total,
            deviation=how.noise_multiplier * SENSITIVITY / total,
            clip=np.inf if first else how.clip,
            records=records,
        )

    @property
    def records(self) -> np.ndarray:
        """Numbers of records that sums are divided by, float64, one for each of ``counts``.

        The most probable ones beside the counts' noise, if they follow a random walk. With a gain G
        each of P persons counts from 1 / G, where its gradient is cut most, to 1. So a number is
        from P / G to P, and from mean / G to G mean, as the mean is from P / G to P, too. They grow
        slowly as gradients shrink: the walk moves by (1 - 1 / G) mean in one deviation of all
        steps. Without a gain it stands still, and all numbers are the mean.
        """
        steps, gain = len(self.counts), self._settings.gain
        mean = max(MIN_RECORDS, float(np.mean(self.counts)))
        step = (1 - 1 / gain) * mean / self._settings.steps**0.5
        walk = step**2 * np.minimum.outer(np.arange(steps), np.arange(steps))
        inverse = np.linalg.inv(walk + self._count_noise**2 * np.eye(steps))
        level = inverse.sum(axis=0) @ self.counts / inverse.sum()
        numbers = level + walk @ inverse @ (self.counts - level)
        return np.asarray(np.clip(numbers, mean / gain, mean * gain))

    @property
    def _count_noise(self) -> float:
        return self._settings.noise_multiplier * SENSITIVITY / COUNT

    @property
    def count_noise(self) -> float:
        """Deviation of the mean of ``counts``."""
        return self._count_noise / max(1, len(self.counts)) ** 0.5


def with_bias(features: np.ndarray, length: float) -> np.ndarray:
    """Integer inputs, float64 [n, d + 1], of rows int8 [n, d]."""
    return np.pad(features.astype(np.float64), ((0, 0), (0, 1)), constant_values=bias(length))


def unit_inputs(features: np.ndarray, length: float) -> np.ndarray:
    """Inputs of length 1, float64 [n, d + 1], of rows int8 [n, d]."""
    return with_bias(features, length) / np.hypot(length, bias(length))


def to_integers(weights: np.ndarray) -> np.ndarray:
    """Weights in units of 2^-FRACTION, int16; all are shrunk alike if one is too large."""
    scaled = weights * 2.0**FRACTION
    largest = float(np.abs(scaled).max())
    return np.rint(scaled * min(1.0, MAX_WEIGHT / max(largest, 1.0))).astype(np.int16)
