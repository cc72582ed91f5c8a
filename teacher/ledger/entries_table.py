"""The public tables of a ledger: its entries, and its head, the last entry's number and hash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import sqlalchemy as sa

from ...wall.messages import canonical_json
from .database import ENTRIES, HEAD
from .state import GENESIS_PREV

metadata = sa.MetaData()
entries = sa.Table(
    ENTRIES,
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("prev", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
)
head = sa.Table(
    HEAD,
    metadata,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
)

PAGE = 1000  # entries that are read together

# Made once: to build a statement takes longer than to run it.
AFTER = (
    sa.select(entries)
    .where(entries.c.seq > sa.bindparam("read"))
    .order_by(entries.c.seq)
    .limit(sa.bindparam("most"))
)
READ_HEAD = sa.select(head.c.seq, head.c.hash)
APPEND, MOVE_HEAD = entries.insert(), head.update()


def entry_hash(seq: int, kind: str, body: str, prev: str) -> str:
    """SHA-256 (hex) of an entry and of ``prev``, its predecessor's hash."""
    return hashlib.sha256(canonical_json([seq, kind, body, prev])).hexdigest()


def begin(connection: sa.Connection, text: str) -> None:
    """Create the tables with their first entry, of the body ``text``."""
    metadata.create_all(connection, checkfirst=False)
    digest = entry_hash(0, "genesis", text, GENESIS_PREV)
    row = {"seq": 0, "kind": "genesis", "body": text, "prev": GENESIS_PREV, "hash": digest}
    connection.execute(entries.insert(), row)
    connection.execute(head.insert(), {"one": 1, "seq": 0, "hash": digest})


def page_after(
    connection: sa.Connection, seq: int, limit: int | None = None
) -> Sequence[sa.Row[tuple[int, str, str, str, str]]]:
    """Up to ``limit`` entries (PAGE if None) after entry ``seq``, in order."""
    return connection.execute(AFTER, {"read": seq, "most": limit or PAGE}).all()
