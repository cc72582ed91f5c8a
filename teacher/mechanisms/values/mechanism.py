"""Noisy clipped mean or noisy median of neighbours' values: CVPR20's vote for real targets.

A record's label is its value in steps between public bounds, 0..STEPS (wall/labels/values.py), so
each value is clipped by itself before it counts. Voters are the min(k, |sample|) nearest of a new
Poisson sample. With the others' inclusion bits fixed, a sampled record joins the voters or
displaces the k-th: one value is added, and one may be removed. Hence, in integers,

- a neighbour contributes 2 label - STEPS, from -STEPS to STEPS: the sum moves by at most STEPS if
  one is added, by 2 STEPS if one replaces another. A missing neighbour contributes the middle of
  the range, 0;
- counts of the neighbours in cells of the range move by e_a or e_a - e_b, as votes for classes do.
  So the number in any window of cells moves by at most 1, and so does the largest of them: a
  screening like CVPR20's, by how concentrated the values are;
- the loss of a cell, the larger of the numbers of neighbours below and above it, moves by at most
  1, as each of the two does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from ....wall.errors import InvalidInput
from ....wall.labels.values import STEPS
from ....wall.messages import ABSTAINED, Outcome, Value
from ...accounting.plan import Release
from ...noise.scales import (
    SCREEN_RATIO,
    check_screen_ratio,
    less_spent,
    more_noise,
)
from ..base import Mechanism
from ..noisy_argmax import SCREEN

if TYPE_CHECKING:
    from ...noise.entropy import Entropy
    from ..voters import Voters

MEAN, MEDIAN = "mean", "median"
RANGE = 2 * STEPS  # sensitivity of the sum, in half steps
MAX_NEIGHBOURS, MAX_CELLS = 100_000, 1024


@dataclass(frozen=True)
class Regression(Mechanism):
    """Base of both mechanisms: neighbours, cells of the range, and screening by their counts."""

    label_space = "value"
    sharded = True
    persons = True

    k: int = 100
    sampling_probability: float = 0.1
    cells: int = 64
    threshold: int | None = None
    window: int = 6
    sigma_screen: float | None = None
    screen_ratio: float = SCREEN_RATIO

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MAX_NEIGHBOURS:
            raise InvalidInput("mechanism.k", f"from 1 to {MAX_NEIGHBOURS}", self.k)
        if not 0 < self.sampling_probability <= 1:
            raise InvalidInput(
                "mechanism.sampling_probability", "in (0, 1]", self.sampling_probability
            )
        if not 2 <= self.cells <= MAX_CELLS:
            raise InvalidInput("mechanism.cells", f"from 2 to {MAX_CELLS}", self.cells)
        if self.threshold is not None and not 0 <= self.threshold <= self.k:
            raise InvalidInput("mechanism.threshold", "null, or between 0 and k", self.threshold)
        if not 1 <= self.window < self.cells:
            raise InvalidInput("mechanism.window", "at least 1 and below cells", self.window)
        if self.sigma_screen is not None and not 1e-3 <= self.sigma_screen <= 1e5:
            raise InvalidInput("mechanism.sigma_screen", "between 1e-3 and 1e5", self.sigma_screen)
        check_screen_ratio(self.screen_ratio)

    @property
    def aggregate(self) -> str:
        """The name of the release with the answer."""
        raise NotImplementedError

    @property
    def stages(self) -> tuple[str, ...]:
        """The screening, where there is a threshold, and the answer."""
        return (self.aggregate,) if self.threshold is None else (SCREEN, self.aggregate)

    @property
    def missing(self) -> tuple[str, ...]:
        """See ``Mechanism.missing``; without a screening it needs no noise."""
        found = super().missing
        return tuple(n for n in found if n != "sigma_screen" or self.threshold is not None)

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` screenings and ``answered`` answers.

        Without a threshold every query is answered.
        """
        if self.threshold is None:
            return (self._answer(asked),)
        priced = {
            "max_votes": self.k,
            "threshold": self.threshold,
            "sigma": self.number("sigma_screen"),
            "sampling_probability": self.sampling_probability,
        }
        return Release(SCREEN, "screening", priced, asked), self._answer(answered)

    def _answer(self, cap: int) -> Release:
        raise NotImplementedError

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """One noisy release for each query: the screening bit, a noisy sum or a label.

        int64 [n_queries]. ``keys``: the queries' identities, charged for this stage already.
        """
        if stage != SCREEN:
            return self._draw_answer(voters, keys, entropy)
        assert self.threshold is not None
        largest = windows(self._counts(stage, voters, keys, entropy), self.window).max(axis=1)
        noise = entropy.discrete_gaussian(self.number("sigma_screen"), keys, stage, 1)
        return (largest + noise[:, 0] > self.threshold).astype(np.int64)

    def _draw_answer(self, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        raise NotImplementedError

    def _counts(
        self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy
    ) -> np.ndarray:
        """Neighbours in each cell of the range, in a new sample: int64 [n_queries, cells]."""
        cell = np.multiply(voters.labels, self.cells, dtype=np.int64) // (STEPS + 1)
        counted = replace(voters, labels=cell, num_classes=self.cells)
        return counted.votes(self.k, self.sampling_probability, keys, stage, entropy)

    def next_stage(self, results: Mapping[str, Value]) -> str | None:
        """The release a query still needs, given what it has; None when it is settled."""
        if self.threshold is not None and SCREEN not in results:
            return SCREEN
        passed = self.threshold is None or results[SCREEN] == 1
        return self.aggregate if passed and self.aggregate not in results else None

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, int]:
        """(outcome, label) of a settled query: steps above the lower bound, 0..STEPS."""
        value = results.get(self.aggregate)
        if isinstance(value, int):
            return Outcome.ANSWERED, self._label(value)
        return Outcome.ABSTAINED, ABSTAINED

    def _label(self, value: int) -> int:
        raise NotImplementedError


