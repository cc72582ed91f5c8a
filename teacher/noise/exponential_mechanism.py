"""The exponential mechanism without a float: exact draws of probability proportional to exp(-rate * loss), loss an integer.

Rejection: take a column uniformly, keep it with probability exp(-rate * (loss - smallest loss)),
else begin again. What is kept has exactly the law wanted, and the best column is always kept, so m
columns take m rounds on average at most. The coin is that of Canonne, Kamath, Steinke 2020,
Algorithm 1, on fractions. How long a draw takes depends on the losses, as all timing does here:
outside the guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

Uniform = Callable[[int], int]  # uniform among 0, ..., n - 1, fresh in each call


def choose(losses: Sequence[int], rate: Fraction, below: Uniform) -> int:
    """A column j with probability proportional to exp(-rate losses[j])."""
    least = min(losses)
    while True:
        column = below(len(losses))
        if bernoulli_exp(rate * (losses[column] - least), below):
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
