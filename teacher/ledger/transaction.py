"""A ledger's transactions, each under its anchor where it has one, and what they have committed
before anything is drawn: charges and reservations. anchor.py explains the order of the two stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import sqlalchemy as sa

from ...wall.errors import LedgerMismatch
from . import tables
from .anchor import Anchor, Position, new_nonce
from .anchor_store import AnchoredEntry
from .database import Database
from .individual_budgets import Payments

# (identities granted, int64 [n_records] remaining units) -> what to reserve
UpperBound = Callable[[tuple[str, ...], np.ndarray], Payments]


@dataclass(frozen=True)
class Charge:
    """A committed charge, or the prepaid one that a reservation draws under: entry ``seq``.

    ``granted``: the identities that it pays for, in request order; none of them is answered yet.
    Where there are none, nothing is charged and nothing reserved. ``count``: releases that it added
    to what is spent, 0 where a prepaid release was charged before.
    """

    seq: int
    granted: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Reservation(Charge):
    """A committed reservation under a prepaid charge.

    ``remaining``: int64 [n_records] units that the records had before this reservation.
    ``token``: names the reservation when the exact payments replace it.
    """

    remaining: np.ndarray = field(repr=False)
    token: bytes = field(repr=False)


@dataclass
class Transaction:
    """An open transaction. Read through ``connection``, write through ``writing()``."""

    connection: sa.Connection
    anchored: bool
    written: bool = False

    def writing(self) -> sa.Connection:
        """The connection, for a change that the anchor follows.

        Raises LedgerMismatch where the ledger has an anchor that this program was not given.
        """
        if not self.written and not self.anchored and tables.read_nonces(self.connection)[0]:
            raise LedgerMismatch(
                "the ledger has an anchor, which was not named. Name it (`anchor`): without it, "
                "two copies of the ledger could both answer. Nothing was charged or drawn."
            )
        self.written = True
        return self.connection


class Transactions:
    """The transactions of one stored ledger. ``anchor``: None for a ledger without one."""

    def __init__(self, database: Database, anchor: Anchor | None) -> None:
        self._database, self._anchor = database, anchor
        self._with_write: Callable[[sa.Connection], None] | None = None
        self.reading = database.reading

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

    @contextmanager
    def open(self) -> Iterator[Transaction]:
        """An exclusive, durable transaction; what it wrote is committed and anchored on exit.

        What it read is anchored, too: where an entry's writer died before it moved the anchor, the
        anchor is moved first. Otherwise something could be sent that another copy may still
        replace. Raises LedgerMismatch, before anything is written, where the anchor does not let
        this ledger continue.
        """
        with ExitStack() as until_moved:
            with self._database.transaction() as connection:
                transaction, moved = Transaction(connection, self._anchor is not None), None
                if self._anchor is not None:
                    position = stored_position(connection)
                    anchor = until_moved.enter_context(self._anchor.locked(position))
                yield transaction
                if transaction.written and self._with_write is not None:
                    work, self._with_write = self._with_write, None
                    work(connection)
                if self._anchor is not None and transaction.written:
                    moved = take_nonce(connection, position.newest.nonce)
            if moved is not None:
                anchor.write(moved)


def stored_position(connection: sa.Connection) -> Position:
    """The stored ledger's position."""

    def hash_of(seq: int) -> str | None:
        return connection.execute(tables.HASH_OF, {"seq": seq}).scalar()

    seq, digest = connection.execute(tables.READ_HEAD).one()
    nonce, previous = tables.read_nonces(connection)
    return Position(AnchoredEntry(seq, digest, nonce), previous, hash_of)


def take_nonce(connection: sa.Connection, previous: str) -> AnchoredEntry:
    """Store a new nonce after ``previous`` ("" for none).

    Returns what the anchor has to store once the transaction is committed.
    """
    nonce = new_nonce()
    tables.write_nonce(connection, nonce, previous)
    seq, digest = connection.execute(tables.READ_HEAD).one()
    return AnchoredEntry(seq, digest, nonce)
