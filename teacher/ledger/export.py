"""The auditors' copy of a ledger: every entry, nothing private."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from ...wall.errors import LedgerMismatch
from .database import write_file
from .tables import APPEND, extractors, head, metadata, page_after
from .transaction import Transactions

REPLACED = "the ledger was replaced by another one while it was copied."


def export(ledger: Transactions, path: Path) -> None:
    """Write an SQLite file whose bytes are a function of the entries.

    The newest entry is read in a transaction, so it is anchored. The others pass through memory
    page by page, in plain reads that keep no writer waiting: they never change, what comes after
    that entry is left out, and the last one must have its hash.
    """
    with ledger.open() as transaction:
        read = transaction.connection.execute
        heads = [dict(row) for row in read(sa.select(head)).mappings()]
        by_hash = sa.select(extractors).order_by(extractors.c.sha256)
        named = [dict(row) for row in read(by_hash).mappings()]

    def copy(target: sa.Connection) -> None:
        metadata.create_all(target)
        last = None
        for page in pages(ledger, heads[0]["seq"]):
            target.execute(APPEND, page)
            last = page[-1]["hash"]
        if last != heads[0]["hash"]:
            raise LedgerMismatch(REPLACED)
        target.execute(head.insert(), heads)
        if named:
            target.execute(extractors.insert(), named)

    write_file(path, copy)


def pages(ledger: Transactions, newest: int) -> Iterator[list[dict[str, object]]]:
    """The entries up to ``newest``, in order."""
    read = -1
    while read < newest:
        with ledger.reading() as connection:
            rows = page_after(connection, read)
        if not rows:
            raise LedgerMismatch(REPLACED)
        yield [dict(row._mapping) for row in rows if row.seq <= newest]
        read = rows[-1].seq
