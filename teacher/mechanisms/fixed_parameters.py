"""What mechanisms share that leave nothing to the plan: every field has a value of its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True)
class Given:
    """A frozen dataclass whose fields the configuration gives; one query a row, unless it says otherwise."""

    once_a_round = False

    def fields(self) -> dict[str, object]:
        """The publishable fields, as a ledger records them."""
        return asdict(self)

    def planned(self, epsilon: float, delta: float, asked: int) -> Self:
        """Itself: every field is given."""
        return self
