"""What may be bought from a data set: an explicit list of releases with caps, fixed before the first of them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from labelwall.wall.errors import InvalidInput

Parameter = float | int | bool


@dataclass(frozen=True)
class Release:
    """One kind of noisy release and how often it may happen.

    ``name``: what is released, e.g. "screen" or "aggregate". ``curve``: a key of ``curves.CURVES``; with ``parameters``
    (its keyword arguments) it gives the RDP of one release. ``cap``: at most this many releases, over all rounds,
    callers and restarts of a ledger. ``prepaid``: charged once, in full, before its first answer, and the charge stays open:
    the curve then bounds all answers ever given under it, and what each record still may contribute is kept in private.
    ``batch``: one charge pays for a whole batch of queries, whatever their number: the curve bounds all their answers together.
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
    """(epsilon, delta) under add/remove of one record, and the list that spends it."""

    epsilon: float
    delta: float
    slots: tuple[Slot, ...]

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InvalidInput("budget.epsilon", "positive and finite", self.epsilon)
        if not 0 < self.delta < 1:
            raise InvalidInput("budget.delta", "between 0 and 1", self.delta)

    def releases(self) -> list[Release]:
        """All releases of all slots, in order."""
        return [release for slot in self.slots for release in slot.releases]

    def pooled(self, ledgers: int) -> Plan:
        """The list of all that so many ledgers under this plan may release together: every cap, so many times."""
        slots = [
            Slot(
                slot.mechanism,
                tuple(replace(r, cap=ledgers * r.cap, prepaid=False) for r in slot.releases),
            )
            for slot in self.slots
        ]
        return Plan(self.epsilon, self.delta, tuple(slots))

    def to_json(self) -> dict[str, object]:
        """The form the ledger's first entry records."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict) -> Plan:
        """Inverse of to_json. A missing or unknown key is refused (KeyError, TypeError)."""
        slots = tuple(
            Slot(slot["mechanism"], tuple(Release(**release) for release in slot["releases"]))
            for slot in value["slots"]
        )
        if set(value) != {"epsilon", "delta", "slots"}:
            raise KeyError(f"unknown keys in plan: {sorted(value)}")
        return cls(epsilon=value["epsilon"], delta=value["delta"], slots=slots)
