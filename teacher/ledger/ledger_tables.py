"""The tables of a ledger, and the statements that read and write them in an open transaction.

Public, in every export: `entries` and `head`, the number and hash of the last entry, and
`extractors`, the fields of each extractor that an entry names by its hash. A row of `extractors` is
canonical JSON, written in the transaction of the first entry that names it, and never changed. The
chain covers the hash and the hash covers the fields. So a row that is missing or changed is
refused, and no other row can take its place.

Private, in no export: `private`, the individual budgets (individual_budgets.py), `nonces`, by which
an anchor knows this copy (anchor.py), so an export never passes for the ledger; `updates`
(records/record_updates.py); `row_names` (records/row_names.py); and `event_times`, when queries
were charged and records changed. The entries carry no time of day, since a time can depend on
private work; those of `event_times` are in no log, metric or reply to an analyst. A row is written
in the transaction of its event.
"""

import hashlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from ...wall.errors import LedgerMismatch
from .state import GENESIS_PREV, entry_hash


def table(name: str, metadata: sa.MetaData, key: str, **columns: type) -> sa.Table:
    """A table whose ``key`` is a number, unless it is among the ``columns``."""
    kinds = {key: columns.pop(key, sa.Integer), **columns}
    every: list[sa.Column[Any]] = [
        sa.Column(column, kind, primary_key=column == key, autoincrement=False, nullable=False)
        for column, kind in kinds.items()
    ]
    return sa.Table(name, metadata, *every)


metadata = sa.MetaData()  # of the public tables
records_metadata = sa.MetaData()  # of the custodian's
entries = table("entries", metadata, "seq", kind=sa.Text, body=sa.Text, prev=sa.Text, hash=sa.Text)
head = table("head", metadata, "one", seq=sa.Integer, hash=sa.Text)
extractors = table("extractors", metadata, "sha256", sha256=sa.Text, fields=sa.Text)
private = table(
    "private",
    sa.MetaData(),
    "position",
    kind=sa.Text,
    slot=sa.Integer,
    batch=sa.Integer,
    body=sa.LargeBinary,
)
event_times = sa.Table(
    "event_times",
    records_metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("time", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("caller", sa.Text),
    sa.Column("position", sa.Integer),
    sa.Column("slot", sa.Integer),
)
CHARGED, ADDED, REMOVED = "charged", "added", "removed"
DAY = 86_400  # seconds

PAGE = 1000  # entries that are read together

# Made once: to build a statement takes longer than to run it.
AFTER = (
    sa.select(entries)
    .where(entries.c.seq > sa.bindparam("read"))
    .order_by(entries.c.seq)
    .limit(sa.bindparam("most"))
)
HASH_OF = sa.select(entries.c.hash).where(entries.c.seq == sa.bindparam("seq"))
READ_HEAD = sa.select(head.c.seq, head.c.hash)
APPEND, MOVE_HEAD = entries.insert(), head.update()


def begin(connection: sa.Connection, text: str) -> None:
    """Create the public tables with their first entry, of the body ``text``."""
    metadata.create_all(connection, checkfirst=False)
    connection.execute(head.insert(), {"one": 1, "seq": -1, "hash": GENESIS_PREV})
    digest = entry_hash(0, "genesis", text, GENESIS_PREV)
    append(connection, 0, "genesis", text, GENESIS_PREV, digest)


def append(
    connection: sa.Connection, seq: int, kind: str, body: str, prev: str, digest: str
) -> None:
    """Write an entry, and the head."""
    row = {"seq": seq, "kind": kind, "body": body, "prev": prev, "hash": digest}
    connection.execute(APPEND, row)
    connection.execute(MOVE_HEAD, {"seq": seq, "hash": digest})


def page_after(
    connection: sa.Connection, seq: int
) -> Sequence[sa.Row[tuple[int, str, str, str, str]]]:
    """Entries after entry ``seq``, in order, PAGE at most."""
    return connection.execute(AFTER, {"read": seq, "most": PAGE}).all()


def read_public(connection: sa.Connection) -> tuple[tuple[int, str], list[dict[str, object]]]:
    """((number and hash of the newest entry), the extractors, by hash)."""
    seq, digest = connection.execute(READ_HEAD).one()
    by_hash = sa.select(extractors).order_by(extractors.c.sha256)
    return (seq, digest), [dict(row._mapping) for row in connection.execute(by_hash)]


def require_extractors(connection: sa.Connection, named: Iterable[str]) -> None:
    """Raise LedgerMismatch unless the fields of each named extractor are stored unchanged."""
    for sha256 in named:
        chosen = sa.select(extractors.c.fields).where(extractors.c.sha256 == sha256)
        text = connection.execute(chosen).scalar()
        if type(text) is not str or hashlib.sha256(text.encode()).hexdigest() != sha256:
            raise LedgerMismatch(
                f"the extractor {sha256} that the ledger names is missing beside its entries, or "
                "was changed. Restore the table `extractors`; nothing was charged or drawn."
            )


def note_event(connection: sa.Connection, kind: str, size: int, **charge: object) -> None:
    """Write down an event at the present time, in seconds since 1970; nothing where ``size`` is 0.

    ``size``: a count, of new queries about to be CHARGED, of records ADDED, or of ids named to be
    REMOVED. ``charge``: its caller, position (number of the newest entry before it) and slot.
    """
    if size:
        row = {"time": int(time.time()), "kind": kind, "size": size, **charge}
        connection.execute(event_times.insert(), row)


def events(
    connection: sa.Connection, *kinds: str, newest: int | None = None, caller: str | None = None
) -> list[sa.Row[Any]]:
    """Events of these kinds, in order: all or the ``newest``, of all callers or of one. Private."""
    chosen = sa.select(event_times).where(event_times.c.kind.in_(kinds))
    if caller is not None:
        chosen = chosen.where(event_times.c.caller == caller)
    rows = connection.execute(chosen.order_by(event_times.c.number.desc()).limit(newest)).all()
    return [*reversed(rows)]


def charged_by_day(connection: sa.Connection, since: int) -> list[tuple[int, str, int]]:
    """(day, caller, new queries) of each day that begins at ``since`` or later. Private.

    Days are those of UTC, counted from 1970; ``since`` is in seconds.
    """
    day = event_times.c.time // sa.literal_column(str(DAY))  # one expression, also to PostgreSQL
    total = sa.func.sum(event_times.c.size)
    chosen = sa.select(day, event_times.c.caller, total).group_by(day, event_times.c.caller)
    kind = event_times.c.kind == CHARGED
    rows = connection.execute(chosen.where(kind, event_times.c.time >= since))
    return [(int(at), str(caller), int(queries)) for at, caller, queries in rows]
