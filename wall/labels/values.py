"""Rows with a real value: declared bounds, and the lattice on which values are kept, voted on and released.

Where a row has a class, its label is an index; here it is how many steps the value is above the lower bound, 0 to STEPS, with
what lies outside moved to the bound. So a private row has one integer as its label either way, and a released one is
low + label * step in the values' own unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ABSTAINED

STEPS = (
    1 << 12
)  # between the bounds; rounding to the nearest one moves a value by at most 1 / 8192 of their distance


@dataclass(frozen=True)
class Scale:
    """``low``, ``high``: public bounds of the values, in their unit; declared, never taken from private rows.

    Raises InvalidInput unless both are finite and low < high.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidInput(
                "data.bounds", "[low, high] with low < high, finite", [self.low, self.high]
            )
        if not math.isfinite(self.high - self.low):
            raise InvalidInput(
                "data.bounds", "bounds whose difference is a float", [self.low, self.high]
            )

    def labels(self, values: np.ndarray) -> np.ndarray:
        """The nearest steps, what is outside clipped: int64 [n] of float64 [n]; -1 for a value that is not finite.

        Each label is a function of its own value and the bounds alone.
        """
        finite = np.isfinite(values)
        inside = np.clip(np.where(finite, values, self.low), self.low, self.high)
        steps = np.rint((inside - self.low) / (self.high - self.low) * STEPS).astype(np.int64)
        return np.where(finite, steps, ABSTAINED)

    def values(self, labels: np.ndarray) -> np.ndarray:
        """Inverse of ``labels`` up to its rounding, float64 like ``labels`` (whole or fractional steps); NaN for -1."""
        return np.where(
            labels == ABSTAINED, np.nan, self.low + labels * ((self.high - self.low) / STEPS)
        )
