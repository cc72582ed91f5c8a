"""Renyi DP of one release of each kind, under add/remove of one record.

``CURVES`` maps a name to its curve. Curves are pure functions of numpy arrays: an upper
bound in both directions, with sums exact over the discrete Gaussian and rounding upwards. The
sampler uses a rational number <= gamma as its sampling probability, and every divergence here is
convex in gamma and zero at gamma = 0, hence larger at gamma itself.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ....wall.errors import InvalidInput
from ..plan import Release
from .argmax import ARGMAX, argmax_rdp
from .base import ORDERS, ROUND_UP, Curve, check_arguments, is_integer
from .gaussian import GAUSSIAN, ZCDP, gaussian_rdp, zcdp_rdp
from .pure import BOUNDED_RANGE, LAPLACE, PURE, bounded_range_rdp, laplace_rdp, pure_rdp
from .screening import SCREENING, screening_rdp

__all__ = [
    "CURVES",
    "MAX_CAP",
    "ORDERS",
    "ROUND_UP",
    "Curve",
    "argmax_rdp",
    "bounded_range_rdp",
    "check_release",
    "gaussian_rdp",
    "l2_sensitivity",
    "laplace_rdp",
    "pure_epsilon",
    "pure_rdp",
    "release_rdp",
    "screening_rdp",
    "zcdp_rdp",
]

MAX_CAP = 10**9

CURVES: dict[str, Curve] = {
    "screening": SCREENING,
    "argmax": ARGMAX,
    "gaussian": GAUSSIAN,
    "pure": PURE,
    "bounded_range": BOUNDED_RANGE,
    "laplace": LAPLACE,
    "zcdp": ZCDP,
}


def release_rdp(release: Release, orders: np.ndarray) -> np.ndarray:
    """RDP of one release, whatever its cap: float64 [n_orders]. Raises as ``check_release``."""
    check_release(release)
    return CURVES[release.curve].rdp(orders, **release.parameters)


def pure_epsilon(release: Release) -> Fraction | None:
    """Exact cost of one release under pure DP; None where its curve is not of a pure mechanism."""
    cost = CURVES[release.curve].pure_epsilon
    return None if cost is None else cost(release.parameters)


def l2_sensitivity(release: Release) -> float | None:
    """L2 sensitivity of the values with Gaussian noise behind a release; None where there are none.

    A screening bit's plurality moves by 1, an argmax's votes by e_a - e_b or e_a.
    """
    sensitivity = CURVES[release.curve].l2_sensitivity
    return None if sensitivity is None else sensitivity(release.parameters)


def check_release(release: Release) -> None:
    """Raise InvalidInput unless the curve is known and its parameters and the cap are valid.

    Parameters: none missing, none unknown, each of the right type and in its range. A release may
    come from a ledger that somebody else wrote, so nothing about its fields is assumed.
    """
    name = release.name
    if not isinstance(release.curve, str) or release.curve not in CURVES:
        raise InvalidInput(f"{name}.curve", f"one of {sorted(CURVES)}", release.curve)
    if not is_integer(release.cap) or not 0 <= release.cap <= MAX_CAP:
        raise InvalidInput(f"{name}.cap", f"an integer between 0 and {MAX_CAP}", release.cap)
    parameters = CURVES[release.curve].parameters()
    required = {parameter for parameter, needed in parameters.items() if needed}
    given = set(release.parameters) if isinstance(release.parameters, dict) else set()
    if not required <= given <= set(parameters):
        raise InvalidInput(f"{name}.parameters", f"{list(parameters)}", sorted(map(str, given)))
    check_arguments(ORDERS, **release.parameters)
