"""From Renyi DP at a grid of orders to (epsilon, delta)-DP; rounding up for printing."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from typing import Literal

import numpy as np

Conversion = Literal["canonne", "classic"]


def epsilon_from_rdp(
    orders: np.ndarray, rdp: np.ndarray, delta: float, conversion: Conversion = "canonne"
) -> tuple[float, float]:
    """The smallest epsilon at ``delta``, and the order that attains it.

    ``orders``, ``rdp``: float64 [n_orders], orders fixed before any purchase. "canonne":
    epsilon = R + log((alpha - 1) / alpha) - (log delta + log alpha) / (alpha - 1),
    Canonne-Kamath-Steinke 2020, Proposition 12. "classic":
    epsilon = R + log(1 / delta) / (alpha - 1), Mironov 2017, Proposition 3, for comparison with
    older tables. Nothing released (R = 0 at every order) is epsilon = 0.
    """
    if not rdp.any():
        return 0.0, float(orders[-1])
    epsilons = rdp - math.log(delta) / (orders - 1)
    if conversion == "canonne":
        epsilons = epsilons + np.log1p(-1 / orders) - np.log(orders) / (orders - 1)
    epsilons = np.where(np.isnan(epsilons), np.inf, epsilons)
    best = int(epsilons.argmin())
    return max(float(epsilons[best]), 0.0), float(orders[best])


def float_above(value: Fraction) -> float:
    """The smallest float at or above an exact value."""
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


def round_up(value: float, digits: int = 3) -> float:
    """The smallest decimal of ``digits`` places at or above ``value``: how an epsilon is printed.

    Exact on the shortest decimal that stands for ``value``, so that rounding twice changes nothing.
    """
    if not math.isfinite(value):
        return value
    return float(
        Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING)
    )
