"""A stored ledger: its transactions, each under its anchor where it has one, and what is read in
them by any thread. anchor.py explains the order of the two stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from ...wall.errors import LedgerMismatch
from . import tables
from .anchor import Anchor, LockedAnchor
from .database import Database, Place, write_file

T = TypeVar("T")
REPLACED = "the ledger was replaced by another one while it was copied."


@dataclass
class Transaction:
    """An open transaction. Read through ``connection``, write through ``writing()``."""

    connection: sa.Connection
    anchor: LockedAnchor | None
    written: bool = False

    def writing(self) -> sa.Connection:
        """The connection, for a change that the anchor follows.

        Raises LedgerMismatch where the ledger has an anchor that this program was not given.
        """
        if not self.written and self.anchor is None and tables.read_nonces(self.connection)[0]:
            raise LedgerMismatch(
                "the ledger has an anchor, which was not named. Name it (`anchor`): without it, "
                "two copies of the ledger could both answer. Nothing was charged or drawn."
            )
        self.written = True
        return self.connection


class StoredLedger:
    """The tables of one ledger. Neither reads nor changes a state in memory."""

    def __init__(self, database: Database, anchor: Place | None) -> None:
        self._database, self._anchor = database, Anchor(anchor) if anchor else None
        self._with_write: Callable[[sa.Connection], None] | None = None

    @property
    def anchor_begun(self) -> int | None:
        """Number of the newest entry when this object created the anchor, None where it existed."""
        return self._anchor.begun if self._anchor else None

    @contextmanager
    def with_next_write(self, work: Callable[[sa.Connection], None]) -> Iterator[None]:
        """Within, the first transaction that writes runs ``work`` at its end.

        Both are stored or neither: what ``work`` raises undoes the transaction.
        """
        self._with_write = work
        try:
            yield
        finally:
            self._with_write = None

    def in_custody(self, work: Callable[[sa.Connection], T], purged: str | None = None) -> T:
        """Run ``work`` on the private tables beside the entries, in one durable transaction.

        Nothing of these tables is exported. ``purged``: a table whose deleted rows are erased from
        the database's files, too.
        """
        with self._open() as transaction:
            result = work(transaction.connection)
        if purged is not None:
            self._database.purge(purged)
        return result

    def export(self, path: Path) -> None:
        """Write the auditors' copy: every entry, nothing private, in an SQLite file whose bytes are
        a function of the entries.

        The newest entry is read in a transaction, so it is anchored. The others pass through memory
        page by page, in plain reads that keep no writer waiting: they never change, what comes
        after that entry is left out, and the last one must have its hash.
        """
        with self._open() as transaction:
            read = transaction.connection.execute
            heads = [dict(row) for row in read(sa.select(tables.head)).mappings()]
            by_hash = sa.select(tables.extractors).order_by(tables.extractors.c.sha256)
            extractors = [dict(row) for row in read(by_hash).mappings()]

        def copy(target: sa.Connection) -> None:
            tables.metadata.create_all(target)
            last = None
            for page in self._pages(heads[0]["seq"]):
                target.execute(tables.APPEND, page)
                last = page[-1]["hash"]
            if last != heads[0]["hash"]:
                raise LedgerMismatch(REPLACED)
            target.execute(tables.head.insert(), heads)
            if extractors:
                target.execute(tables.extractors.insert(), extractors)

        write_file(path, copy)

    def _pages(self, newest: int) -> Iterator[list[dict[str, object]]]:
        """The entries up to ``newest``, in order."""
        last = -1
        while last < newest:
            with self._database.reading() as connection:
                rows = tables.page_after(connection, last)
            if not rows:
                raise LedgerMismatch(REPLACED)
            yield [dict(row._mapping) for row in rows if row.seq <= newest]
            last = rows[-1].seq

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _open(self) -> Iterator[Transaction]:
        """An exclusive, durable transaction; what it wrote is committed and anchored on exit.

        What it read is anchored, too: where an entry's writer died before it moved the anchor, the
        anchor is moved first. Otherwise something could be sent that another copy may still
        replace. Raises LedgerMismatch, before anything is written, where the anchor does not let
        this ledger continue.
        """
        with ExitStack() as until_moved:
            with self._database.transaction() as connection:
                anchor = None
                if self._anchor is not None:
                    anchor = until_moved.enter_context(self._anchor.locked(connection))
                transaction = Transaction(connection, anchor)
                yield transaction
                if transaction.written and self._with_write is not None:
                    work, self._with_write = self._with_write, None
                    work(connection)
                if transaction.written and anchor is not None:
                    anchor.take_nonce(connection)
            if anchor is not None:
                anchor.move()
