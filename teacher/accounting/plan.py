"""A plan, all that may be released from a data set: capped releases, fixed before the first."""

import math
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ...wall.errors import InvalidInput
from ...wall.guarantee import UNITS, Unit

Parameter = float | int | bool
# Units of a record's full budget under a prepaid release. Payments are integers, rounded up.
FULL = 1 << 40
MAX_TEACHERS = 10_000  # classifiers of PATE, each on a shard of the records
_MAX_NUMBER = sys.float_info.max  # a curve can not use an integer beyond it


@dataclass(frozen=True)
class Release:
    """One kind of noisy release and how often it may happen.

    ``name``: what is released, e.g. "screen" or "aggregate". ``curve``: a key of ``curves.CURVES``;
    with ``parameters`` (its keyword arguments) it gives the RDP of one release. ``cap``: at most
    this many releases, over all rounds, callers and restarts of a ledger. ``prepaid``: charged
    once, in full, before its first answer, and the charge stays open: the curve then bounds all
    answers ever given under it, and each record's remaining budget is kept in private. ``batch``:
    one charge pays for a batch of any number of queries: the curve bounds all their answers
    together.
    """

    name: str
    curve: str
    parameters: dict[str, Parameter]
    cap: int
    prepaid: bool = False
    batch: bool = False

    def __post_init__(self) -> None:
        if self.cap < 0:
            raise InvalidInput(f"{self.name}.cap", "at least 0", self.cap)
        if self.prepaid and self.cap > 1:
            raise InvalidInput(f"{self.name}.prepaid", "true with a cap of at most 1", self.cap)
        if self.batch and self.prepaid:
            raise InvalidInput(f"{self.name}.batch", "not true for a prepaid release", self.batch)


@dataclass(frozen=True)
class Slot:
    """A mechanism with its publishable fields, and the releases that it draws."""

    mechanism: dict[str, object]
    releases: tuple[Release, ...]


@dataclass(frozen=True)
class Plan:
    """(epsilon, delta) under add/remove of one ``unit``, and the list that spends it.

    ``unit``: a row, or all rows of a person. ``periods``: parts of as many slots, in order: that of
    the first records, then one for each later update of them.
    """

    epsilon: float
    delta: float
    slots: tuple[Slot, ...]
    unit: Unit = "row"
    periods: int = 1

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InvalidInput("budget.epsilon", "positive and finite", self.epsilon)
        if not 0 < self.delta < 1:
            raise InvalidInput("budget.delta", "between 0 and 1", self.delta)
        if self.unit not in UNITS:
            raise InvalidInput("privacy.unit", " or ".join(UNITS), self.unit)
        if self.periods < 1 or len(self.slots) % self.periods:
            rule = "a divisor of the plan's number of slots"
            raise InvalidInput("budget.periods", rule, self.periods)

    def up_to(self, period: int) -> "Plan":
        """The part of it that the periods up to this one, counted from 1, may spend."""
        slots = self.slots[: period * (len(self.slots) // self.periods)]
        return replace(self, slots=slots, periods=period)

    def period_of(self, slot: int) -> int:
        """Counted from 1."""
        return 1 + slot * self.periods // len(self.slots)

    def releases(self) -> list[Release]:
        """All releases of all slots, in order."""
        return [release for slot in self.slots for release in slot.releases]

    def pooled(self, ledgers: int) -> "Plan":
        """All that ``ledgers`` ledgers under this plan may release together: each cap so often."""
        slots = []
        for slot in self.slots:
            caps = (replace(r, cap=ledgers * r.cap, prepaid=False) for r in slot.releases)
            slots.append(replace(slot, releases=tuple(caps)))
        return replace(self, slots=tuple(slots))

    def to_json(self) -> dict[str, object]:
        """The form recorded in the ledger's first entry."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> "Plan":
        """Inverse of to_json. Raises as ``of_type``, and InvalidInput for a value out of range."""
        plan: Plan = of_type(cls, value)
        return plan


def of_type(kind: Any, value: Any) -> Any:
    """A JSON value as a dataclass, or as what one of its fields may hold.

    Raises TypeError for a missing or unknown key and for a value of another type: a boolean is not
    a number, 1.0 is not an integer, NaN is neither.
    """
    origin, options = get_origin(kind), get_args(kind)
    if type(value) is dict and is_dataclass(kind) and isinstance(kind, type):
        hints = {name: hint for name, hint in get_type_hints(kind).items() if name in value}
        parts = {name: of_type(hints.get(name), entry) for name, entry in value.items()}
        if parts.keys() == {field.name for field in fields(kind)}:
            return kind(**parts)
    elif origin is tuple and type(value) is list:
        return tuple(of_type(options[0], entry) for entry in value)
    elif origin is dict and type(value) is dict:
        return {key: of_type(options[1], entry) for key, entry in value.items()}
    elif origin is Literal and type(value) is str and value in options:
        return value
    elif origin in (Union, UnionType):
        for option in options:
            with suppress(TypeError):
                return of_type(option, value)
    else:
        typed = type(value) is kind or (kind is float and type(value) is int)
        finite = kind is not float or (typed and abs(value) <= _MAX_NUMBER)
        if kind is object or (typed and finite):
            return value
    raise TypeError(f"{str(value)[:40]!r} is no {getattr(kind, '__name__', kind)}")
