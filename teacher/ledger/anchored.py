"""The transactions of a ledger, each under the ledger's anchor where it has one. Why that order: anchor.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from labelwall.teacher.ledger.anchor import Anchor, Position, new_turn
from labelwall.teacher.ledger.anchor_store import Held
from labelwall.teacher.ledger.database import ENTRIES, HEAD, Database
from labelwall.wall.errors import LedgerMismatch

entries = sa.table(ENTRIES, sa.column("seq"), sa.column("hash"))
head = sa.table(HEAD, sa.column("seq"), sa.column("hash"))
metadata = sa.MetaData()
turns = sa.Table(  # private: no export holds it, so no copy of an export passes for the ledger
    "turns",
    metadata,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("turn", sa.Text, nullable=False),
    sa.Column("before", sa.Text, nullable=False),
)


@dataclass
class Step:
    """An open transaction. ``connection``: for reading; ``writing()``: for writing."""

    connection: sa.Connection
    anchored: bool
    written: bool = False

    def writing(self) -> sa.Connection:
        """The connection, for a change that must stand under the anchor. Raises LedgerMismatch where it was left out."""
        if not self.written and not self.anchored and stored_turn(self.connection) is not None:
            raise LedgerMismatch(
                "the ledger has an anchor, which was not named. Name it (`anchor`): without it, two copies of the ledger could "
                "both answer. Nothing was charged or drawn."
            )
        self.written = True
        return self.connection


class Anchored:
    """The transactions of one stored ledger. ``anchor``: its anchor, None for a ledger without one."""

    def __init__(self, database: Database, anchor: Anchor | None) -> None:
        self._database, self._anchor = database, anchor

    @contextmanager
    def transaction(self) -> Iterator[Step]:
        """An exclusive, durable transaction, under the anchor. What it wrote is committed and anchored when this ends.

        What it read is anchored, too: an entry whose writer died before it moved the anchor is anchored here first, so that
        nothing leaves on whose place another copy could still put something else. Raises LedgerMismatch, before anything is
        written, where the anchor does not let this ledger go on.
        """
        with ExitStack() as until_moved:
            with self._database.transaction() as connection:
                step, moved = Step(connection, self._anchor is not None), None
                if self._anchor is not None:
                    here = position(connection)
                    slot = until_moved.enter_context(self._anchor.hold(here))
                yield step
                if self._anchor is not None and step.written:
                    moved = take_turn(connection, here.newest.turn)
            if moved is not None:
                slot.write(moved)


def position(connection: sa.Connection) -> Position:
    """Where the stored ledger stands, in an open transaction."""

    def hash_of(seq: int) -> str | None:
        return connection.execute(sa.select(entries.c.hash).where(entries.c.seq == seq)).scalar()

    seq, digest = connection.execute(sa.select(head.c.seq, head.c.hash)).one()
    turn, before = stored_turn(connection) or ("", "")
    return Position(Held(seq, digest, turn), before, hash_of)


def stored_turn(connection: sa.Connection) -> tuple[str, str] | None:
    """The ledger's last turn under an anchor, and the one before; None for a ledger that had none."""
    if not sa.inspect(connection).has_table(turns.name):
        return None
    row = connection.execute(sa.select(turns.c.turn, turns.c.before)).one()
    return row.turn, row.before


def take_turn(connection: sa.Connection, before: str) -> Held:
    """Store a new turn after ``before`` ("" for none): where the ledger stands once the transaction is committed."""
    turn = new_turn()
    row = {"one": 1, "turn": turn, "before": before}
    if before:
        connection.execute(turns.update(), row)
    else:
        metadata.create_all(connection, checkfirst=False)
        connection.execute(turns.insert(), row)
    seq, digest = connection.execute(sa.select(head.c.seq, head.c.hash)).one()
    return Held(seq, digest, turn)
