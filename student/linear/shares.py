"""Shares of the classes among the records and among PUBLIC rows, and how well a shift fits."""

from dataclasses import dataclass

import numpy as np

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


def log(shares: np.ndarray) -> np.ndarray:
    """Logarithms of shares, some of which may be 0."""
    return np.asarray(np.log(np.maximum(shares, TINY)))
