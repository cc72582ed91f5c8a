"""What a privacy curve is, the grid of orders, and the range of every parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from inspect import Parameter, signature

import numpy as np

from ....wall.errors import InvalidInput

ORDERS = np.array(
    [
        *(1.05, 1.1, 1.2, 1.35, 1.5, 1.75),
        *np.arange(2, 3, 0.25),
        *np.arange(3, 7, 0.5),
        *range(7, 17),
        *range(18, 33, 2),
        *range(36, 65, 4),
        *(72, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024),
    ],
    dtype=np.float64,
)
ORDERS.flags.writeable = False

ROUND_UP = 1 + 1e-14  # covers the rounding of a closed formula, so that it stays an upper bound

Parameters = Mapping[str, float | int | bool]


@dataclass(frozen=True)
class Curve:
    """Renyi DP of ONE release of a kind, under add/remove of one record.

    ``name``: the key of ``CURVES``, in ledgers and plans. ``rdp(orders, **parameters)``: an upper
    bound of D_alpha in both directions at every order, float64 [n_orders]. ``pure_epsilon``: exact
    cost under pure DP, from the release's parameters; None where the release is not pure.
    ``l2_sensitivity``: of the values with Gaussian noise that the release post-processes; None
    where it does not post-process any.
    """

    name: str
    rdp: Callable[..., np.ndarray]
    pure_epsilon: Callable[[Parameters], Fraction] | None = None
    l2_sensitivity: Callable[[Parameters], float] | None = None

    def parameters(self) -> dict[str, bool]:
        """Names of the parameters of ``rdp``, in its order, and whether each is required."""
        arguments = signature(self.rdp).parameters.values()
        keywords = [a for a in arguments if a.kind is Parameter.KEYWORD_ONLY]
        return {a.name: a.default is Parameter.empty for a in keywords}


def check_arguments(orders: np.ndarray, **parameters: object) -> None:
    """Raise InvalidInput for orders not above 1 or a parameter outside its range."""
    valid = orders.ndim == 1 and orders.dtype == np.float64
    if not (valid and np.isfinite(orders).all() and (orders > 1).all()):
        shape = f"{orders.dtype} {list(orders.shape)}"
        raise InvalidInput("orders", "float64 [n_orders], finite and above 1", shape)
    for name, value in parameters.items():
        rule, holds = _RULES[name]
        if not holds(value):
            raise InvalidInput(name, rule, value)


def is_integer(value: object) -> bool:
    """Whether a value is an int, and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def _number(low: float, high: float) -> Callable[[object], bool]:
    """A test for finite numbers in low..high, booleans excluded."""

    def holds(value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return math.isfinite(value) and low <= value <= high

    return holds


# Ranges keep squares and sums inside float64 and enumerations inside memory.
_SIZE = ("a number between 1e-3 and 1e9", _number(1e-3, 1e9))
_COST = ("a number between 0 and 1e6", _number(0, 1e6))
_RULES: dict[str, tuple[str, Callable[..., bool]]] = {
    "max_votes": ("an integer between 1 and 1000000", lambda v: is_integer(v) and 1 <= v <= 10**6),
    "threshold": (
        "an integer between -1000000 and 1000000",
        lambda v: is_integer(v) and abs(v) <= 10**6,
    ),
    "sigma": _SIZE,
    "scale": _SIZE,
    "sensitivity": _SIZE,
    "sampling_probability": ("a number in (0, 1]", lambda v: v != 0 and _number(0, 1)(v)),
    "epsilon": _COST,
    "rho": _COST,
    "swap": ("true or false", lambda v: isinstance(v, bool)),
}
