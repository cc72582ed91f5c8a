"""Mean gradients that PUBLIC rows would have beside those of the records, and clipped residuals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import softmax

MAX_ENTRIES = 500_000  # of the probabilities that slopes are computed from
LIMITS = {"maxiter": 60}


@dataclass(frozen=True)
class Moment:
    """A mean gradient of the records, float64 [d + 1, c], with noise of ``deviation``.

    ``inputs``: of PUBLIC rows, float64 [n, d + 1]. ``asked`` has two entries for each of the
    gradient's steps: the probabilities that its weights gave these rows, float64 [n, c], and the
    factor by which clipping would shorten the residual for each label, float64 [n, c].
    """

    gradient: torch.Tensor = field(repr=False)
    deviation: float
    inputs: torch.Tensor = field(repr=False)
    asked: Sequence[tuple[torch.Tensor, torch.Tensor]] = field(repr=False)

    def first(self, rows: int) -> "Moment":
        """The moment by the first of the public rows."""
        if rows >= len(self.inputs):
            return self
        asked = [(p[:rows], kept[:rows]) for p, kept in self.asked]
        return replace(self, inputs=self.inputs[:rows], asked=asked)

    @property
    def most(self) -> int:
        """Number of public rows that slopes are computed from."""
        most = MAX_ENTRIES // (self.gradient.shape[1] * len(self.asked))
        return min(len(self.inputs), max(1, most))

    @cached_property
    def slopes(self) -> torch.Tensor:
        """Factors, float64 [n, c, c], of a row's labels' probabilities in its mean residual."""
        p, kept = (torch.stack(part, dim=2) for part in zip(*self.asked, strict=True))
        return (p @ kept.mT - torch.diag_embed(kept.sum(dim=2))) / len(self.asked)

    def residuals(self, likely: torch.Tensor) -> torch.Tensor:
        """Mean residuals of public rows, if ``likely`` [n, c] weighs each label."""
        return (self.slopes * likely[:, None, :]).sum(dim=2)

    def missed(self, likely: torch.Tensor, precision: torch.Tensor | float = 1.0) -> torch.Tensor:
        """Squared distance of the gradient by labels that are so ``likely`` from the records'."""
        error = self.inputs.T @ self.residuals(likely) / len(likely) - self.gradient
        return (precision * error**2).sum()

    def precision(self, likely: torch.Tensor) -> torch.Tensor:
        """Precision of each entry, [d + 1, c], by its noise and the chance of so many rows."""
        chance = (self.inputs**2).T @ self.residuals(likely) ** 2 / len(likely) ** 2
        return 1 / (self.deviation**2 + chance)


def class_probabilities(logits: np.ndarray) -> np.ndarray:
    return np.asarray(softmax(logits, axis=1))


def clipping_factor(squares: np.ndarray, clip: float) -> np.ndarray:
    """Factor, at most 1, by which clipping multiplies residuals of these squared lengths."""
    return np.asarray(np.minimum(1.0, clip / np.sqrt(np.maximum(squares, 1e-12))))


def class_clipping(p: np.ndarray, clip: float) -> np.ndarray:
    """``clipping_factor`` of the residual for each label, if classes are ``p`` likely: [n, c]."""
    return clipping_factor((p * p).sum(axis=1, keepdims=True) + 1 - 2 * p, clip)


def minimised(surprise: Callable[[torch.Tensor], torch.Tensor], start: np.ndarray) -> np.ndarray:
    """Point near ``start`` at which ``surprise`` is least: float64 of its shape."""

    def at(flat: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.tensor(flat.reshape(start.shape), requires_grad=True)
        value = surprise(point)
        value.backward()  # type: ignore[no-untyped-call]
        assert point.grad is not None
        return float(value.detach()), point.grad.numpy().ravel()

    best = minimize(at, start.ravel(), jac=True, method="L-BFGS-B", options=LIMITS).x
    return np.asarray(best.reshape(start.shape))
