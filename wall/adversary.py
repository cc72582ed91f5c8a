"""Against whom a certificate holds: said wherever an epsilon is."""

from __future__ import annotations

import re

POOLED = "all analysts together, who may pool their answers"
EACH = "each analyst alone; analysts do not pool answers"  # of the register of several analysts' ledgers
NAME = r"[\w.@-]{1,64}"  # of an analyst


def alone(analyst: str) -> str:
    """The weaker adversary: one analyst, who keeps the answers and learns nothing of the others' (UAI23, section 1)."""
    return f"analyst {analyst} alone; analysts do not pool answers"


def is_alone(adversary: object) -> bool:
    """Whether it is what ``alone`` says of somebody, to the last character."""
    return isinstance(adversary, str) and re.fullmatch(alone(NAME), adversary) is not None
