"""Event times: when queries were charged and records changed, for the custodian alone.

The ledger's entries are public and carry no time of day, since a time can depend on private work.
This table is private: it is in no export, no reply to an analyst, no log and no metric. A row is
written in the transaction of the event that it describes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa

CHARGED, ADDED, REMOVED = "charged", "added", "removed"
metadata = sa.MetaData()
event_times = sa.Table(
    "event_times",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("time", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("caller", sa.Text),
    sa.Column("position", sa.Integer),
)


@dataclass(frozen=True)
class EventTime:
    """An event and its time. Private.

    ``time``: seconds since 1970, UTC. ``size``: a count, of new queries about to be CHARGED to
    ``caller``, of records ADDED, or of ids named to be REMOVED. ``position``: sequence number of
    the ledger's newest entry before a charge.
    """

    time: int
    kind: str
    size: int
    caller: str | None = None
    position: int | None = None


def note(
    connection: sa.Connection,
    kind: str,
    size: int,
    caller: str | None = None,
    position: int | None = None,
    *,
    new_table: bool = True,
) -> None:
    """Write down an event at the present time; nothing where ``size`` is 0.

    ``new_table``: whether the table may not exist yet. Looking for it takes longer than writing.
    """
    if size:
        if new_table:
            metadata.create_all(connection)
        row = vars(EventTime(int(time.time()), kind, size, caller, position))
        connection.execute(event_times.insert(), row)


def listed(connection: sa.Connection, *kinds: str, newest: int | None = None) -> list[EventTime]:
    """Events of these kinds, in order: all of them, or the ``newest``."""
    if not sa.inspect(connection).has_table(event_times.name):
        return []
    chosen = sa.select(event_times).where(event_times.c.kind.in_(kinds))
    rows = connection.execute(chosen.order_by(event_times.c.number.desc()).limit(newest)).all()
    return [
        EventTime(row.time, row.kind, row.size, row.caller, row.position) for row in reversed(rows)
    ]
