"""Who was charged for how much, and what is left: readings of one ledger.

Charges by caller are private: they stand in the ledger's table of event times, which is never
exported. Caps of keys are enforced here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from ...wall.errors import LabelwallError, Refused
from ..ledger import ledger_tables
from ..ledger.ledger import Ledger
from ..ledger.state import LedgerState
from .replies import REFUSALS, ReleaseLeft


@dataclass(frozen=True)
class Snapshot:
    """The ledger's public counts at one position, for readers in other threads."""

    position: int
    head: str
    releases: tuple[ReleaseLeft, ...]  # in the plan's order; a register has none

    @classmethod
    def of(cls, state: LedgerState) -> "Snapshot":
        assert state.plan is not None
        releases = []
        for slot, entry in enumerate(() if state.is_register() else state.plan.slots):
            for each in entry.releases:
                left = state.remaining(slot, each.name)
                releases.append(ReleaseLeft(slot, each.name, each.cap, each.cap - left, left))
        return cls(state.seq, state.head, tuple(releases))


@dataclass(frozen=True)
class ChargedCall:
    """A call that is about to be charged for ``queries`` new queries of ``slot``.

    ``position``: the ledger's newest entry at that time; ``cap``: on all new queries of the caller.
    """

    caller: str
    slot: int
    queries: int
    position: int
    cap: int | None = None

    def exceeds(self, charged: Mapping[str, int]) -> bool:
        """Whether the cap is too small. A call without new queries always fits."""
        total = charged[self.caller] + self.queries
        return self.cap is not None and self.queries > 0 and total > self.cap


class OverCap(Refused):
    """Calls would exceed their caps. ``positions``: theirs in what was requested."""

    def __init__(self, positions: Sequence[int]) -> None:
        self.positions = positions
        super().__init__("quota_reached", REFUSALS["quota_reached"][1])


class Usage:
    """The charges of one ledger.

    ``charged``: new queries by caller; ``last``: the time of each caller's last charge.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._newest = ledger, 0  # number of the last row that was read
        self.charged, self.last = Counter[str](), dict[str, int]()
        ledger.in_custody(ledger_tables.records_metadata.create_all)
        self._newest, self.charged, self.last = ledger.in_custody(self._read)

    @contextmanager
    def noted(self, calls: Sequence[ChargedCall]) -> Iterator[None]:
        """Note calls in the context's first transaction that writes, unless one exceeds its cap.

        Check, note and charge are one transaction, so notes of other processes in the same ledger
        count. Raises OverCap where calls do not fit: nothing was charged, and nothing noted.
        """
        over, noted = list[int](), (self._newest, self.charged, self.last)

        def work(connection: sa.Connection) -> None:
            nonlocal noted
            charged = self._read(connection)[1]
            for position, call in enumerate(calls):
                if call.exceeds(charged):
                    over.append(position)
                    continue
                place = {"caller": call.caller, "position": call.position, "slot": call.slot}
                ledger_tables.note_event(connection, ledger_tables.CHARGED, call.queries, **place)
                charged[call.caller] += call.queries
            if over:
                raise OverCap(over)
            noted = self._read(connection)

        try:
            with self._ledger.with_next_write(work):
                yield
        except LabelwallError:  # of a prepaid release it does not say why
            if over:
                raise OverCap(over) from None
            raise
        self._newest, self.charged, self.last = noted

    def _read(self, connection: sa.Connection) -> tuple[int, Counter[str], dict[str, int]]:
        """The last row's number, sums and times by caller, with what others have noted."""
        newest, charged, last = self._newest, Counter(self.charged), dict(self.last)
        table = ledger_tables.event_times
        rows = sa.select(table).where(table.c.number > newest).order_by(table.c.number)
        for row in connection.execute(rows):
            newest = row.number
            if row.kind == ledger_tables.CHARGED:
                charged[row.caller] += row.size
                last[row.caller] = row.time
        return newest, charged, last

    def calls(self, caller: str | None = None, newest: int | None = None) -> list[sa.Row[Any]]:
        """The ``newest`` charges (None: all), oldest first, of one ``caller`` or of all."""
        return self._ledger.in_custody(
            lambda opened: ledger_tables.events(
                opened, ledger_tables.CHARGED, newest=newest, caller=caller
            )
        )
