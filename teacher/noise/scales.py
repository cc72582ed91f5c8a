"""Which scales of noise can be drawn, and how a scale that follows from a budget is rounded."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from ...wall.errors import InvalidInput

MAX_SCALE = 2.0**50  # noise must fit int64, in magnitude and next to votes
DIGITS = 4  # significant ones of a solved number
MIN_SOLVED, MAX_SOLVED = 0.01, 1e5  # solved scales, within the range of every mechanism and curve
MIN_SPENT, MAX_SPENT = 1e-6, 1e3  # solved epsilons and rhos, likewise
SCREEN_RATIO = 3.0  # noise of a screening over that of the answer: CVPR20's for MNIST
_SLACK = 1e-9  # relative: 0.4999999999 is rounded as 0.5


def check_scale(name: str, value: float) -> float:
    """A sigma or a Laplace scale. Raises InvalidInput unless it is in (0, 2^50]."""
    if not 0 < value <= MAX_SCALE:
        raise InvalidInput(name, "positive and at most 2^50", value)
    return float(value)


def more_noise(scale: float) -> float:
    """A solved scale: rounded up to a few significant digits."""
    scale = min(max(scale, MIN_SOLVED), MAX_SOLVED)
    places = DIGITS - 1 - math.floor(math.log10(scale))
    return _decimal(scale * (1 - _SLACK), places, ROUND_CEILING)


def less_spent(epsilon: float, places: int = 0) -> float:
    """A solved epsilon or rho: rounded down to a few significant digits, ``places`` at least."""
    epsilon = min(max(epsilon, MIN_SPENT), MAX_SPENT)
    places = max(places, DIGITS - 1 - math.floor(math.log10(epsilon)))
    return _decimal(epsilon * (1 + _SLACK), places, ROUND_FLOOR)


def _decimal(value: float, places: int, rounding: str) -> float:
    return float(Decimal(value).quantize(Decimal(1).scaleb(-places), rounding=rounding))
