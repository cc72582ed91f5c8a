"""How private rows are told apart, noted beside the ledger, since budgets and removals go by ids.

A row without an id has its number in the file as one. If such rows changed places, a record would
get another one's budget, and a removed record would vote again; so would all, if a file got a
column of ids, or lost it.
"""

import hashlib

import numpy as np
import sqlalchemy as sa

from ...wall.errors import LedgerMismatch
from ..ledger import ledger_tables
from . import record_updates
from .private_records import Records

NAMES = sa.Table(
    "row_names",
    ledger_tables.records_metadata,
    sa.Column("numbered", sa.Boolean, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),  # those that the digest is of: lower ids
    sa.Column("digest", sa.Text, nullable=False),
)
CURE = (
    "Restore the file, or take another custodian_dir, with a budget of its own, and a file with a "
    "column of ids (data.id; private_id of arrays)."
)


def require_same(connection: sa.Connection, records: Records, budgets: bool) -> None:
    """Note how the data source's rows are told apart, as they are now.

    ``budgets``: whether records have budgets of their own, by id. Raises LedgerMismatch if they
    were told apart otherwise when ids came into use, or if a numbered row is another one than then.
    No text tells which. More rows may follow the numbered ones.
    """
    ledger_tables.records_metadata.create_all(connection)
    stored = connection.execute(sa.select(NAMES)).one_or_none()
    in_use = budgets or any(record_updates.counts(connection))
    if stored is not None and in_use:
        if stored.numbered != records.numbered:
            raise LedgerMismatch(
                "the private rows had no ids and have some now, or had some and have none. Budgets "
                f"and removals go by ids. {CURE}"
            )
        if _digest(records, stored.rows) != stored.digest:
            raise LedgerMismatch(
                "the private rows have no ids, so budgets and removals go by their places, and "
                f"these are no longer the same rows, or are read in another way. {CURE}"
            )
    rows = int(records.ids.max(initial=-1)) + 1 if records.numbered else 0
    noted = {"numbered": records.numbered, "rows": rows, "digest": _digest(records, rows)}
    if stored is None or stored._asdict() != noted:
        connection.execute(NAMES.delete())
        connection.execute(NAMES.insert(), noted)


def _digest(records: Records, rows: int) -> str:
    """A digest of the numbered rows whose numbers are below ``rows``."""
    first = records.take(np.flatnonzero(records.ids < rows))
    digest = hashlib.sha256(f"{first.inputs.dtype}{first.inputs.shape[1:]}".encode())
    for column in (first.ids, first.labels, first.inputs) if records.numbered else ():
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
