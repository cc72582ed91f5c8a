"""Noisy clipped mean or noisy median of neighbours' values: CVPR20's vote for real targets.

A record's label is its value in steps between public bounds, 0..STEPS (wall/label_kinds.py), so
each value is clipped by itself before it counts. Voters are the min(k, |sample|) nearest of a new
Poisson sample: one value is added, and one may be removed. What that moves is proved in
docs/privacy.md, section 17.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...wall.errors import InvalidInput
from ...wall.label_kinds import STEPS
from ..accounting.plan import Release
from .fields import (
    less_spent,
    more_noise,
    nearest,
    noise_scale,
    param,
    pure_epsilon,
    ratio,
    sampling,
)
from .votes import SCREEN, Screened

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Keys, Voters

MEAN, MEDIAN = "mean", "median"
RANGE = 2 * STEPS  # sensitivity of the sum, in half steps
MAX_NEIGHBOURS, MAX_CELLS = 100_000, 1024


@dataclass(frozen=True)
class Regression(Screened):
    """A value from the k nearest of a sample, screened by the votes in a window of cells.

    The screening asks whether the values agree: the noisy largest number of neighbours in a window
    must exceed the threshold.
    """

    k: int = nearest(
        100,
        MAX_NEIGHBOURS,
        "neighbours whose values count; a sample with fewer moves a mean towards the middle of the "
        "range",
    )
    sample_rate: float = sampling(0.1)
    cells: int = param(64, "equal parts of the range", unit="a count", ge=2, le=MAX_CELLS)
    threshold: int | None = param(  # type: ignore[assignment]
        None,
        "the noisy largest number of neighbours in a window must exceed it for a query to be "
        "answered; null: every query is answered, and nothing is paid for screening",
        unit="votes",
        ge=0,
    )
    window: int = param(6, "adjacent cells within which neighbours agree", unit="a count", ge=1)
    sigma_screen: float | None = noise_scale(
        "the largest number of neighbours in a window", ge=1e-3, le=1e5
    )
    screen_ratio: float = ratio()

    label_space = "value"
    rehearsed = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None and self.threshold > self.k:
            raise InvalidInput("mechanism.threshold", "null, or between 0 and k", self.threshold)
        if self.window >= self.cells:
            raise InvalidInput("mechanism.window", "at least 1 and below cells", self.window)

    def largest(self, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        counts = self.counts(SCREEN, voters, keys, entropy)
        return sliding_window_view(counts, self.window, axis=1).sum(axis=2).max(axis=1)

    def counts(self, stage: str, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """Neighbours in each cell of the range, in a new sample: int64 [n_queries, cells]."""
        cell = np.multiply(voters.labels, self.cells, dtype=np.int64) // (STEPS + 1)
        counted = replace(voters, labels=cell, num_classes=self.cells)
        return counted.votes(self.k, self.rate, keys, stage, entropy)


@dataclass(frozen=True)
class PrivateKnnMean(Regression):
    """Mean of the k nearest neighbours' clipped values, with Gaussian noise on their sum.

    Guarantee, for one query under add/remove of one record: the sum moves by at most one range
    (high - low), so it costs the Poisson-subsampled Gaussian bound at that sensitivity; a screening
    bit costs ``curves.screening_rdp``. They never share a sample. A missing neighbour contributes
    the middle of the range.
    """

    kind: Literal["private_knn_mean"] = "private_knn_mean"
    sigma_mean: float | None = noise_scale(
        "the sum of k values; on the mean it is sigma_mean / k",
        "ranges, high - low",
        ge=1e-3,
        le=1e5,
    )

    aggregate = MEAN
    noise_field = "sigma_mean"  # the sum moves by one range

    def answer_release(self, cap: int) -> Release:
        priced = {
            "sigma": self.require("sigma_mean") * RANGE,
            "sensitivity": float(RANGE),
            "sample_rate": self.rate,
        }
        return Release(MEAN, "gaussian", priced, cap)

    def draw_answer(self, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """Noisy sums in half steps from the middle of the range: int64 [n_queries].

        A power of two times a float is exact, so the scale drawn is the accounted one.
        """
        doubled = np.multiply(voters.labels, 2, dtype=np.int64)
        contributions = (doubled - STEPS)[:, np.newaxis]  # [n_records, 1]
        summed = replace(voters, num_classes=1)
        sums = summed.votes(self.k, self.rate, keys, MEAN, entropy, contributions)
        scale = self.require("sigma_mean") * RANGE
        return (sums + entropy.discrete_gaussian(scale, keys, MEAN, 1))[:, 0]

    def label(self, value: Any) -> int:
        """The mean to the nearest step, clipped to the range: post-processing of the stored sum."""
        return min(STEPS, max(0, (value + self.k * STEPS + self.k) // (2 * self.k)))


@dataclass(frozen=True)
class PrivateKnnMedian(Regression):
    """Median of the k nearest neighbours' values by the exponential mechanism.

    Candidates are the middles of equal cells of the range. A cell is drawn with probability
    proportional to exp(-epsilon / 2 max(neighbours below, neighbours above)), exactly. An outlier
    counts as one neighbour at any distance.

    Guarantee, for one query under add/remove of one record: every loss moves by at most 1, so all
    log probabilities move within an interval of length epsilon: ``curves.bounded_range_rdp``,
    Poisson-subsampled; a screening bit costs ``curves.screening_rdp``. They never share a sample.
    """

    kind: Literal["private_knn_median"] = "private_knn_median"
    epsilon: float | None = pure_epsilon("of one median, before sampling")

    aggregate = MEDIAN
    noise_field = "epsilon"

    def with_noise(self, level: float, asked: int) -> Self:
        """Epsilon costs as Gaussian noise of 2 / epsilon does."""
        screen = more_noise(self.screen_ratio * level)
        return self.with_values(sigma_screen=screen, epsilon=less_spent(2 / level))

    def answer_release(self, cap: int) -> Release:
        priced = {"epsilon": self.require("epsilon"), "sample_rate": self.rate}
        return Release(MEDIAN, "bounded_range", priced, cap)

    def draw_answer(self, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """Labels in the middle of the drawn cells."""
        counts = self.counts(MEDIAN, voters, keys, entropy)
        up_to = counts.cumsum(axis=1)
        losses = np.maximum(up_to - counts, up_to[:, -1:] - up_to)  # below, above
        rate = Fraction(self.require("epsilon")) / 2
        drawn = entropy.choose(losses, [rate] * len(keys), keys, MEDIAN)
        return (2 * drawn + 1) * (STEPS + 1) // (2 * self.cells)
