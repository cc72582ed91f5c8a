"""Shares of the classes among the records and among PUBLIC rows, and how well a shift fits."""

from dataclasses import dataclass

import numpy as np

from .moments import class_probabilities
from .tuning import EVIDENCE_OF_SHIFT

TINY = 1e-300  # least share whose logarithm is taken


@dataclass(frozen=True)
class Shares:
    """Shares of the classes, float64 [c], among the records and among PUBLIC rows.

    ``foreign``: whether no shares explain what the records' sums say of PUBLIC rows.
    """

    private: np.ndarray
    public: np.ndarray
    foreign: bool = False


@dataclass(frozen=True)
class Misfit:
    """Squared misfits, in variances: each expected entry is 1 if the shares are right.

    ``unshifted``: with equal shares on both sides; ``left``: with the shares that fit best, by so
    many ``parameters``; ``chance``: what noise and chance leave of it.
    """

    unshifted: float
    left: float
    chance: float
    parameters: int

    @property
    def residual(self) -> float:
        """Part of the misfit that neither the shares nor chance explain."""
        return self.left - self.chance

    @property
    def to_explain(self) -> float:
        """Part of the misfit that a shift of the shares had to explain."""
        return self.unshifted - self.chance

    @property
    def times_chance(self) -> float:
        """The misfit of the best shares in multiples of chance, at least 1."""
        return max(1.0, self.left / self.chance)

    @property
    def tells_of_a_shift(self) -> bool:
        """Whether the shares explain so much that chance hardly would."""
        explained = (self.unshifted - self.left) / self.times_chance
        return explained / self.parameters > EVIDENCE_OF_SHIFT


def favour_alike(logits: np.ndarray, least: float) -> np.ndarray:
    """Offsets of ``logits`` of PUBLIC rows, float64 [n, c], under which each class counts alike.

    A class's probabilities are divided by its mean probability (logit adjustment, Menon et al.
    2021; Saerens et al. 2002), but at least by a share that noise hides, ``least``, or by an equal
    share where that is less.
    """
    shares = class_probabilities(logits).mean(axis=0)
    offsets = -np.log(np.maximum(shares, min(least, 1 / len(shares))))
    return np.asarray(offsets - offsets.mean())


def log(shares: np.ndarray) -> np.ndarray:
    """Logarithms of shares, some of which may be 0."""
    return np.asarray(np.log(np.maximum(shares, TINY)))
