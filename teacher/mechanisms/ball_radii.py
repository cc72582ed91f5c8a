"""From k to a radius (DMKD17, section 4.3): candidate radii, or a ball in a noisy grid.

All functions but ``cell_numbers`` take public numbers and noisy counts: they are post-processing.
The domain is the box -63..63 in each dimension; as real numbers, features lie in -63.5..63.5.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from ...wall.errors import InvalidInput

LEVELS = 127  # values of a feature
POINTS = 1 << 16  # of the quadrature, over the whole box
THETA = 10.0  # Su et al. 2016
STEP = 0.25  # increment of a radius, 1/500 of a side
QUERIES_PER_BLOCK = 8  # their distances to all points fit a cache


def candidate_radii(dimensions: int, k: int, records: int, candidates: int) -> np.ndarray:
    """Squares of the radii 2 j r / n for j = 1..n, n = ``candidates``: int64 [n] ascending.

    r is the radius of a ball with k records of a uniform data set, DMKD17 Algorithm 6, lines 3 and
    4: pi^(d/2) / Gamma(d/2 + 1) r^d = k / records of the box's volume. No radius exceeds the box's
    diagonal.
    """
    log_volume = dimensions / 2 * math.log(math.pi) - math.lgamma(dimensions / 2 + 1)
    uniform = (LEVELS - 1) * math.exp((math.log(k / records) - log_volume) / dimensions)
    diagonal = (LEVELS - 1) ** 2 * dimensions
    radii = (2 * j * uniform / candidates for j in range(1, candidates + 1))
    return np.array([min(diagonal, math.floor(radius**2)) for radius in radii], dtype=np.int64)


def cells_a_side(dimensions: int, records: int, epsilon: Fraction) -> int:
    """(records epsilon / 10)^(2 / (2 + d)), at least 2 and at most what POINTS allow.

    The extended uniform grid of Su et al. 2016.
    """
    cells = (records * float(epsilon) / THETA) ** (2 / (2 + dimensions))
    return max(2, min(math.floor(cells), _max_cells(dimensions)))


def _max_cells(dimensions: int) -> int:
    cells = 1
    while cells < LEVELS and (cells + 1) ** dimensions <= POINTS:
        cells += 1
    return cells


def require_grid(dimensions: int, records: int | None, epsilon: Fraction) -> None:
    """Raise InvalidInput where a grid over so many dimensions has fewer than two cells a side."""
    if _max_cells(dimensions) < 2:
        rule = (
            f"interactive for features of {dimensions} dimensions: "
            f"a grid of two cells a side has 2^{dimensions} cells"
        )
        raise InvalidInput("mechanism.conversion", rule, "grid")
    if records is not None and records * float(epsilon) < THETA * 2 ** ((2 + dimensions) / 2):
        rule = (
            f"interactive: for {dimensions} dimensions, {records} records and this epsilon "
            "a grid has one cell a side"
        )
        raise InvalidInput("mechanism.conversion", rule, "grid")


def cell_numbers(features: np.ndarray, cells: int) -> np.ndarray:
    """The cell of each row of int8 [n, d]: int64 [n] in 0..cells^d - 1."""
    # int64 [n, d] in 0..cells - 1
    along = (features.astype(np.int64) + LEVELS // 2) * cells // LEVELS
    return along @ cells ** np.arange(features.shape[1], dtype=np.int64)


def radii_of_grid(queries: np.ndarray, counts: np.ndarray, cells: int, k: int) -> np.ndarray:
    """Squares of the smallest radii, in increments of STEP, whose balls have mass >= k: int64 [q].

    ``counts``: noisy, int64 [cells^d]. DMKD17 Algorithm 7. The volume of ball and cell is a
    midpoint rule: each cell's count is spread evenly over s^d points, (s cells)^d <= POINTS. Where
    the box has less mass than ``k``, the radius covers it.
    """
    dimensions = queries.shape[1]
    fine = 1
    while ((fine + 1) * cells) ** dimensions <= POINTS:
        fine += 1
    axis = (np.arange(fine * cells) + 0.5) * (LEVELS / (fine * cells)) - LEVELS / 2
    points = _product(axis, dimensions).astype(np.float32)  # the quadrature errs by more
    places = _product(np.arange(fine * cells) // fine, dimensions)
    cell = places @ cells ** np.arange(dimensions, dtype=np.int64)
    mass = counts[cell] / fine**dimensions
    steps = math.ceil(LEVELS * math.sqrt(dimensions) / STEP) + 1
    squares = (points * points).sum(axis=1)
    radii = np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(queries), QUERIES_PER_BLOCK):
        part = queries[start : start + QUERIES_PER_BLOCK].astype(np.float32)
        norms = (part * part).sum(axis=1)[:, None]
        distances = np.sqrt(np.maximum(squares + norms - 2 * part @ points.T, 0))
        rings = np.ceil(distances / STEP).astype(np.int64)
        for i, ring in enumerate(rings, start=start):
            inside = np.cumsum(np.bincount(ring, mass, minlength=steps))
            enough = np.flatnonzero(inside >= k)
            radii[i] = math.floor((STEP * (enough[0] if len(enough) else steps)) ** 2)
    return radii


def _product(axis: np.ndarray, dimensions: int) -> np.ndarray:
    """All points with coordinates from ``axis`` [n]: [n^dimensions, dimensions]."""
    grid = np.meshgrid(*[axis] * dimensions, indexing="ij")
    return np.stack(grid, axis=-1).reshape(-1, dimensions)
