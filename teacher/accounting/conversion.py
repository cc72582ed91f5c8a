"""Conversion of Renyi DP at a grid of orders to (epsilon, delta)-DP; rounding up for printing."""

import math
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction

import numpy as np


def epsilon_from_rdp(orders: np.ndarray, rdp: np.ndarray, delta: float) -> tuple[float, float]:
    """The smallest epsilon at ``delta``, and the order that attains it.

    ``orders``, ``rdp``: float64 [n_orders], orders fixed before any purchase. Nothing released
    (R = 0 at every order) is epsilon = 0.
    """
    if not rdp.any():
        return 0.0, float(orders[-1])
    epsilons = epsilons_from_rdp(orders, rdp, delta)
    best = int(epsilons.argmin())
    return max(float(epsilons[best]), 0.0), float(orders[best])


def epsilons_from_rdp(orders: np.ndarray, rdp: np.ndarray, delta: float) -> np.ndarray:
    """The epsilon that each order proves, float64 [n_orders].

    R + log((alpha - 1) / alpha) - (log delta + log alpha) / (alpha - 1): Canonne, Kamath, Steinke
    2020, Proposition 12.
    """
    epsilons = rdp + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return np.where(np.isnan(epsilons), np.inf, epsilons)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon at ``delta`` of N(0, 1) against N(mu, 1), rounded up.

    Balle and Wang 2018, Theorem 8. 0.0 where the total variation is at most delta.
    """
    mu, delta = max(mu, 1e-5), delta * (1 - 1e-6)  # cover the rounding of gaussian_delta
    if delta <= 0:
        return math.inf
    low, high = 0.0, 1.0
    while gaussian_delta(mu, high) > delta:
        low, high = high, 2 * high
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return high


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Hockey-stick divergence of N(0, 1) and N(mu, 1), mu > 0, by Balle and Wang 2018, eq. 6."""
    from scipy.special import log_ndtr  # takes a quarter of a second

    first, second = (float(log_ndtr(side * mu / 2 - epsilon / mu)) for side in (1, -1))
    return -math.exp(first) * math.expm1(epsilon + second - first)


def float_above(value: Fraction) -> float:
    """The smallest float at or above an exact value."""
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


def round_up(value: float, digits: int = 3) -> float:
    """The smallest decimal of ``digits`` places at or above ``value``: how an epsilon is printed.

    Exact on the shortest decimal that stands for ``value``, so that rounding twice changes nothing.

    >>> round_up(0.9801), round_up(0.981)
    (0.981, 0.981)
    """
    if not math.isfinite(value):
        return value
    return float(
        Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING)
    )
