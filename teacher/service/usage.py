"""Who was charged for how much: a private table in the ledger's file, written before each charge. Never exported.

Per-key caps are counted here. A crash between the note and the charge leaves the note: a caller's own cap is then reached that
much earlier; what the data set has spent is the ledger's to say, and is not touched by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from labelwall.teacher.ledger import event_times
from labelwall.teacher.ledger.ledger import Ledger

calls_metadata = sa.MetaData()
calls = sa.Table(
    "calls",
    calls_metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("caller", sa.Text, nullable=False),
    sa.Column("slot", sa.Integer, nullable=False),
    sa.Column("queries", sa.Integer, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
)


@dataclass(frozen=True)
class Call:
    """``caller`` was about to be charged for ``queries`` new queries of ``slot``; the ledger's newest entry was ``position``."""

    caller: str
    slot: int
    queries: int
    position: int


class Calls:
    """The table of one ledger. ``charged``: caller -> new queries noted so far."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.charged: Counter[str] = Counter()
        ledger.in_custody(calls_metadata.create_all)
        for call in self.listed():
            self.charged[call.caller] += call.queries

    def note(self, noted: Sequence[tuple[Call, int | None]]) -> list[bool]:
        """Write down calls, durably, before they are charged: whether each may be, under its caller's cap (None: no cap).

        Cap and note are one transaction, so that what other processes noted in the same ledger counts as well. A call for no new
        query may always be made, and is not written down.
        """
        if not any(call.queries for call, _ in noted):
            return [True] * len(noted)
        allowed, sums = self._ledger.in_custody(lambda connection: _note(connection, noted))
        for caller, total in sums.items():
            self.charged[caller] = total
        return allowed

    def listed(self, caller: str | None = None, newest: int | None = None) -> list[Call]:
        """Calls in order; of one caller, or of all; the ``newest`` so many, or all."""
        chosen = sa.select(calls).order_by(calls.c.number.desc()).limit(newest)
        if caller is not None:
            chosen = chosen.where(calls.c.caller == caller)
        rows = self._ledger.in_custody(lambda connection: connection.execute(chosen).all())
        return [Call(row.caller, row.slot, row.queries, row.position) for row in reversed(rows)]


def _note(
    connection: sa.Connection, noted: Sequence[tuple[Call, int | None]]
) -> tuple[list[bool], dict[str, int]]:
    """(which calls were within their cap, new queries noted by caller)."""
    allowed, sums = [], {}
    for call, cap in noted:
        total = sa.select(sa.func.coalesce(sa.func.sum(calls.c.queries), 0)).where(
            calls.c.caller == call.caller
        )
        sums[call.caller] = int(connection.execute(total).scalar_one())
        allowed.append(call.queries == 0 or cap is None or sums[call.caller] + call.queries <= cap)
        if allowed[-1] and call.queries:
            connection.execute(calls.insert(), vars(call))
            event_times.note(
                connection, event_times.CHARGED, call.queries, call.caller, call.position
            )
            sums[call.caller] += call.queries
    return allowed, sums
