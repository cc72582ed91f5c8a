"""A plan's slot: its mechanism's releases as the auditor prices them, and as the plan does."""

from __future__ import annotations

from .mechanisms import BY_BATCH, KINDS, ONCE, Fields, Priced
from .values import (
    BOOLEAN,
    LARGEST_NUMBER,
    Problem,
    Rule,
    canonical,
    integer,
    number,
    one_of,
    require,
    require_object,
    shown,
)

LARGEST_CAP = 10**9
_NUMBER = number(-LARGEST_NUMBER, LARGEST_NUMBER)
RELEASE = {
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


def priced(mechanism: object) -> list[Priced]:
    """The releases of a slot's mechanism, an object as the ledger records it. Raises Problem for
    an unknown kind, and for a field that is missing, unknown, of another type or out of range."""
    kind = mechanism.get("kind") if type(mechanism) is dict else None
    if type(kind) is not str or kind not in KINDS:
        raise Problem(f"the mechanism is of an unknown kind: {shown(kind)}")
    known = KINDS[kind]
    fields = require_object(kind, mechanism, {"kind": one_of(kind), **known.fields})
    for words, holds in known.related.items():
        if not holds(fields):
            raise Problem(f"{kind}: {words}")
    return known.releases(fields)


def check_slot(slot: Fields) -> list[Priced]:
    """The restated releases of a plan's slot {mechanism, releases}. Raises Problem unless those
    that it records are the same ones, in every name, type and digit."""
    restated, recorded = priced(slot["mechanism"]), slot["releases"]
    for release in recorded:
        require_object("release", release, RELEASE, ("prepaid", "batch"))
    if len(restated) != len(recorded):
        names = ", ".join(release.name for release in restated)
        raise Problem(f"the mechanism releases {names}, the plan prices something else")
    for known, release in zip(restated, recorded, strict=True):
        _check_release(known, release)
    return restated


def _check_release(known: Priced, release: Fields) -> None:
    recorded = canonical([release["name"], release["curve"], release["parameters"]])
    restated = canonical([known.name, known.curve, known.parameters])
    if recorded != restated:
        raise Problem(f"the plan prices {shown(recorded)}, but its mechanism releases {restated}")
    prepaid, batch = release.get("prepaid", False), release.get("batch", False)
    if prepaid != (known.charging == ONCE) or batch != (known.charging == BY_BATCH):
        raise Problem(f"release {known.name!r} should be charged {known.charging}")
    if prepaid:
        require(f"the cap of {known.name!r}", release["cap"], integer(1, 1))
