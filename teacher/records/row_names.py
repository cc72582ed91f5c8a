"""How private rows are told apart, noted beside the ledger, since budgets and removals go by ids.

A row without an id has its number in the file as one. If such rows changed places, a record would
get another one's budget, and a removed record would vote again; so would all, if a file got a
column of ids, or lost it, or if images were told apart with their suffixes and are without them.
"""

import hashlib

import sqlalchemy as sa

from ...wall.errors import LedgerMismatch
from ..ledger import ledger_tables
from . import record_updates
from .private_records import Records

NAMES = sa.Table(
    "row_names",
    ledger_tables.records_metadata,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("names", sa.Text, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),  # those that the digest is of: lower ids
    sa.Column("digest", sa.Text, nullable=False),
)
CURE = (
    "Restore the files, or take another custodian_dir, with a budget of its own, and rows with ids "
    "(data.id; private_id of arrays)."
)


def require_names(connection: sa.Connection, names: str, budgets: bool) -> None:
    """Note what ids are made of, ``Records.names``.

    ``budgets``: whether records have budgets of their own, by id. Raises LedgerMismatch if it was
    something else when ids came into use.
    """
    ledger_tables.records_metadata.create_all(connection)
    stored = connection.execute(sa.select(NAMES)).one_or_none()
    if stored is not None and stored.names == names:
        return
    if stored is not None and _in_use(connection, budgets):
        raise LedgerMismatch(
            f"private rows were told apart by their {stored.names}, and are by their {names} now. "
            f"Budgets and removals go by these. {CURE}"
        )
    _note(connection, names, 0, "")


def require_places(connection: sa.Connection, records: Records, budgets: bool) -> None:
    """Note which rows have which numbers, if numbers are their ids. More may follow later.

    Raises LedgerMismatch if the rows that were noted when ids came into use are others now. No text
    tells which. ``budgets``: as of ``require_names``, which has to be called first.
    """
    if records.marks is None:
        return
    stored = connection.execute(sa.select(NAMES)).one()
    moved = stored.rows and _digest(records, stored.rows) != stored.digest
    if moved and _in_use(connection, budgets):
        raise LedgerMismatch(
            "the private rows have no ids, so budgets and removals go by their numbers, and these "
            f"are other rows than before. {CURE}"
        )
    rows = int(records.ids.max(initial=-1)) + 1
    if moved or rows > stored.rows:
        _note(connection, records.names, rows, _digest(records, rows))


def _in_use(connection: sa.Connection, budgets: bool) -> bool:
    return budgets or any(record_updates.counts(connection))


def _note(connection: sa.Connection, names: str, rows: int, digest: str) -> None:
    noted = {"one": 1, "names": names, "rows": rows, "digest": digest}
    connection.execute(NAMES.delete())
    connection.execute(NAMES.insert(), noted)


def _digest(records: Records, rows: int) -> str:
    """A digest of the numbered rows whose numbers are below ``rows``."""
    assert records.marks is not None
    first = records.ids < rows
    columns = records.ids[first], records.marks[first]
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()
