"""A real value a row, within declared bounds: kept, voted on and released on a lattice of STEPS
between them.

A code, and a released label, is how many steps the value is above the lower bound; what lies
outside is moved to the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ..errors import InvalidInput
from ..messages import ABSTAINED
from .base import LabelSpace, Score

# Between the bounds. Rounding to the nearest moves a value by at most 1 / 8192 of their distance.
STEPS = 1 << 12
CELLS = 32  # parts a side of the picture of predicted against true values
TENTHS = 10  # parts of the range in which a custodian's rows are counted
ERRORS = ("rmse", "mae", "r2")


@dataclass(frozen=True)
class ValueLabels(LabelSpace):
    """``low``, ``high``: public bounds of the values, in their unit; declared, never taken from
    private rows.

    Truth is float64 [n], labels are int64 [n] in 0..STEPS. Raises InvalidInput unless both bounds
    are finite and low < high.
    """

    kind: ClassVar[str] = "value"
    loss: ClassVar[str] = "squared_error"
    voted_by_name: ClassVar[bool] = False
    form: ClassVar[str] = "numbers [n]"
    valid: ClassVar[str] = "finite"
    low: float
    high: float
    names: tuple[str, ...] = field(init=False, repr=False, default=("value",))

    def __post_init__(self) -> None:
        if not 0 < self.high - self.low < math.inf:  # also refuses NaN
            rule = "[low, high] with low < high, finite, and so their difference"
            raise InvalidInput("data.bounds", rule, [self.low, self.high])

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def num_labels(self) -> int:
        return STEPS + 1

    def encode(self, name: str, truth: np.ndarray) -> np.ndarray:
        """The nearest steps, outside values clipped; -1 for a value that is not finite."""
        return self.steps(self.canonical(name, truth))

    def steps(self, values: np.ndarray) -> np.ndarray:
        """The same for float64 [n]."""
        finite = np.isfinite(values)
        inside = np.clip(np.where(finite, values, self.low), self.low, self.high)
        steps = np.rint((inside - self.low) / (self.high - self.low) * STEPS).astype(np.int64)
        return np.where(finite, steps, ABSTAINED)

    def fits(self, truth: np.ndarray) -> bool:
        return truth.dtype.kind in "iuf" and truth.ndim == 1

    def is_valid(self, truth: np.ndarray) -> np.ndarray:
        return np.isfinite(truth)

    def decode(self, labels: np.ndarray) -> np.ndarray:
        """Inverse of ``steps`` up to its rounding, also for fractional steps: float64 like
        ``labels``; NaN for ABSTAINED.
        """
        width = (self.high - self.low) / STEPS
        return np.where(labels == ABSTAINED, np.nan, self.low + labels * width)

    def columns(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        return {"values": self.decode(labels)}

    def text(self, label: np.ndarray) -> str | None:
        return None if label == ABSTAINED else f"{self.decode(label):.4g}"

    def example(self, label: np.ndarray, truth: np.ndarray | None) -> tuple[str | None, str | None]:
        """The true value stands beside the released one: no noisy value is right or wrong."""
        given, true = self.text(label), None if truth is None else f"{truth:.4g}"
        if given is None or true is None:
            return given, true
        return f"{given} (true {true})", None

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """An output is -1 at the lower bound, 1 at the upper one; others are clipped."""
        return self.decode((np.clip(outputs[:, 0].astype(np.float64), -1, 1) + 1) / 2 * STEPS)

    def score(
        self, predicted: np.ndarray, truth: np.ndarray, known: np.ndarray | None = None
    ) -> Score:
        """The key "accuracy" is None; "errors" are those of ``errors``."""
        rows = slice(None) if known is None else known
        return {"accuracy": None, "errors": errors(predicted[rows], truth[rows])}

    def format_score(self, score: Score) -> str:
        return format_errors(score["errors"])

    def confusion(self, truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """int64 [CELLS, CELLS], by equal parts of the bounds; what is outside, at the edge."""
        counts = np.zeros((CELLS, CELLS), dtype=np.int64)
        shares = [(values - self.low) / (self.high - self.low) for values in (truth, predicted)]
        cells = [np.clip(share * CELLS, 0, CELLS - 1).astype(np.int64) for share in shares]
        np.add.at(counts, tuple(cells), 1)
        return counts

    def tally(self, codes: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
        """Tenths of the range."""
        edges = self.decode(np.linspace(0, STEPS, TENTHS + 1)).tolist()
        names = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
        return names, np.bincount(codes * TENTHS // (STEPS + 1), minlength=TENTHS)


def errors(values: np.ndarray, truth: np.ndarray) -> dict[str, float] | None:
    """Root mean squared and mean absolute error, in the values' unit, and R2; None for fewer than
    two rows.

    float64 [n] each. R2 is the share of the variance explained: 1 is perfect, 0 what the mean would
    do.
    """
    if len(values) < 2:
        return None
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error  # slow

    measures = (root_mean_squared_error, mean_absolute_error, r2_score)
    results = [float(measure(truth, values)) for measure in measures]
    return dict(zip(ERRORS, results, strict=True))


def format_errors(measured: dict[str, float] | None) -> str:
    """Errors for a reader: "RMSE 0.31, R2 0.892"; "unknown" where there are none."""
    if measured is None:
        return "unknown"
    return f"RMSE {measured['rmse']:.4g}, R2 {measured['r2']:.3f}"