@dataclass(frozen=True)
class PrivateKnnMean(Regression):
    """Mean of the k nearest neighbours' clipped values, with Gaussian noise on their sum.

    Guarantee, for one query under add/remove of one record: the sum moves by at most one range
    (high - low), so its release costs the Poisson-subsampled Gaussian bound
    (``curves.gaussian_rdp``) at that sensitivity; the screening bit, where there is a threshold,
    costs ``curves.screening_rdp``. They never share a sample. All fields are publishable and fixed
    without looking at private rows.

    Args:
        kind: the mechanism's name.
        k: neighbours whose values count, a count of records; a sample with fewer moves the mean
            towards the middle of the range.
        sampling_probability: each record takes part in a release with this probability,
            independently; in (0, 1].
        sigma_mean: scale of the discrete Gaussian noise on the sum, in ranges (high - low); on the
            mean it is sigma_mean / k; null: what the budget asks for.
        threshold: the noisy largest number of neighbours in a window must exceed it for a query to
            be answered, in votes; null: every query is answered, and nothing is paid for screening.
        window: adjacent cells within which neighbours agree, a count.
        cells: equal parts of the range, a count.
        sigma_screen: scale of the discrete Gaussian noise on the largest number of neighbours in a
            window, in votes; null: what the budget asks for, where there is a threshold.
        screen_ratio: noise of the screening over that of the answer, each over its sensitivity,
            where the budget asks for both.
    """

    kind: Literal["private_knn_mean"] = "private_knn_mean"
    sigma_mean: float | None = None

    aggregate = MEAN
    solved = ("sigma_screen", "sigma_mean")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma_mean is not None and not 1e-3 <= self.sigma_mean <= 1e5:
            raise InvalidInput("mechanism.sigma_mean", "between 1e-3 and 1e5", self.sigma_mean)

    def with_noise(self, level: float, asked: int) -> PrivateKnnMean:
        """See ``Mechanism.with_noise``. The sum moves by one range."""
        return self.filled(
            sigma_screen=more_noise(self.screen_ratio * level), sigma_mean=more_noise(level)
        )

    def _answer(self, cap: int) -> Release:
        priced = {
            "sigma": self.number("sigma_mean") * RANGE,
            "sensitivity": float(RANGE),
            "sampling_probability": self.sampling_probability,
        }
        return Release(MEAN, "gaussian", priced, cap)

    def _draw_answer(self, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Noisy sums in half steps from the middle of the range: int64 [n_queries].

        A power of two times a float is exact, so the scale drawn is the accounted one.
        """
        doubled = np.multiply(voters.labels, 2, dtype=np.int64)
        contributions = (doubled - STEPS)[:, np.newaxis]  # [n_records, 1]
        gamma, summed = self.sampling_probability, replace(voters, num_classes=1)
        sums = summed.votes(self.k, gamma, keys, MEAN, entropy, contributions)
        scale = self.number("sigma_mean") * RANGE
        return (sums + entropy.discrete_gaussian(scale, keys, MEAN, 1))[:, 0]

    def _label(self, value: int) -> int:
        """The mean to the nearest step, clipped to the range: post-processing of the stored sum."""
        return min(STEPS, max(0, (value + self.k * STEPS + self.k) // (2 * self.k)))


@dataclass(frozen=True)
class PrivateKnnMedian(Regression):
    """Median of the k nearest neighbours' values by the exponential mechanism.

    Candidates are the middles of equal cells of the range. A cell is drawn with probability
    proportional to exp(-epsilon / 2 max(neighbours below, neighbours above)), exactly. An outlier
    counts as one neighbour at any distance; the error is in ranks, so where neighbours agree it is
    small for any range.

    Guarantee, for one query under add/remove of one record: every loss moves by at most 1, so all
    log probabilities move within an interval of length epsilon: ``curves.bounded_range_rdp``,
    Poisson-subsampled. The screening bit, where there is a threshold, costs
    ``curves.screening_rdp``. They never share a sample. All fields are publishable and fixed
    without looking at private rows.

    Args:
        kind: the mechanism's name.
        k: neighbours whose values count, a count of records.
        sampling_probability: each record takes part in a release with this probability,
            independently; in (0, 1].
        epsilon: of one median, before sampling (dimensionless); null: what the budget pays for.
        threshold: the noisy largest number of neighbours in a window must exceed it for a query to
            be answered, in votes; null: every query is answered, and nothing is paid for screening.
        window: adjacent cells within which neighbours agree, a count.
        cells: equal parts of the range, a count; an answer is the middle of one.
        sigma_screen: scale of the discrete Gaussian noise on the largest number of neighbours in a
            window, in votes; null: what the budget asks for, where there is a threshold.
        screen_ratio: noise of the screening over that of the answer, each over its sensitivity,
            where the budget asks for both.
    """

    kind: Literal["private_knn_median"] = "private_knn_median"
    epsilon: float | None = None

    aggregate = MEDIAN
    solved = ("sigma_screen", "epsilon")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon is not None and not 1e-6 <= self.epsilon <= 1e3:
            raise InvalidInput("mechanism.epsilon", "between 1e-6 and 1000", self.epsilon)

    def with_noise(self, level: float, asked: int) -> PrivateKnnMedian:
        """See ``Mechanism.with_noise``; epsilon costs as Gaussian noise of 2 / epsilon does."""
        return self.filled(
            sigma_screen=more_noise(self.screen_ratio * level), epsilon=less_spent(2 / level)
        )

    def _answer(self, cap: int) -> Release:
        priced = {
            "epsilon": self.number("epsilon"),
            "sampling_probability": self.sampling_probability,
        }
        return Release(MEDIAN, "bounded_range", priced, cap)

    def _draw_answer(self, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Labels in the middle of the drawn cells: int64 [n_queries]."""
        counts = self._counts(MEDIAN, voters, keys, entropy)
        up_to = counts.cumsum(axis=1)
        losses = np.maximum(up_to - counts, up_to[:, -1:] - up_to)  # below, above
        rate = Fraction(self.number("epsilon")) / 2
        drawn = entropy.choose(losses, [rate] * len(keys), keys, MEDIAN)
        return (2 * drawn + 1) * (STEPS + 1) // (2 * self.cells)

    def _label(self, value: int) -> int:
        return value


def windows(counts: np.ndarray, width: int) -> np.ndarray:
    """Sums of ``width`` adjacent entries of int64 [n, m]: int64 [n, m - width + 1]."""
    up_to = np.pad(counts.cumsum(axis=1), ((0, 0), (1, 0)))
    return up_to[:, width:] - up_to[:, :-width]
