"""A ledger's transactions, each under its anchor where it has one. anchor.py explains the order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from ...wall.errors import LedgerMismatch
from .anchor import Anchor, Position, new_turn
from .anchor_store import AnchoredEntry
from .database import ENTRIES, HEAD, Database
from .individual_budgets import Row

entries = sa.table(ENTRIES, sa.column("seq"), sa.column("hash"))
head = sa.table(HEAD, sa.column("seq"), sa.column("hash"))
metadata = sa.MetaData()
# Private: no export contains it, so no copy of an export passes for the ledger.
turns = sa.Table(
    "turns",
    metadata,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("turn", sa.Text, nullable=False),
    sa.Column("before", sa.Text, nullable=False),
)


@dataclass
class Step:
    """An open transaction. Read through ``connection``, write through ``writing()``."""

    connection: sa.Connection
    anchored: bool
    written: bool = False

    def writing(self) -> sa.Connection:
        """The connection, for a change that the anchor follows.

        Raises LedgerMismatch where the ledger has an anchor that this program was not given.
        """
        if not self.written and not self.anchored and stored_turn(self.connection) is not None:
            raise LedgerMismatch(
                "the ledger has an anchor, which was not named. Name it (`anchor`): without it, "
                "two copies of the ledger could both answer. Nothing was charged or drawn."
            )
        self.written = True
        return self.connection


@dataclass(frozen=True)
class Write:
    """What an open transaction may write.

    ``append(kind, body)``: write a public entry; returns its sequence number.
    ``name()``: name the extractor in use by the hash of its fields, unless it is the last one.
    ``append_private(row)``: write a row of the individual budgets.
    ``compact(slot)``: replace a slot's private rows by a snapshot.
    """

    append: Callable[[str, dict[str, object]], int]
    name: Callable[[], None]
    append_private: Callable[[Row], None]
    compact: Callable[[int], None]


class Anchored:
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
    def transaction(self) -> Iterator[Step]:
        """An exclusive, durable transaction; what it wrote is committed and anchored on exit.

        What it read is anchored, too: where an entry's writer died before it moved the anchor, the
        anchor is moved first. Otherwise something could be sent that another copy may still
        replace. Raises LedgerMismatch, before anything is written, where the anchor does not let
        this ledger continue.
        """
        with ExitStack() as until_moved:
            with self._database.transaction() as connection:
                step, moved = Step(connection, self._anchor is not None), None
                if self._anchor is not None:
                    position = stored_position(connection)
                    anchor = until_moved.enter_context(self._anchor.locked(position))
                yield step
                if step.written and self._with_write is not None:
                    work, self._with_write = self._with_write, None
                    work(connection)
                if self._anchor is not None and step.written:
                    moved = take_turn(connection, position.newest.turn)
            if moved is not None:
                anchor.write(moved)


def stored_position(connection: sa.Connection) -> Position:
    """The stored ledger's position, read in an open transaction."""

    def hash_of(seq: int) -> str | None:
        return connection.execute(sa.select(entries.c.hash).where(entries.c.seq == seq)).scalar()

    seq, digest = connection.execute(sa.select(head.c.seq, head.c.hash)).one()
    turn, previous = stored_turn(connection) or ("", "")
    return Position(AnchoredEntry(seq, digest, turn), previous, hash_of)


def stored_turn(connection: sa.Connection) -> tuple[str, str] | None:
    """(last turn, turn before it), None for a ledger that never had an anchor."""
    if not sa.inspect(connection).has_table(turns.name):
        return None
    row = connection.execute(sa.select(turns.c.turn, turns.c.before)).one()
    return row.turn, row.before


def take_turn(connection: sa.Connection, previous: str) -> AnchoredEntry:
    """Store a new turn after ``previous`` ("" for none).

    Returns what the anchor has to store once the transaction is committed.
    """
    turn = new_turn()
    row = {"one": 1, "turn": turn, "before": previous}
    if previous:
        connection.execute(turns.update(), row)
    else:
        metadata.create_all(connection, checkfirst=False)
        connection.execute(turns.insert(), row)
    seq, digest = connection.execute(sa.select(head.c.seq, head.c.hash)).one()
    return AnchoredEntry(seq, digest, turn)
