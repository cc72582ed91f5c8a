"""Certified bounds in integers of exp(-x), x >= 0 rational, and of distribution functions.

Every function returns integers ``low <= 2^bits y <= high`` for a real y. Each step rounds lower
bounds down and upper bounds up, so they are valid at any distance; GUARD more bits inside keep them
one or two units apart. No float is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

GUARD = 64  # bits of inner precision beyond those asked for
TAIL_BITS = 8  # at most 2^(1 - bits - TAIL_BITS) is left out of a table


@dataclass(frozen=True)
class Law:
    """Magnitudes z = 0, 1, 2, ... with probabilities proportional to exp(-rate z^power).

    ``power``: 2 (Gaussian, rate 1/(2 sigma^2)) or 1 (Laplace, rate 1/scale). ``rate``: positive.
    ``two_sided``: zero counts half, as it must where a fair sign follows: then the signed number
    has the symmetric law on all integers.
    """

    power: int
    rate: Fraction
    two_sided: bool


def exp_bounds(x: Fraction, bits: int) -> tuple[int, int]:
    """Bounds of 2^bits exp(-x), x >= 0; at most 2^bits.

    exp(-x) = exp(-y)^(2^h) with y = x / 2^h < 1. The partial sums of exp(-y) alternate around it
    and their terms fall, so the last term added bounds the remainder.
    """
    if x >= bits:
        return 0, 1  # exp(-x) < 2^-bits
    unit = 1 << bits
    halvings = int(x).bit_length()
    y = (x.numerator << bits) // (x.denominator << halvings)  # 2^bits y lies in [y, y + 1)
    low = high = low_term = high_term = unit
    n = 0
    while high_term > 1:
        n += 1
        low_term = (low_term * y >> bits) // n
        high_term = _up(_up(high_term * (y + 1), unit), n)
        if n % 2:
            low, high = low - high_term, high - low_term
        else:
            low, high = low + low_term, high + high_term
    low, high = max(0, low - high_term), min(unit, high + high_term)
    for _ in range(halvings):
        low, high = low * low >> bits, _up(high * high, unit)
    return low, high


def weights(law: Law, bits: int) -> Iterator[tuple[int, int, int]]:
    """For z = 0, 1, ...: bounds of 2^bits w(z) and an upper bound of 2^bits w(z + 1) / w(z).

    w(z) = exp(-rate z^power). w(z + 1) = w(z) r(z) with r(0) = exp(-rate), and r(z + 1) is
    r(z) exp(-2 rate) for power 2, r(z) for power 1.
    """
    unit = 1 << bits
    low_ratio, high_ratio = exp_bounds(law.rate, bits)
    low_step, high_step = exp_bounds(2 * law.rate, bits) if law.power == 2 else (unit, unit)
    low = high = unit
    while True:
        yield low, high, high_ratio
        low, high = low * low_ratio >> bits, _up(high * high_ratio, unit)
        low_ratio, high_ratio = low_ratio * low_step >> bits, _up(high_ratio * high_step, unit)


def cumulative(law: Law, bits: int) -> tuple[list[int], list[int]]:
    """Bounds of 2^bits G(z), G(z) = P(magnitude <= z), for z = 0, 1, ...: (lows, highs).

    The last place leaves out at most 2^(1 - bits - TAIL_BITS). Both lists rise, and no entry is
    above 2^bits. Ratios fall, so the weights from z on sum to at most w(z) / (1 - r(z)).
    """
    unit = 1 << (bits + GUARD)
    max_tail = 1 << (GUARD - TAIL_BITS)
    low = high = tail = 0
    sums: list[tuple[int, int]] = []
    for low_weight, high_weight, high_ratio in weights(law, bits + GUARD):
        if sums and high_weight <= max_tail:
            tail = _up(high_weight * unit, unit - high_ratio)
            if tail <= max_tail:
                break
        halved = 1 if law.two_sided and not sums else 0
        low += low_weight >> halved
        high += high_weight >> halved
        sums.append((low, high))
    lows = [(part << bits) // (high + tail) for part, _ in sums]
    highs = [min(1 << bits, _up(part << bits, low)) for _, part in sums]
    return lows, highs


def _up(numerator: int, denominator: int) -> int:
    """The quotient, rounded up."""
    return -(-numerator // denominator)
