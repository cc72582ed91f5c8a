"""A mechanism's fields: default, range, unit and sentence, stated once.

``check`` enforces the ranges, ``describe`` writes all of it into the docstring, which the commands'
help and the documentation show. Numbers that follow from a budget are rounded here.
"""

import math
from dataclasses import dataclass, field, fields
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ...wall.errors import InvalidInput
from ..accounting.discrete_gaussian import MAX_SCALE

DIGITS = 4  # significant ones of a solved number
MIN_SOLVED, MAX_SOLVED = 0.01, 1e5  # solved scales, within the range of every mechanism and curve
MIN_SPENT, MAX_SPENT = 1e-6, 1e3  # solved epsilons and rhos, likewise
SCREEN_RATIO = 3.0  # noise of a screening over that of the answer: CVPR20's for MNIST
_SLACK = 1e-9  # relative: 0.4999999999 is rounded as 0.5


@dataclass(frozen=True)
class Param:
    """The meaning of a field: a sentence, its unit, and its range (None: no bound).

    ``calibrated``: the budget decides the field if it is null.
    """

    help: str
    unit: str = ""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    calibrated: bool = False

    @property
    def range(self) -> str:
        """The range in words, empty if there is none."""
        if self.ge is not None and self.le is not None:
            return f"from {_text(self.ge)} to {_text(self.le)}"
        bounds = {"at least": self.ge, "above": self.gt, "at most": self.le, "below": self.lt}
        return " and ".join(f"{w} {_text(b)}" for w, b in bounds.items() if b is not None)

    def holds(self, value: float) -> bool:
        """Whether a number is finite and in the range."""
        return (
            math.isfinite(value)
            and (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    def __str__(self) -> str:
        details = ", ".join(words for words in (self.unit, self.range) if words)
        return f"{self.help} ({details})" if details else self.help


def param(default: object, help: str, **range: Any) -> Any:
    """A field with a default; ``range``: further arguments of ``Param``."""
    return field(default=default, metadata={"param": Param(help, **range)})


def count(default: int | None, help: str, most: int) -> Any:
    """A count of 1 to ``most``."""
    return param(default, help, unit="a count", ge=1, le=most)


def nearest(default: int, most: int | None = None, text: str = "neighbours that vote") -> Any:
    """k, the number of neighbours."""
    return param(default, text, unit="records", ge=1, le=most)


def noise_scale(on: str, unit: str = "votes", **range: Any) -> Any:
    """The scale of noise on something; the budget decides it if it is null."""
    text = f"scale of the noise on {on}; null: what the budget asks for"
    return param(None, text, unit=unit, calibrated=True, **range or {"gt": 0, "le": MAX_SCALE})


def sampling(default: float) -> Any:
    """The probability with which each record takes part in a release."""
    text = "each record takes part in a release with this probability, independently"
    return param(default, text, gt=0, le=1)


def ratio() -> Any:
    """The noise of a screening over that of the answer, if the budget decides both."""
    text = "noise of the screening over that of the answer, if the budget decides both"
    return param(SCREEN_RATIO, text, ge=0.01, le=100)


def pure_epsilon(of: str) -> Any:
    """An epsilon under pure DP; the budget decides it if it is null."""
    text = f"epsilon {of}; null: what the budget pays for"
    return param(None, text, unit="dimensionless", ge=1e-6, le=1e3, calibrated=True)


@cache
def params(cls: Any) -> dict[str, Param]:
    """The fields of a dataclass by name, those of its bases first."""
    return {f.name: f.metadata["param"] for f in fields(cls) if "param" in f.metadata}


def check(settings: object, section: str = "mechanism") -> None:
    """Raise InvalidInput for a field out of its range, or a word that is not among its choices."""
    kind: Any = type(settings)
    values = vars(settings)
    for name, choices in _choices(kind).items():
        if values[name] not in choices:
            rule = f"one of {', '.join(map(str, choices))}"
            raise InvalidInput(f"{section}.{name}", rule, values[name])
    for name, setting in params(kind).items():
        value = values[name]
        if isinstance(value, int | float) and not setting.holds(value):
            raise InvalidInput(f"{section}.{name}", setting.range or "finite", value)


def describe(cls: Any, what: str) -> None:
    """Add a line for each field to a dataclass's docstring. ``what``: its ``kind`` names this."""
    lines = [f"        {name}: {setting}." for name, setting in params(cls).items()]
    kind = f"        kind: the {what}'s name."
    cls.__doc__ = "\n".join([cls.__doc__.rstrip(), "", "    Args:", kind, *lines, "    "])


@cache
def _choices(cls: Any) -> dict[str, tuple[object, ...]]:
    """Fields whose type is a Literal, with their choices."""
    hints = {f.name: get_type_hints(cls)[f.name] for f in fields(cls)}
    return {n: get_args(hint) for n, hint in hints.items() if get_origin(hint) is Literal}


def _text(bound: float) -> str:
    if bound == MAX_SCALE:
        return "2^50"
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


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
