"""The exponential mechanism without floats: exact draws proportional to exp(-rate * loss).

Losses are integers. Rejection: take a column uniformly and accept it with probability
exp(-rate * (loss - smallest loss)), else begin again. The accepted column has exactly that law, and
the best column is always accepted, so m columns take at most m rounds on average. The coin is that
of Canonne, Kamath, Steinke 2020, Algorithm 1, on fractions. How long a draw takes depends on the
losses: timing is outside the guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

Uniform = Callable[[int], int]  # uniform among 0, ..., n - 1, fresh in each call


def choose(losses: Sequence[int], rate: Fraction, below: Uniform) -> int:
    """A column j with probability proportional to exp(-rate losses[j])."""
    smallest = min(losses)
    while True:
        column = below(len(losses))
        if bernoulli_exp(rate * (losses[column] - smallest), below):
            return column


def bernoulli_exp(x: Fraction, below: Uniform) -> bool:
    """True with probability exp(-x), x >= 0: whole steps of exp(-1), then the rest."""
    while x > 1:
        if not _bernoulli_exp_unit(Fraction(1), below):
            return False
        x -= 1
    return _bernoulli_exp_unit(x, below)


def _bernoulli_exp_unit(x: Fraction, below: Uniform) -> bool:
    """True with probability exp(-x) for 0 <= x <= 1.

    The first k with a failure of Bernoulli(x / k) is odd.
    """
    k = 1
    while below(x.denominator * k) < x.numerator:
        k += 1
    return k % 2 == 1
