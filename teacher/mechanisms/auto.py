"""The mechanism that is still to be chosen: a word in configurations, never in a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...wall.errors import InvalidInput
from ...wall.messages import Outcome, Value
from ..accounting.plan import Release
from .base import Mechanism


@dataclass(frozen=True)
class Auto(Mechanism):
    """Chosen by rehearsals on public rows before the run.

    Args:
        kind: `auto`: mechanism, features and their settings are searched for on public rows.
    """

    kind: Literal["auto"] = "auto"

    stages = ()
    open = True

    @property
    def once_a_round(self) -> bool:
        """Queries may be left out, as for the mechanisms that it usually becomes."""
        return True

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """Raises InvalidInput: it has no price before it is chosen."""
        raise self._undecided()

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, Value]:
        """Raises InvalidInput."""
        raise self._undecided()

    def _undecided(self) -> InvalidInput:
        rule = "chosen first: `labelwall plan --out FILE` writes it, and a run has its chosen.yaml"
        return InvalidInput("mechanism.kind", rule, self.kind)
