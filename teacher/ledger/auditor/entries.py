"""The auditor's strict reading of a ledger's entries: one byte form, and for each kind one exact
and closed schema, with exact types and finite numbers.

Everything unknown is refused. A problem never quotes the file's text verbatim: the text is cut, and
characters beyond ASCII are escaped.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....wall.files import other_format
from ....wall.guarantee import EACH, POOLED, is_single_analyst
from ....wall.guarantee import NAME as ANALYST

LARGEST_INTEGER = 2**63 - 1  # releases are 64-bit integers
LARGEST_NUMBER = 1.7976931348623157e308  # the largest finite float64
LONGEST_TEXT = 256  # characters of a name
SHOWN = 60  # characters of a value in a problem
MAX_SLOTS = 10_000
LARGEST_CAP = 10**9


class Problem(Exception):
    """One line on what is wrong with an entry."""


@dataclass(frozen=True)
class Rule:
    """What a value must be. ``words`` completes "must be ..."; ``holds`` never raises."""

    words: str
    holds: Callable[[Any], bool]


def shown(value: Any) -> str:
    """A value of the file for a problem's line: ASCII, at most ``SHOWN`` characters."""
    if type(value) is int and abs(value) > LARGEST_INTEGER:
        return f"an integer of {value.bit_length()} bits"
    text = ascii(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def canonical(value: Any) -> str:
    """The one text of a JSON value. Raises ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse(text: str) -> Any:
    """The JSON value of an entry's text. Raises Problem.

    Refused: a repeated key at any depth, NaN, infinity, a number that float64 can not hold, and
    every text but the one that a writer writes (sorted keys, no spaces, shortest numbers).
    """
    try:
        value = json.loads(text, object_pairs_hook=_object)
        same = canonical(value) == text
    except (ValueError, RecursionError) as error:
        raise Problem("is not JSON, or holds a number that is not finite") from error
    if not same:
        raise Problem("is not in the one form that a ledger writes")
    return value


def require(what: str, value: Any, rule: Rule) -> None:
    """Raise Problem unless the rule holds."""
    if not rule.holds(value):
        raise Problem(f"{what} must be {rule.words}. Found {shown(value)}")


def require_object(what: str, value: Any, rules: Mapping[str, Rule]) -> dict[str, Any]:
    """The object itself. Raises Problem unless it has exactly the rules' keys, and each holds."""
    if type(value) is not dict:
        raise Problem(f"{what} must be an object. Found {shown(value)}")
    missing = sorted(set(rules) - set(value))
    unknown = sorted(set(value) - set(rules))
    if missing or unknown:
        raise Problem(
            f"{what} must have other fields: missing {shown(missing)}, unknown {shown(unknown)}"
        )
    for key, rule in rules.items():
        require(f"{what}.{key}", value[key], rule)
    return value


def integer(low: int, high: int) -> Rule:
    """An integer; 1.0 and true are not integers."""
    return Rule(f"an integer from {low} to {high}", lambda v: type(v) is int and low <= v <= high)


def number(low: float, high: float) -> Rule:
    """A finite number, written as an integer or a float."""
    return Rule(
        f"a number from {low:g} to {high:g}",
        lambda v: type(v) in (int, float) and low <= v <= high,
    )


def positive(high: float) -> Rule:
    """A finite number above 0 and at most ``high``."""
    rule = number(0, high)
    return Rule(f"a number above 0 and at most {high:g}", lambda v: rule.holds(v) and v > 0)


def one_of(*texts: str) -> Rule:
    return Rule(f"one of {', '.join(texts)}", lambda v: type(v) is str and v in texts)


def nullable(rule: Rule) -> Rule:
    return Rule(f"null, or {rule.words}", lambda v: v is None or rule.holds(v))


def list_of(rule: Rule, low: int = 0, high: int = LARGEST_INTEGER) -> Rule:
    """A list of ``low`` to ``high`` values."""
    return Rule(
        f"a list, of {low} or more, each {rule.words}",
        lambda v: type(v) is list and low <= len(v) <= high and all(map(rule.holds, v)),
    )


def matching(pattern: str, words: str) -> Rule:
    return Rule(words, lambda v: type(v) is str and re.fullmatch(pattern, v) is not None)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise Problem("names a field twice")
    return fields


ANY_SCALAR = Rule(
    "a number, a text, true, false or null",
    lambda v: v is None or type(v) in (int, float, str, bool),
)
OBJECT = Rule("an object", lambda v: type(v) is dict)
BOOLEAN = Rule("true or false", lambda v: type(v) is bool)
NAME = Rule(
    f"printable text of 1 to {LONGEST_TEXT} characters",
    lambda v: type(v) is str and 0 < len(v) <= LONGEST_TEXT and v.isprintable(),
)
DIGEST = matching("[0-9a-f]{64}", "64 hexadecimal digits")
EPSILON = positive(LARGEST_NUMBER)
PROBABILITY = positive(1)
FINITE = number(-LARGEST_NUMBER, LARGEST_NUMBER)

_SLOT = integer(0, MAX_SLOTS)
SCHEMAS: dict[str, dict[str, Rule]] = {
    "genesis": {
        "format": integer(0, LARGEST_INTEGER),
        "dataset": NAME,
        "unsafe": BOOLEAN,
        "adversary": Rule(
            "one that has certificates",
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
            lambda v: list_of(DIGEST, 1).holds(v) and len(set(v)) == len(v),
        ),
    },
    "analyst": {
        "name": matching(ANALYST, "a name of letters, digits and _.@-"),
        "dataset": NAME,
    },
}
_EXTRACTOR = {
    "backbone": NAME,
    "input_shape": list_of(integer(1, LARGEST_INTEGER), 1),
    "num_classes": integer(0, LARGEST_INTEGER),
    "weights_sha256": DIGEST,
    "mean": list_of(FINITE),
    "std": list_of(EPSILON),
    "center": list_of(FINITE),
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
