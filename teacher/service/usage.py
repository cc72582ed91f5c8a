"""Usage by caller: a private table in the ledger's file, written before each charge.

The table is never exported. Per-key caps are enforced here. A crash between the note and the charge
leaves the note, so a caller reaches its own cap that much earlier. What the data set has spent is
recorded by the ledger alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from labelwall.teacher.ledger import event_times
from labelwall.teacher.ledger.ledger import Ledger

metadata = sa.MetaData()
calls = sa.Table(
    "calls",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("caller", sa.Text, nullable=False),
    sa.Column("slot", sa.Integer, nullable=False),
    sa.Column("queries", sa.Integer, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
)


@dataclass(frozen=True)
class Call:
    """A note that ``caller`` is about to be charged for ``queries`` new queries of ``slot``.

    ``position``: the ledger's newest entry at that time.
    """

    caller: str
    slot: int
    queries: int
    position: int


class Usage:
    """The table of one ledger. ``charged``: caller -> new queries noted so far."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.charged: Counter[str] = Counter()
        ledger.in_custody(metadata.create_all)
        for call in self.calls():
            self.charged[call.caller] += call.queries

    def note(self, requested: Sequence[tuple[Call, int | None]]) -> list[bool]:
        """Note calls durably before they are charged. Returns which fit their cap (None: no cap).

        Check and note are one transaction, so notes of other processes in the same ledger count. A
        call without new queries always fits and is not noted.
        """
        if not any(call.queries for call, _ in requested):
            return [True] * len(requested)
        allowed, totals = self._ledger.in_custody(lambda connection: _note(connection, requested))
        for caller, total in totals.items():
            self.charged[caller] = total
        return allowed

    def calls(self, caller: str | None = None, newest: int | None = None) -> list[Call]:
        """The ``newest`` calls (None: all), oldest first, of one ``caller`` or of all."""
        chosen = sa.select(calls).order_by(calls.c.number.desc()).limit(newest)
        if caller is not None:
            chosen = chosen.where(calls.c.caller == caller)
        rows = self._ledger.in_custody(lambda connection: connection.execute(chosen).all())
        return [Call(row.caller, row.slot, row.queries, row.position) for row in reversed(rows)]


def _note(
    connection: sa.Connection, requested: Sequence[tuple[Call, int | None]]
) -> tuple[list[bool], dict[str, int]]:
    """(which calls fit their cap, new queries noted by caller)."""
    allowed: list[bool] = []
    totals: dict[str, int] = {}
    for call, cap in requested:
        total = sa.select(sa.func.coalesce(sa.func.sum(calls.c.queries), 0)).where(
            calls.c.caller == call.caller
        )
        totals[call.caller] = int(connection.execute(total).scalar_one())
        fits = call.queries == 0 or cap is None or totals[call.caller] + call.queries <= cap
        allowed.append(fits)
        if fits and call.queries:
            connection.execute(calls.insert(), vars(call))
            event_times.note(
                connection, event_times.CHARGED, call.queries, call.caller, call.position
            )
            totals[call.caller] += call.queries
    return allowed, totals
