"""What a label alone costs at one Renyi order: docs/privacy.md, section 20, "One order".

Only the class with the largest noisy sum is sent. A record that adds w to one sum, under noise of
scale s, shows at most whether a Gaussian number is above a threshold, for the worst threshold:

    price_A(m) = sup over z of D_A(Bernoulli(P(Z >= z)) || Bernoulli(P(Z + m >= z))),  Z ~ N(0, 1)

which is about 0.64 of A m^2 / 2 where A m is small, and the same in the other direction. Everything
here is an upper bound of it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtr

LOST = 4.7  # t^2 of section 19: of a label's variance, spent on its rounding to integers
LEAST_SHIFT, RATIO = 1e-4, 1.01  # of the table
MOST_TILT = 12.0  # (A + 4) m of the table's end, where a label costs nearly what a sum does
SLACK = 1 + 1e-6  # relative: rounding here, and the roundings of section 19
_CLOSE = 1.002  # a bound that is so near to a value needs no finer intervals
_LEVELS, _PARTS = 12, 4


@lru_cache(maxsize=16)
def table(order: int) -> tuple[np.ndarray, np.ndarray]:
    """(m, bounds of price_A(m) / A) for rising m: float64 [n] each.

    The price grows with m, so an entry holds for all m from the last entry's on up to its own.
    """
    steps = math.floor(math.log(MOST_TILT / (order + 4) / LEAST_SHIFT) / math.log(RATIO))
    shifts = LEAST_SHIFT * RATIO ** np.arange(steps)
    prices = np.array([price(order, float(m)) for m in shifts]) / order
    return shifts, np.maximum.accumulate(prices)


def label_prices(scale: int, weights: np.ndarray, order: int) -> np.ndarray:
    """Bounds of D_A / A of a label, for a record that adds a weight: float64, as ``weights``.

    ``scale``: of the noise on each sum; ``weights``: integers of at least 0, in the same unit.
    Infinite where only the price of the sum itself is known.
    """
    shifts, prices = table(order)
    variance = scale**2 - LOST
    if variance <= LOST:
        return np.full(weights.shape, math.inf)
    m = weights * (SLACK / math.sqrt(variance))
    return np.append(prices, math.inf)[np.searchsorted(shifts, m)]


def price(order: int, m: float) -> float:
    """An upper bound of price_A(m), within 0.2%, for (A + 4) m up to MOST_TILT.

    Intervals of thresholds whose bound is below some threshold's value are dropped, the others
    divided.
    """
    reach = 9 + order * m
    edges = np.linspace(-reach, reach, 65)
    low, high, value = edges[:-1], edges[1:], 0.0
    for _ in range(_LEVELS):
        bounds = _between(order, m, low, high)
        value = max(value, _between(order, m, low, low).max())  # of the thresholds themselves
        if bounds.max() <= _CLOSE * value:
            break
        kept = bounds > value
        width = (high - low)[kept, None] / _PARTS
        low = (low[kept, None] + width * np.arange(_PARTS)).ravel()
        high = low + np.repeat(width.ravel(), _PARTS) * (1 + 1e-9)  # no gaps
    return float(max(value, bounds.max(), _beyond(order, m, reach))) * SLACK


def _between(order: int, m: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Bounds of the divergence at all thresholds of intervals: float64 [n].

    P(Z + m >= z) - P(Z >= z) is largest next to z = m/2. With that difference fixed, the moment is
    convex in P(Z >= z): an end of the interval has the largest. On the far left the other bound is
    better: P(Z < z) rises with z, and its ratio to P(Z + m < z) falls.
    """
    z = np.clip(m / 2, low, high)
    upper, lower = ndtr(m - z) - ndtr(-z), ndtr(z) - ndtr(z - m)
    difference = np.where(z >= m / 2, upper, lower)  # of the smaller tails: no cancellation
    by_difference = np.maximum(*(_excess(order, end, difference) for end in (low, high)))
    ratio = log_ndtr(low) - log_ndtr(low - m)
    by_ratio = ndtr(high) * np.exp((order - 1) * ratio) - ndtr(low)
    return np.log1p(np.minimum(by_difference, by_ratio)) / (order - 1)


def _excess(order: int, z: np.ndarray, difference: np.ndarray) -> np.ndarray:
    """exp((A - 1) D_A) - 1 of Bernoulli(P(Z >= z)) against the same plus ``difference``.

    float64 [n]; infinite where nothing, or what rounding might be, is left of the other outcome.
    """
    with_it, below = ndtr(-z) + difference, ndtr(z)
    without_it = np.where(difference < (1 - 1e-6) * below, below - difference, np.nan)
    with np.errstate(over="ignore", divide="ignore"):
        excess = with_it * np.expm1(order * np.log1p(-difference / with_it))
        excess += without_it * np.expm1(order * np.log1p(difference / without_it))
    return np.nan_to_num(excess, nan=np.inf, posinf=np.inf)


def _beyond(order: int, m: float, reach: float) -> float:
    """A bound of the divergence at thresholds outside -reach..reach (Hoelder's inequality)."""
    tilted = order * (order - 1) * m * m / 2 + log_ndtr((order - 1) * m - reach)
    rest = math.expm1(-(order - 1) * log_ndtr(reach - m))
    return math.log1p(math.exp(tilted) + rest) / (order - 1)
