"""Against whom a certificate holds, and for which unit. Both are named with every epsilon."""

import re
from typing import Literal

Unit = Literal["row", "person"]
UNITS: tuple[Unit, ...] = ("row", "person")
POOLED = "all analysts together, who may pool their answers"
# The adversary of the register that lists several analysts' ledgers.
EACH = "each analyst alone; analysts do not pool answers"
NAME = r"[\w.@-]{1,64}"  # of an analyst


def single_analyst(analyst: str) -> str:
    """The weaker adversary: one analyst, who learns no others' answers (UAI23, section 1)."""
    return f"analyst {analyst} alone; analysts do not pool answers"


def is_single_analyst(adversary: object) -> bool:
    """Whether a value is exactly what ``single_analyst`` returns for some valid name."""
    return isinstance(adversary, str) and re.fullmatch(single_analyst(NAME), adversary) is not None


def protected(unit: Unit) -> str:
    """What a certificate for this unit hides: "add or remove ..."."""
    return "one record" if unit == "row" else "all rows of one person"


def for_unit(unit: Unit) -> str:
    """An addition to a sentence that states an epsilon; empty for rows."""
    return "" if unit == "row" else " for persons (all rows of one together)"
