"""Oracles that share nothing with the sampler: the laws by mpmath (Poisson's summation, geometric
series), OpenDP's samplers (Canonne, Kamath, Steinke 2020, Algorithms 2 and 3), and how surprising
counts are under a law.
"""

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import opendp.prelude as dp
from scipy.special import rel_entr

from labelwall.teacher.noise.sampler import Law

dp.enable_features("contrib")


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


def surprise(drawn: np.ndarray, law: np.ndarray) -> float:
    """A bound of the probability that n draws of a law on 0..m lie as far from it as these, by
    Agrawal 2020, Theorem 1.2: P(D >= d) <= (e n d / m)^m e^(-n d)."""
    n, m = drawn.size, len(law) - 1
    counts = np.bincount(drawn.ravel(), minlength=len(law))
    ratio = n * rel_entr(counts / n, law).sum() / m
    return math.exp(m * (1 + math.log(ratio) - ratio)) if ratio > 1 else 1.0


def gaussian(sigma: float, count: int) -> np.ndarray:
    """N_Z(0, sigma^2), int64 [count]."""
    return np.array(measurement(sigma)([0] * count), dtype=np.int64)


def laplace(scale: float, count: int) -> np.ndarray:
    """Probability proportional to exp(-|z| / scale), int64 [count]."""
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    return np.array(dp.m.make_laplace(*space, scale=scale)([0] * count), dtype=np.int64)


def measurement(sigma: float) -> Any:
    """OpenDP's Gaussian measurement, with its own privacy map."""
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return dp.m.make_gaussian(*space, scale=sigma)
