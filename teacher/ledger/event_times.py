"""When something happened: a private table beside the ledger's entries, for the custodian's eyes alone.

The entries keep no time of day, since a time can depend on private work, and they are public. This table is not: it is in no
export, no reply to an analyst, no log and no metric. It is written in the transaction of what it tells of.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import sqlalchemy as sa

CHARGED, ADDED, REMOVED = "charged", "added", "removed"
moments_metadata = sa.MetaData()
moments = sa.Table(
    "moments",
    moments_metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("time", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("caller", sa.Text),
    sa.Column("position", sa.Integer),
)


@dataclass(frozen=True)
class Moment:
    """At ``time`` (seconds since 1970, UTC) so many new queries were about to be CHARGED to a caller, when the ledger's newest
    entry was ``position``; or so many records were ADDED, or ids named to be REMOVED. Private."""

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
) -> None:
    """Write down that something happens now, unless it is nothing."""
    if size:
        moments_metadata.create_all(connection)
        connection.execute(
            moments.insert(), vars(Moment(int(time.time()), kind, size, caller, position))
        )


def listed(connection: sa.Connection, *kinds: str, newest: int | None = None) -> list[Moment]:
    """What happened of these kinds, in order; the ``newest`` so many, or all."""
    if not sa.inspect(connection).has_table(moments.name):
        return []
    chosen = (
        sa.select(moments)
        .where(moments.c.kind.in_(kinds))
        .order_by(moments.c.number.desc())
        .limit(newest)
    )
    found = connection.execute(chosen).all()
    return [
        Moment(row.time, row.kind, row.size, row.caller, row.position) for row in reversed(found)
    ]
