"""The unit of privacy: what neighbouring data sets differ by. It is named where an epsilon is."""

from __future__ import annotations

from typing import Literal

Unit = Literal["row", "person"]
UNITS: tuple[Unit, ...] = ("row", "person")


def protected(unit: Unit) -> str:
    """What a certificate for this unit hides: "add or remove ..."."""
    return "one record" if unit == "row" else "all rows of one person"


def for_unit(unit: Unit) -> str:
    """An addition to a sentence that states an epsilon; empty for rows."""
    return "" if unit == "row" else " for persons (all rows of one together)"
