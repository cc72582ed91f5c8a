"""How good labels are: the share that is right of classes and attributes, errors in their own unit of values."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from labelwall.wall.labels.values import Scale

ERRORS = ("rmse", "mae", "r2")
CELLS = 32  # places a side of the picture of predicted against true values


def share_right(labels: np.ndarray, truth: np.ndarray, known: np.ndarray) -> float | None:
    """The share of ``labels`` that equal ``truth`` where ``known``, all of one shape; None where nothing is."""
    return float((labels == truth)[known].mean()) if known.any() else None


def errors(values: np.ndarray, truth: np.ndarray) -> dict[str, float] | None:
    """Root mean squared and mean absolute error (the values' unit), and R2, the share of the variance explained; 1 is perfect, 0
    what their mean would do. float64 [n] each; None for fewer than two."""
    if len(values) < 2:
        return None
    found = (
        root_mean_squared_error(truth, values),
        mean_absolute_error(truth, values),
        r2_score(truth, values),
    )
    return dict(zip(ERRORS, map(float, found), strict=True))


def joint_counts(truth: np.ndarray, predicted: np.ndarray, scale: Scale) -> np.ndarray:
    """Rows by true and predicted value, in CELLS equal parts of the bounds a side: int64 [CELLS, CELLS]; what is outside, at
    the edge."""
    counts = np.zeros((CELLS, CELLS), dtype=np.int64)
    shares = [(values - scale.low) / (scale.high - scale.low) for values in (truth, predicted)]
    np.add.at(
        counts, tuple(np.clip(share * CELLS, 0, CELLS - 1).astype(np.int64) for share in shares), 1
    )
    return counts


def spoken(share: float | None, found: dict[str, Any] | None) -> str:
    """A score for a reader's line: "95.12% right", or "RMSE 0.31, R2 0.89"; "unknown" without either."""
    if found is not None:
        return f"RMSE {found['rmse']:.4g}, R2 {found['r2']:.3f}"
    return "unknown" if share is None else f"{100 * share:.2f}% right"
