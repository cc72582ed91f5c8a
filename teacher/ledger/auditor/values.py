"""Strict reading of a ledger's text, for the auditor: one byte form, exact types, finite numbers.

Everything unknown is refused. A problem never quotes the file's text verbatim: the text is cut, and
characters beyond ASCII are escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LARGEST_INTEGER = 2**63 - 1  # releases are 64-bit integers
LARGEST_NUMBER = 1.7976931348623157e308  # the largest finite float64
LONGEST_TEXT = 256  # characters of a name
SHOWN = 60  # characters of a value in a problem


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
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
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


def number_above(low: float, high: float, *, below: bool = False) -> Rule:
    """A finite number above ``low`` and at most ``high``, or below it where ``below``."""
    return Rule(
        f"a number above {low:g} and {'below' if below else 'at most'} {high:g}",
        lambda v: type(v) in (int, float) and low < v <= high and not (below and v == high),
    )


def one_of(*texts: str) -> Rule:
    return Rule(f"one of {', '.join(texts)}", lambda v: type(v) is str and v in texts)


def nullable(rule: Rule) -> Rule:
    return Rule(f"null, or {rule.words}", lambda v: v is None or rule.holds(v))


def list_of(rule: Rule, *, min_length: int = 0) -> Rule:
    return Rule(
        f"a list, of {min_length} or more, each {rule.words}",
        lambda v: (
            type(v) is list and len(v) >= min_length and all(rule.holds(entry) for entry in v)
        ),
    )


def constant(value: Any) -> Rule:
    return Rule(repr(value), lambda v: type(v) is type(value) and v == value)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise Problem("names a field twice")
    return fields


def _constant(name: str) -> None:
    raise Problem(f"holds {name}, which is no finite number")


def _is_name(value: Any) -> bool:
    return type(value) is str and 0 < len(value) <= LONGEST_TEXT and value.isprintable()


ANY_SCALAR = Rule(
    "a number, a text, true, false or null",
    lambda v: v is None or type(v) in (int, float, str, bool),
)
OBJECT = Rule("an object", lambda v: type(v) is dict)
BOOLEAN = Rule("true or false", lambda v: type(v) is bool)
NAME = Rule(f"printable text of 1 to {LONGEST_TEXT} characters", _is_name)
DIGEST = Rule(
    "64 hexadecimal digits",
    lambda v: type(v) is str and re.fullmatch("[0-9a-f]{64}", v) is not None,
)
EPSILON = number_above(0, LARGEST_NUMBER)
PROBABILITY = number_above(0, 1)
