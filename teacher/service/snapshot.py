"""The ledger's public counts after a step, for readers in other threads."""

from __future__ import annotations

from dataclasses import dataclass

from ..ledger.state import LedgerState


@dataclass(frozen=True)
class Snapshot:
    """The counts at one position.

    ``spent``, ``remaining``: releases by (slot, release).
    """

    position: int
    head: str
    spent: dict[tuple[int, str], int]
    remaining: dict[tuple[int, str], int]

    @classmethod
    def of(cls, state: LedgerState) -> Snapshot:
        """The counts of a state that was read."""
        assert state.plan is not None
        slots = enumerate(state.plan.slots)
        keys = [(slot, release.name) for slot, entry in slots for release in entry.releases]
        return cls(
            state.seq,
            state.head,
            spent={key: state.spent.get(key, 0) for key in keys},
            remaining={key: state.remaining(*key) for key in keys},
        )
