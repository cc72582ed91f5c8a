"""A recorded plan: each slot's releases as the auditor prices them, and as the plan does."""

from __future__ import annotations

from typing import Any

from .mechanisms import BY_BATCH, KINDS, ONCE, PERSONS, Fields, Priced
from .values import (
    ANY_SCALAR,
    BOOLEAN,
    EPSILON,
    LARGEST_NUMBER,
    OBJECT,
    Problem,
    Rule,
    canonical,
    constant,
    integer,
    list_of,
    number,
    number_above,
    one_of,
    require,
    require_object,
    shown,
)

MAX_SLOTS = 10_000
LARGEST_CAP = 10**9
_NUMBER = number(-LARGEST_NUMBER, LARGEST_NUMBER)
_PLAN = {
    "epsilon": EPSILON,
    "delta": number_above(0, 1, below=True),
    "slots": list_of(OBJECT, min_length=1),
    "unit": one_of("row", "person"),
}
_SLOT = {"mechanism": OBJECT, "releases": list_of(OBJECT, min_length=1)}
_RELEASE = {
    "name": Rule("a name", lambda v: type(v) is str),
    "curve": Rule("a name", lambda v: type(v) is str),
    "parameters": Rule(
        "an object of finite numbers, true or false",
        lambda v: type(v) is dict and all(_NUMBER.holds(p) or type(p) is bool for p in v.values()),
    ),
    "cap": integer(0, LARGEST_CAP),
    "prepaid": BOOLEAN,
    "batch": BOOLEAN,
}


def check_plan(plan: dict[str, Any]) -> list[list[Priced]]:
    """Each slot's releases, restated from its mechanism.

    Raises Problem where a slot prices something else, or a field breaks its rule.
    """
    require_object("plan", plan, _PLAN)
    require("the number of slots", len(plan["slots"]), integer(1, MAX_SLOTS))
    restated = []
    for place, slot in enumerate(plan["slots"]):
        try:
            restated.append(check_slot(slot))
            if plan["unit"] == "person" and slot["mechanism"]["kind"] not in PERSONS:
                raise Problem("the mechanism must be one whose price holds for persons")
        except Problem as problem:
            raise Problem(f"slot {place} of the plan: {problem}") from problem
    return restated


def check_slot(slot: Fields) -> list[Priced]:
    """The restated releases of a plan's slot {mechanism, releases}. Raises Problem unless those
    that it records are the same ones, in every name, type and digit."""
    require_object("slot", slot, _SLOT)
    restated, recorded = priced(slot["mechanism"]), slot["releases"]
    if len(restated) != len(recorded):
        names = ", ".join(release.name for release in restated)
        raise Problem(f"the mechanism releases {names}, the plan prices something else")
    for known, release in zip(restated, recorded, strict=True):
        require_object("release", release, _RELEASE)
        _check_release(known, release)
    return restated


def priced(mechanism: object) -> list[Priced]:
    """The releases of a slot's mechanism, an object as the ledger records it. Raises Problem for
    an unknown kind, and for a field that is missing, unknown, of another type or out of range."""
    kind = mechanism.get("kind") if type(mechanism) is dict else None
    if type(kind) is not str or kind not in KINDS:
        raise Problem(f"the mechanism is of an unknown kind: {shown(kind)}")
    known = KINDS[kind]
    free = dict.fromkeys(known.free, ANY_SCALAR)
    fields = require_object(kind, mechanism, {"kind": constant(kind), **free, **known.fields})
    return known.releases(fields)


def _check_release(known: Priced, release: Fields) -> None:
    recorded = canonical([release["name"], release["curve"], release["parameters"]])
    restated = canonical([known.name, known.curve, known.parameters])
    if recorded != restated:
        raise Problem(f"the plan prices {shown(recorded)}, but its mechanism releases {restated}")
    prepaid, batch = known.charging == ONCE, known.charging == BY_BATCH
    if (release["prepaid"], release["batch"]) != (prepaid, batch):
        raise Problem(f"release {known.name!r} should be charged {known.charging}")
    if prepaid:
        require(f"the cap of {known.name!r}", release["cap"], constant(1))
