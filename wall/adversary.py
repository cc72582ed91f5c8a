"""The adversary against whom a certificate holds. It is named wherever an epsilon is stated."""

from __future__ import annotations

import re

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
