"""What may be released from a data set: a list of releases with caps, fixed before the first."""

import math
import sys
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ...wall.errors import InvalidInput
from ...wall.guarantee import UNITS, Unit

Parameter = float | int | bool
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
        if not isinstance(self.prepaid, bool) or (self.prepaid and self.cap > 1):
            raise InvalidInput(
                f"{self.name}.prepaid",
                "true or false, and true with a cap of at most 1",
                self.prepaid,
            )
        if not isinstance(self.batch, bool) or (self.batch and self.prepaid):
            raise InvalidInput(
                f"{self.name}.batch",
                "true or false, and not true for a prepaid release",
                self.batch,
            )


@dataclass(frozen=True)
class Slot:
    """A mechanism with its publishable fields, and the releases that it draws."""

    mechanism: dict[str, object]
    releases: tuple[Release, ...]


@dataclass(frozen=True)
class Plan:
    """(epsilon, delta) under add/remove of one ``unit``, and the list that spends it.

    ``unit``: a row, or all rows of a person.
    """

    epsilon: float
    delta: float
    slots: tuple[Slot, ...]
    unit: Unit = "row"

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InvalidInput("budget.epsilon", "positive and finite", self.epsilon)
        if not 0 < self.delta < 1:
            raise InvalidInput("budget.delta", "between 0 and 1", self.delta)
        if self.unit not in UNITS:
            raise InvalidInput("privacy.unit", " or ".join(UNITS), self.unit)

    def releases(self) -> list[Release]:
        """All releases of all slots, in order."""
        return [release for slot in self.slots for release in slot.releases]

    def pooled(self, ledgers: int) -> "Plan":
        """All that ``ledgers`` ledgers under this plan may release together.

        Each cap times that.
        """

        def pooled(release: Release) -> Release:
            return replace(release, cap=ledgers * release.cap, prepaid=False)

        slots = [Slot(slot.mechanism, tuple(map(pooled, slot.releases))) for slot in self.slots]
        return replace(self, slots=tuple(slots))

    def to_json(self) -> dict[str, object]:
        """The form recorded in the ledger's first entry."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict) -> "Plan":
        """Inverse of to_json.

        Raises KeyError or TypeError for a missing or unknown key and for a value of another type
        (a boolean is not a number, 1.0 is not an integer, NaN is neither), InvalidInput for a value
        out of range.
        """
        _require_keys("plan", value, {"epsilon", "delta", "slots", "unit"})
        if not (_is_number(value["epsilon"]) and _is_number(value["delta"])):
            raise TypeError("a plan's epsilon and delta are numbers")
        if value["unit"] not in UNITS:
            raise TypeError(f"a plan's unit is {' or '.join(UNITS)}")
        slots = tuple(_slot(slot) for slot in _list(value["slots"]))
        unit: Unit = value["unit"]
        return cls(value["epsilon"], value["delta"], slots, unit)


def _slot(value: dict) -> Slot:
    """A slot as to_json records it."""
    _require_keys("slot", value, {"mechanism", "releases"})
    if type(value["mechanism"]) is not dict:
        raise TypeError("a slot's mechanism is an object")
    return Slot(value["mechanism"], tuple(_release(entry) for entry in _list(value["releases"])))


def _release(value: dict) -> Release:
    """A release as to_json records it."""
    _require_keys("release", value, {field.name for field in fields(Release)})
    if type(value["parameters"]) is not dict:
        raise TypeError("a release's parameters are an object")
    texts = all(type(value[key]) is str for key in ("name", "curve"))
    numbers = all(_is_number(v) or type(v) is bool for v in value["parameters"].values())
    if not (texts and numbers and type(value["cap"]) is int):
        raise TypeError("a release has a name, a curve, numbers as parameters and a whole cap")
    return Release(**value)


def _require_keys(what: str, value: object, keys: set[str]) -> None:
    if type(value) is not dict or set(value) != keys:
        raise KeyError(f"a {what} has the keys {sorted(keys)}, and no others")


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError("slots and releases are lists")
    return value


def _is_number(value: Any) -> bool:
    """Whether a value is a finite int or float, and no boolean."""
    return type(value) in (int, float) and abs(value) <= _MAX_NUMBER
