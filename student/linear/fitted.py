"""A fit's weights and what else sums tell; the factor of logits that explains gradients best."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import OptimizeResult, minimize_scalar

from .measure import Gradient
from .shares import Shares

# Factors of the model's logits: the one under which probabilities are true, and it with one
# deviation of its noise taken off, and added.
Doubt = tuple[float, float, float]

CERTAIN: Doubt = (1.0, 1.0, 1.0)
FACTORS = 0.0, 3.0  # of logits
ENOUGH = {"xatol": 0.001}  # far below what noise leaves of a factor


@dataclass(frozen=True)
class Fitted:
    """Result of the sums of a fit.

    Args:
        weights: of inputs of length 1, float64 [d + 1, c]; for the classes' shares among PUBLIC
            rows.
        shares: for classes, if they were compared with the records'.
        doubt: how sure the probabilities should be; None if noise hides it.
        explained: for values, their variance among public rows and its deviation.
        moments: for values, the gradient at weights of 0.
    """

    weights: np.ndarray = field(repr=False)
    shares: Shares | None = None
    doubt: Doubt | None = CERTAIN
    explained: tuple[float, float] | None = None
    moments: Gradient | None = field(default=None, repr=False)


def best_factor(missed: Callable[[float], float]) -> OptimizeResult:
    """``x``, the factor of logits that misses the gradients least, and ``fun``, by how much."""
    return minimize_scalar(missed, bounds=FACTORS, method="bounded", options=ENOUGH)
