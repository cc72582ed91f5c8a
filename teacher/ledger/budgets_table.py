"""The private table of per-record payments, next to the ledger's entries in one SQLite file; never exported."""

from __future__ import annotations

import sqlalchemy as sa

from labelwall.teacher.ledger.individual_budgets import Accounts, Row

private_metadata = sa.MetaData()
private = sa.Table(
    "private",
    private_metadata,
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("slot", sa.Integer, nullable=False),
    sa.Column("batch", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)


def replay(connection: sa.Connection, accounts: Accounts) -> None:
    """Take in the rows that ``accounts`` has not seen. Raises LedgerMismatch where they do not fit."""
    if accounts.position == 0 and not sa.inspect(connection).has_table(private.name):
        return
    newer = (
        sa.select(private)
        .where(private.c.position > accounts.position)
        .order_by(private.c.position)
    )
    for row in connection.execute(newer):
        accounts.apply(row.position, (row.kind, row.slot, row.batch, row.body))


def keep(connection: sa.Connection, accounts: Accounts, row: Row) -> None:
    """Apply a row and append it, inside an open transaction."""
    if accounts.position == 0:
        private_metadata.create_all(connection)
    accounts.apply(accounts.position + 1, row)
    kind, slot, batch, body = row
    values = {
        "position": accounts.position,
        "kind": kind,
        "slot": slot,
        "batch": batch,
        "body": body,
    }
    connection.execute(private.insert(), values)


def compact(connection: sa.Connection, accounts: Accounts, slot: int) -> None:
    """Write a slot's snapshot and delete the rows it stands for, so that neither the file nor a
    replay grows with answers. Open reservations are written anew after it: their batches still pay in
    their place.
    """
    before = accounts.position
    for row in accounts.snapshot(slot):
        keep(connection, accounts, row)
    earlier = (private.c.slot == slot) & (private.c.position <= before)
    connection.execute(private.delete().where(earlier))
