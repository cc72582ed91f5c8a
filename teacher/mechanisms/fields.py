"""A mechanism's fields: default, range, unit and sentence, stated once.

``check`` enforces the ranges when a mechanism is made, ``described`` writes all of it into the
docstring, which the commands' help and the documentation show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import Field, dataclass, field
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ...wall.errors import InvalidInput
from ..noise.scales import MAX_SCALE, SCREEN_RATIO

_KEY = "param"


@dataclass(frozen=True)
class Param:
    """What a field means: a sentence, its unit, and the range of its numbers (None: no bound)."""

    help: str
    unit: str
    ge: float | None
    gt: float | None
    le: float | None
    lt: float | None
    calibrated: bool

    @property
    def range(self) -> str:
        """The range in words, empty where there is none."""
        least = f"at least {_text(self.ge)}" if self.ge is not None else ""
        least = f"above {_text(self.gt)}" if self.gt is not None else least
        most = f"at most {_text(self.le)}" if self.le is not None else ""
        most = f"below {_text(self.lt)}" if self.lt is not None else most
        if self.ge is not None and self.le is not None:
            return f"from {_text(self.ge)} to {_text(self.le)}"
        return " and ".join(words for words in (least, most) if words)

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


def param(
    default: object,
    help: str,
    *,
    unit: str = "",
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    calibrated: bool = False,
) -> Any:
    """A field of a mechanism. ``calibrated``: the budget decides it where it is null."""
    return field(default=default, metadata={_KEY: Param(help, unit, ge, gt, le, lt, calibrated)})


def noise_scale(on: str, unit: str = "votes", *, ge: float | None = None, le: float = 0) -> Any:
    """The scale of noise on something; the budget decides it where it is null."""
    text = f"scale of the noise on {on}; null: what the budget asks for"
    bounds: dict[str, Any] = {"gt": 0, "le": MAX_SCALE} if ge is None else {"ge": ge, "le": le}
    return param(None, text, unit=unit, calibrated=True, **bounds)


def sampling(default: float) -> Any:
    """The probability with which each record takes part in a release."""
    text = "each record takes part in a release with this probability, independently"
    return param(default, text, gt=0, le=1)


def ratio() -> Any:
    """The noise of a screening over that of the answer, where the budget decides both."""
    text = "noise of the screening over that of the answer, where the budget asks for both"
    return param(SCREEN_RATIO, text, ge=0.01, le=100)


def pure_epsilon(of: str) -> Any:
    """An epsilon under pure DP; the budget decides it where it is null."""
    text = f"epsilon {of}; null: what the budget pays for"
    return param(None, text, unit="dimensionless", ge=1e-6, le=1e3, calibrated=True)


def params(cls: type) -> dict[str, Param]:
    """A mechanism's fields by name, those of its bases first."""
    return {name: f.metadata[_KEY] for name, f in _fields(cls) if _KEY in f.metadata}


def check(mechanism: object) -> None:
    """Raise InvalidInput for a field out of its range, or a word that is not among its choices."""
    kind = type(mechanism)
    for name, choices in _choices(kind).items():  # type: ignore[arg-type]
        if vars(mechanism)[name] not in choices:
            rule = f"one of {', '.join(map(str, choices))}"
            raise InvalidInput(f"mechanism.{name}", rule, vars(mechanism)[name])
    for name, known in params(kind).items():
        value = vars(mechanism)[name]
        if isinstance(value, int | float) and not known.holds(value):
            raise InvalidInput(f"mechanism.{name}", known.range or "finite", value)


def described(cls: type) -> str:
    """The class's docstring with a line for each of its fields."""
    if not params(cls):
        return cls.__doc__ or ""
    lines = [f"        {name}: {known}." for name, known in params(cls).items()]
    kind = "        kind: the mechanism's name."
    return "\n".join([(cls.__doc__ or "").rstrip(), "", "    Args:", kind, *lines, "    "])


@cache
def _choices(cls: type) -> dict[str, tuple[object, ...]]:
    """Fields whose type is a Literal, with their choices."""
    hints = get_type_hints(cls)
    return {n: get_args(hints[n]) for n, _ in _fields(cls) if get_origin(hints[n]) is Literal}


def _fields(cls: type) -> Iterator[tuple[str, Field[Any]]]:
    """All fields, also of a class that is not a dataclass yet."""
    known: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__):
        known |= vars(base).get("__dataclass_fields__", {})
        known |= {name: value for name, value in vars(base).items() if isinstance(value, Field)}
    yield from ((name, value) for name, value in known.items() if name in _annotated(cls))


def _annotated(cls: type) -> set[str]:
    return {name for base in cls.__mro__ for name in vars(base).get("__annotations__", {})}


def _text(bound: float) -> str:
    if bound == MAX_SCALE:
        return "2^50"
    return str(bound) if isinstance(bound, int) else f"{bound:g}"
