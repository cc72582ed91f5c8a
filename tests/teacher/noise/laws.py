"""The laws by mpmath, with nothing of the sampler's: Poisson's summation and geometric sums."""

from __future__ import annotations

from fractions import Fraction

import mpmath

from labelwall.teacher.noise.exact_bounds import Law


def real(x: Fraction) -> mpmath.mpf:
    """At the working precision."""
    return mpmath.mpf(x.numerator) / x.denominator


def distribution(law: Law, places: int) -> list[mpmath.mpf]:
    """P(magnitude <= z) for z < places, at the working precision."""
    first = mpmath.mpf(1) / 2 if law.two_sided else mpmath.mpf(1)
    rate = real(law.rate)
    if law.power == 1:
        p = mpmath.exp(-rate)
        mass = first + p / (1 - p)
        rest, found = p / (1 - p) / mass, []
        for _ in range(places):
            found.append(1 - rest)
            rest *= p
        return found
    mass = first + (_theta(rate) - 1) / 2
    found, total = [], first - 1
    for z in range(places):
        total += mpmath.exp(-rate * z * z)
        found.append(total / mass)
    return found


def _theta(rate: mpmath.mpf) -> mpmath.mpf:
    """Sum of exp(-rate z^2) over all integers z, by whichever series converges faster."""
    if rate < mpmath.pi:
        return mpmath.sqrt(mpmath.pi / rate) * _series(mpmath.pi**2 / rate)
    return _series(rate)


def _series(rate: mpmath.mpf) -> mpmath.mpf:
    total, term, z = mpmath.mpf(1), mpmath.mpf(1), 0
    while term > mpmath.eps:
        z += 1
        term = 2 * mpmath.exp(-rate * z * z)
        total += term
    return total
