"""Event times: when queries were charged and records changed, for the custodian alone.

The ledger's entries are public and carry no time of day, since a time can depend on private work.
This table is private: it is in no export, log or metric, and its times are in no reply to an
analyst. A row is written in the transaction of the event that it describes. ``metadata`` creates
the table, with that of the records' updates.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

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
    sa.Column("slot", sa.Integer),
)


@dataclass(frozen=True)
class EventTime:
    """An event and its time. Private.

    ``time``: seconds since 1970, UTC. ``size``: a count, of new queries about to be CHARGED to
    ``caller``, of records ADDED, or of ids named to be REMOVED. ``position``: sequence number of
    the ledger's newest entry before a charge. ``slot``: the entry of the plan that pays.
    """

    time: int
    kind: str
    size: int
    caller: str | None = None
    position: int | None = None
    slot: int | None = None


def note(connection: sa.Connection, kind: str, size: int, **charge: Any) -> None:
    """Write down an event at the present time; nothing where ``size`` is 0.

    ``charge``: caller, position and slot of a charge.
    """
    if size:
        row = vars(EventTime(int(time.time()), kind, size, **charge))
        connection.execute(event_times.insert(), row)


def listed(
    connection: sa.Connection, *kinds: str, newest: int | None = None, caller: str | None = None
) -> list[EventTime]:
    """Events of these kinds, in order: all or the ``newest``, of all callers or of one."""
    chosen = sa.select(*list(event_times.c)[1:]).where(event_times.c.kind.in_(kinds))
    if caller is not None:
        chosen = chosen.where(event_times.c.caller == caller)
    rows = connection.execute(chosen.order_by(event_times.c.number.desc()).limit(newest)).all()
    return [EventTime(**row._mapping) for row in reversed(rows)]
