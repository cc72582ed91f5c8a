"""The auditor's schemas of a ledger's entries: one for each kind, exact and closed."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from ....wall.adversary import EACH, POOLED, is_single_analyst
from ....wall.adversary import NAME as ANALYST
from ....wall.format import other_format
from .plan import LARGEST_CAP, MAX_SLOTS
from .values import (
    BOOLEAN,
    DIGEST,
    EPSILON,
    LARGEST_INTEGER,
    LARGEST_NUMBER,
    NAME,
    OBJECT,
    Problem,
    Rule,
    canonical,
    integer,
    list_of,
    number,
    parse,
    require_object,
    shown,
)

_SLOT = integer(0, MAX_SLOTS)
_FINITE = number(-LARGEST_NUMBER, LARGEST_NUMBER)
SCHEMAS: dict[str, dict[str, Rule]] = {
    "genesis": {
        "format": integer(0, LARGEST_INTEGER),
        "dataset": NAME,
        "unsafe": BOOLEAN,
        "adversary": Rule(
            "one that certificates are made for",
            lambda v: type(v) is str and (v in (POOLED, EACH) or is_single_analyst(v)),
        ),
        "plan": OBJECT,
    },
    "extractor": {"sha256": DIGEST},
    "charge": {"slot": _SLOT, "release": NAME, "count": integer(1, LARGEST_CAP)},
    "release": {
        "charge": integer(0, LARGEST_INTEGER),
        "results": Rule(
            "an object of one result or more, by 64 hexadecimal digits",
            lambda v: type(v) is dict and len(v) > 0 and all(DIGEST.holds(key) for key in v),
        ),
    },
    "refusal": {
        "slot": _SLOT,
        "release": NAME,
        "identities": Rule(
            "a list of one or more, all different, each 64 hexadecimal digits",
            lambda v: list_of(DIGEST, min_length=1).holds(v) and len(set(v)) == len(v),
        ),
    },
    "analyst": {
        "name": Rule(
            "a name of letters, digits and _.@-",
            lambda v: type(v) is str and re.fullmatch(ANALYST, v) is not None,
        ),
        "dataset": NAME,
    },
}
_EXTRACTOR = {
    "backbone": NAME,
    "input_shape": list_of(integer(1, LARGEST_INTEGER), min_length=1),
    "num_classes": integer(0, LARGEST_INTEGER),
    "weights_sha256": DIGEST,
    "mean": list_of(_FINITE),
    "std": list_of(EPSILON),
    "center": list_of(_FINITE),
    "scale": EPSILON,
}
_AXES = ("axes_sha256", "landmarks_sha256")  # of those that have some


def read_entry(kind: str, text: str) -> dict[str, Any]:
    """The body of an entry.

    Raises Problem for an unknown kind, and unless form, fields, types and ranges are a writer's.
    """
    if kind not in SCHEMAS:
        raise Problem(f"is of an unknown kind: {shown(kind)}")
    body = parse(text)
    named = body.get("format") if type(body) is dict else None
    if kind == "genesis" and (error := other_format("the ledger", named)):
        raise Problem(f"is of another format: {error}")
    return require_object(kind, body, SCHEMAS[kind])


def check_extractor(sha256: str, text: str) -> None:
    """An extractor's identity is the hash of its public fields. Raises Problem."""
    fields = parse(text)
    optional = {name: DIGEST for name in _AXES if type(fields) is dict and name in fields}
    require_object("fields", fields, _EXTRACTOR | optional)
    if hashlib.sha256(canonical(fields).encode()).hexdigest() != sha256:
        raise Problem("names another hash than that of its extractor's fields")
