"""The private table of individual budgets, beside the ledger's entries; never exported."""

from __future__ import annotations

import sqlalchemy as sa

from .individual_budgets import IndividualBudgets, Row

metadata = sa.MetaData()
private = sa.Table(
    "private",
    metadata,
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("slot", sa.Integer, nullable=False),
    sa.Column("batch", sa.Integer, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)


def replay(connection: sa.Connection, budgets: IndividualBudgets) -> None:
    """Apply the rows that ``budgets`` has not seen. Raises LedgerMismatch as ``apply``."""
    if budgets.position == 0 and not sa.inspect(connection).has_table(private.name):
        return
    newer = sa.select(private).where(private.c.position > budgets.position)
    for row in connection.execute(newer.order_by(private.c.position)):
        budgets.apply(row.position, (row.kind, row.slot, row.batch, row.body))


def append(connection: sa.Connection, budgets: IndividualBudgets, row: Row) -> None:
    """Apply a row and write it, inside an open transaction."""
    if budgets.position == 0:
        metadata.create_all(connection)
    budgets.apply(budgets.position + 1, row)
    kind, slot, batch, body = row
    connection.execute(
        private.insert(),
        {"position": budgets.position, "kind": kind, "slot": slot, "batch": batch, "body": body},
    )


def compact(connection: sa.Connection, budgets: IndividualBudgets, slot: int) -> None:
    """Write a slot's snapshot and delete the rows that it replaces.

    So neither the file nor a replay grows with the answers. Open reservations are written again
    after the snapshot, so that their batches can still replace them.
    """
    before = budgets.position
    for row in budgets.snapshot(slot):
        append(connection, budgets, row)
    earlier = (private.c.slot == slot) & (private.c.position <= before)
    connection.execute(private.delete().where(earlier))
