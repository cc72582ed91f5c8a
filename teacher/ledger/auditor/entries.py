"""The auditor's schemas of a ledger's entries: one for each kind, exact and closed."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from ....wall.adversary import EACH, is_single_analyst
from ....wall.adversary import NAME as ANALYST
from .mechanisms import Priced
from .slots import LARGEST_CAP, check_slot
from .values import (
    BOOLEAN,
    DIGEST,
    EPSILON,
    LARGEST_INTEGER,
    LARGEST_NUMBER,
    NAME,
    Problem,
    Rule,
    canonical,
    integer,
    list_of,
    number,
    number_above,
    parse,
    require,
    require_object,
    shown,
)

Body = dict[str, Any]
POOLED_FORMAT = 1  # of a first entry
ADVERSARY_FORMAT = 2  # of a first entry that names its adversary
MAX_SLOTS = 10_000

_ANY = Rule("anything", lambda v: True)
_OBJECT = Rule("an object", lambda v: type(v) is dict)
_SLOT = integer(0, MAX_SLOTS)
_SEQ = integer(0, LARGEST_INTEGER)
_FINITE = number(-LARGEST_NUMBER, LARGEST_NUMBER)
_RESULTS = Rule(
    "an object of one result or more, by 64 hexadecimal digits",
    lambda v: type(v) is dict and len(v) > 0 and all(DIGEST.holds(key) for key in v),
)
_IDENTITIES = Rule(
    "a list of one or more, all different, each 64 hexadecimal digits",
    lambda v: list_of(DIGEST, min_length=1).holds(v) and len(set(v)) == len(v),
)
SCHEMAS: dict[str, dict[str, Rule]] = {
    "genesis": {
        "format": integer(POOLED_FORMAT, ADVERSARY_FORMAT),
        "dataset": NAME,
        "unsafe": BOOLEAN,
        "plan": _OBJECT,
        "adversary": NAME,
    },
    "extractor": {"sha256": DIGEST, "fields": _OBJECT},  # fields: in earlier versions
    "charge": {"slot": _SLOT, "release": NAME, "count": integer(1, LARGEST_CAP)},
    "release": {"charge": _SEQ, "results": _RESULTS},
    "refusal": {"slot": _SLOT, "release": NAME, "identities": _IDENTITIES},
    "analyst": {
        "name": Rule(
            "a name of letters, digits and _.@-",
            lambda v: type(v) is str and re.fullmatch(ANALYST, v) is not None,
        ),
        "dataset": NAME,
    },
}
OPTIONAL = ("adversary", "fields")
# What is the same for all rows of a person together as for one row (docs/privacy.md, section 22).
_FOR_PERSONS = (
    *("private_knn", "private_knn_attributes", "private_knn_mean", "private_knn_median"),
    "private_radius",
    *("naive_knn", "ind_knn", "reverse_knn", "private_linear", "radius", "batch_knn"),
    *("lnmax", "gnmax", "confident_gnmax", "gnmax_attributes"),
    *("private_linear_attributes", "private_linear_value"),
)
_PERSONS = Rule("one whose price holds for persons", lambda v: v in _FOR_PERSONS)
_PLAN = {
    "epsilon": EPSILON,
    "delta": number_above(0, 1, below=True),
    "slots": list_of(_OBJECT, min_length=1),
    "unit": Rule("'person', or left out", lambda v: v == "person"),
}
_UNIT = "unit"  # of privacy; a plan for rows names none
_PLANNED = {"mechanism": _OBJECT, "releases": list_of(_OBJECT, min_length=1)}
_EXTRACTOR = {
    "backbone": NAME,
    "input_shape": list_of(integer(1, LARGEST_INTEGER), min_length=1),
    "num_classes": integer(0, LARGEST_INTEGER),
    "weights_sha256": DIGEST,
    "mean": list_of(_FINITE),
    "std": list_of(EPSILON),
    "center": list_of(_FINITE),
    "scale": EPSILON,
    "axes_sha256": DIGEST,
    "landmarks_sha256": DIGEST,
}


def read_entry(kind: str, text: str) -> Body:
    """The body of an entry.

    Raises Problem for an unknown kind, and unless form, fields, types and ranges are a writer's.
    """
    if kind not in SCHEMAS:
        raise Problem(f"is of an unknown kind: {shown(kind)}")
    body: Body = require_object(kind, parse(text), SCHEMAS[kind], OPTIONAL)
    if kind == "genesis":
        _check_adversary(body)
    elif kind == "extractor" and "fields" in body:
        check_extractor(body["sha256"], body["fields"])
    return body


def check_plan(plan: Body) -> list[list[Priced]]:
    """Each slot's releases, restated from its mechanism.

    Raises Problem where a slot prices something else, or a field breaks its rule.
    """
    require_object("plan", plan, _PLAN, (_UNIT,))
    require("the number of slots", len(plan["slots"]), integer(1, MAX_SLOTS))
    restated = []
    for number_of, slot in enumerate(plan["slots"]):
        try:
            require_object("slot", slot, _PLANNED)
            restated.append(check_slot(slot))
            if _UNIT in plan:
                require("the mechanism of a plan for persons", slot["mechanism"]["kind"], _PERSONS)
        except Problem as problem:
            raise Problem(f"slot {number_of} of the plan: {problem}") from problem
    return restated


def _check_adversary(body: Body) -> None:
    """Format 1 names no adversary; format 2 names one that certificates exist for."""
    named = body.get("adversary")
    if body["format"] == POOLED_FORMAT and named is not None:
        raise Problem("names an adversary, an unknown field in its format")
    if body["format"] == ADVERSARY_FORMAT and named is None:
        raise Problem("names no adversary: against whom it holds is unknown")
    if body["format"] == ADVERSARY_FORMAT and not (named == EACH or is_single_analyst(named)):
        raise Problem("names an adversary that no certificate is made for")


def check_extractor(sha256: str, found: Any) -> None:
    """An extractor's identity is the hash of its public fields. Raises Problem."""
    fields = require_object("fields", found, _EXTRACTOR, ("axes_sha256", "landmarks_sha256"))
    if hashlib.sha256(canonical(fields).encode()).hexdigest() != sha256:
        raise Problem("names another hash than that of its extractor's fields")
