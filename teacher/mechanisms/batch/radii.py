"""From k to a radius (DMKD17, section 4.3): candidates for a choice by the exponential mechanism, or a ball in a noisy grid.

Functions of public numbers and of counts that have their noise already: nothing here can lose more privacy. The domain is the
box -63..63 in each dimension; as real numbers, features lie in -63.5..63.5.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from labelwall.wall.errors import InvalidInput

LEVELS = 127  # values of a feature
POINTS = 1 << 16  # of the quadrature, over the whole box
THETA = 10.0  # Su et al. 2016
STEP = 0.25  # increment of a radius, 1/500 of a side
ROWS_AT_ONCE = 8  # queries whose distances to all points fit a cache


def candidate_radii(dimensions: int, k: int, records: int, candidates: int) -> np.ndarray:
    """Squared radii 2 j r / n for j = 1..n, int64 [n] ascending, r the radius that holds k records of a uniform data set.

    DMKD17 Algorithm 6, lines 3 and 4: pi^(d/2) / Gamma(d/2 + 1) r^d = k / records of the box's volume. No radius exceeds the
    box's diagonal.
    """
    log_volume = dimensions / 2 * math.log(math.pi) - math.lgamma(dimensions / 2 + 1)
    uniform = (LEVELS - 1) * math.exp((math.log(k / records) - log_volume) / dimensions)
    diagonal = (LEVELS - 1) ** 2 * dimensions
    return np.array(
        [
            min(diagonal, math.floor((2 * j * uniform / candidates) ** 2))
            for j in range(1, candidates + 1)
        ],
        dtype=np.int64,
    )


def cells_a_side(dimensions: int, records: int, epsilon: Fraction) -> int:
    """(records epsilon / 10)^(2 / (2 + d)) (Su et al. 2016, extended uniform grid), at least 2 and at most what POINTS allow."""
    wanted = (records * float(epsilon) / THETA) ** (2 / (2 + dimensions))
    return max(2, min(math.floor(wanted), _most_cells(dimensions)))


def _most_cells(dimensions: int) -> int:
    most = 1
    while most < LEVELS and (most + 1) ** dimensions <= POINTS:
        most += 1
    return most


def require_grid(dimensions: int, records: int | None, epsilon: Fraction) -> None:
    """Raises InvalidInput where a grid over so many dimensions says nothing: not even two cells a side."""
    if _most_cells(dimensions) < 2:
        rule = f"interactive for features of {dimensions} dimensions: a grid of two cells a side has 2^{dimensions} cells"
        raise InvalidInput("mechanism.conversion", rule, "grid")
    if records is not None and records * float(epsilon) < THETA * 2 ** ((2 + dimensions) / 2):
        rule = f"interactive: for {dimensions} dimensions, {records} records and this epsilon a grid has one cell a side"
        raise InvalidInput("mechanism.conversion", rule, "grid")


def cell_numbers(features: np.ndarray, cells: int) -> np.ndarray:
    """The cell of each row of int8 [n, d]: int64 [n] in 0..cells^d - 1."""
    along = (
        (features.astype(np.int64) + LEVELS // 2) * cells // LEVELS
    )  # int64 [n, d] in 0..cells - 1
    return along @ cells ** np.arange(features.shape[1], dtype=np.int64)


def radii_of_grid(queries: np.ndarray, counts: np.ndarray, cells: int, k: int) -> np.ndarray:
    """The smallest squared radius, in increments of STEP, whose ball holds mass ``k`` or more: int64 [q].

    ``counts``: noisy, int64 [cells^d]. DMKD17 Algorithm 7; the volume of ball and cell is a midpoint rule: each cell's count
    spread evenly over s^d points, (s cells)^d <= POINTS. Where the whole box does not hold k, the radius that covers it.
    """
    dimensions = queries.shape[1]
    fine = 1
    while ((fine + 1) * cells) ** dimensions <= POINTS:
        fine += 1
    axis = (np.arange(fine * cells) + 0.5) * (LEVELS / (fine * cells)) - LEVELS / 2
    points = np.stack(np.meshgrid(*[axis] * dimensions, indexing="ij"), axis=-1).reshape(
        -1, dimensions
    )  # [points, d]
    places = np.stack(
        np.meshgrid(*[np.arange(fine * cells) // fine] * dimensions, indexing="ij"), axis=-1
    )
    cell = places.reshape(-1, dimensions) @ cells ** np.arange(dimensions, dtype=np.int64)
    mass, steps = (
        counts[cell] / fine**dimensions,
        math.ceil(LEVELS * math.sqrt(dimensions) / STEP) + 1,
    )
    points = points.astype(np.float32)  # the quadrature errs by more
    squares = (points * points).sum(axis=1)
    found = np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(queries), ROWS_AT_ONCE):
        part = queries[start : start + ROWS_AT_ONCE].astype(np.float32)
        distances = np.maximum(
            squares + (part * part).sum(axis=1)[:, None] - 2 * part @ points.T, 0
        )
        rings = np.ceil(np.sqrt(distances) / STEP).astype(np.int64)
        for i, ring in enumerate(rings, start=start):
            held = np.cumsum(np.bincount(ring, mass, minlength=steps))
            enough = np.flatnonzero(held >= k)
            found[i] = math.floor((STEP * (enough[0] if len(enough) else steps)) ** 2)
    return found
