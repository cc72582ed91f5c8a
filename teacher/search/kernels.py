"""Similarity of records to queries as integers: who is similar enough, and with which weight, exact in every batch.

Features are integers in -63..63 in at most 4,000 dimensions, so |x|^2 and |q|^2 are at most M = 4000 * 63^2 < 2^23.93, and
(q.x)^2 <= |x|^2 |q|^2 <= M^2 < 2^47.85. Weights are multiples of 1/GRID, rounded down. A record's row of numbers depends on
that record, the query and public constants alone: integers leave no room for the company a row is computed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np

from labelwall.wall.errors import InvalidInput

GRID = 128  # steps of a weight: GRID^2 (q.x)^2 < 2^62 fits int64
STEPS = 4096  # steps of a threshold: its square is 2^24
_BITS, _MASK = 24, (1 << 24) - 1


@dataclass(frozen=True, eq=False)
class Similar:
    """The records at or above the threshold for one query, whatever they have left to spend.

    ``rows``: int32 [m], distinct; ``weights``: uint8 [m], kernel values in units of 1/GRID, rounded down, 0..GRID.
    """

    rows: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)


class Select(Protocol):
    """Who is similar to a query, decided for each record by its own numbers."""

    def __call__(self, cross: np.ndarray, norms: np.ndarray, norm: int) -> Similar:
        """``cross``: -2 q.x int32 [n]; ``norms``: |x|^2 int32 [n]; ``norm``: |q|^2."""
        ...

    def most(self, least: int, norm: int) -> int:
        """A cross term above which no record is selected whose |x|^2 is ``least`` or more."""
        ...


def threshold_steps(threshold: float) -> int:
    """The nearest step of the grid 1/STEPS, at least one: int in 1..STEPS. Raises InvalidInput outside (0, 1]."""
    if not 0 < threshold <= 1:
        raise InvalidInput("mechanism.threshold", "in (0, 1]", threshold)
    return max(1, round(threshold * STEPS))


def cosine(threshold: float) -> Select:
    """max(0, q.x / (|q| |x|)) >= threshold, its square compared as integers; a zero vector is similar to nothing."""
    return _Cosine(threshold_steps(threshold))


@dataclass(frozen=True)
class _Cosine:
    """With t = threshold * STEPS and N = |x|^2 |q|^2: q.x > 0 and (q.x)^2 >= t^2 N / 2^24, that is, (q.x)^2 >= its ceiling.

    N = 2^24 h + l gives t^2 h + ceil(t^2 l / 2^24), where t^2 h < 2^48 and t^2 l < 2^48.
    The weight is floor(sqrt(floor(GRID^2 (q.x)^2 / N))) <= GRID, an integer square root from a table.
    """

    t: int

    def __call__(self, cross: np.ndarray, norms: np.ndarray, norm: int) -> Similar:
        # A cheap superset first: float64 errs by a few 2^-53, and the bound is lowered by far more.
        t, coarse = self.t, np.sqrt(norms, dtype=np.float64) * self._slope(norm) + 1
        rows = np.flatnonzero((cross <= coarse) & (cross < 0))
        dot, product = cross[rows].astype(np.int64) // -2, norms[rows].astype(np.int64) * norm
        squared = dot * dot
        exact = squared >= t * t * (product >> _BITS) + (
            (t * t * (product & _MASK) + _MASK) >> _BITS
        )
        weights = _roots()[GRID * GRID * squared[exact] // product[exact]]
        return Similar(rows[exact].astype(np.int32), weights)

    def most(self, least: int, norm: int) -> int:
        """The superset's bound falls with |x|."""
        return min(-1, math.floor(math.sqrt(least) * self._slope(norm) + 1))

    def _slope(self, norm: int) -> float:
        return -2 * (self.t / STEPS) * math.sqrt(norm) * (1 - 1e-9)


def rbf(threshold: float, bandwidth: float, length: float, near: float = 0.0) -> Select:
    """exp(-max(0, |x - q|^2 - r^2) / nu^2) >= threshold by the integer squared distance D: a table of the largest D a weight.

    nu = ``bandwidth`` * ``length`` and r = ``near`` * ``length``, in quantised units; ``length`` (public) is that of a unit
    vector after quantisation. Records within r weigh 1: the grid of weights is then spent on distances that occur.
    """
    if not (math.isfinite(bandwidth) and 0 < bandwidth <= 1e6):
        raise InvalidInput("mechanism.bandwidth", "positive and at most 1e6", bandwidth)
    if not 0 <= near <= 1e6:
        raise InvalidInput("mechanism.near", "between 0 and 1e6", near)
    scale, plateau = (bandwidth * length) ** 2, (near * length) ** 2
    farthest = math.floor(
        min(plateau + scale * math.log(STEPS / threshold_steps(threshold)), 2**30)
    )
    reach = [
        math.floor(min(plateau + scale * math.log(GRID / a), 2**30)) for a in range(GRID, 0, -1)
    ]
    return _Rbf(farthest, np.array(reach, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class _Rbf:
    """``farthest``: the largest squared distance that is selected; ``reach``: int64 [GRID], ascending, the largest whose weight
    is GRID - i or more."""

    farthest: int
    reach: np.ndarray

    def __call__(self, cross: np.ndarray, norms: np.ndarray, norm: int) -> Similar:
        distances = cross + norms + np.int32(norm)  # below 2^26
        rows = np.flatnonzero(distances <= self.farthest)
        weights = GRID - np.searchsorted(self.reach, distances[rows].astype(np.int64), side="left")
        return Similar(rows.astype(np.int32), weights.astype(np.uint8))

    def most(self, least: int, norm: int) -> int:
        """The distance is |x|^2 + |q|^2 and the cross term."""
        return self.farthest - least - norm


@lru_cache(maxsize=1)
def _roots() -> np.ndarray:
    """floor(sqrt(v)) for v in 0..GRID^2: uint8 [GRID^2 + 1]."""
    return np.array([math.isqrt(v) for v in range(GRID * GRID + 1)], dtype=np.uint8)
