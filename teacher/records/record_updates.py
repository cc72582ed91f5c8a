"""Records added or removed after the data set was opened: private rows in the ledger's database.

A removed record leaves its id, a removed person also a code of that, when so many left, and nothing
else: SQLite overwrites what it frees, on PostgreSQL the table is written anew, and no digest is
kept. The data source may still hold it, as may a server's WAL and backups; they are the custodian's
to clean.
"""

from collections.abc import Mapping

import numpy as np
import sqlalchemy as sa

from ...wall.errors import InvalidInput, shape_text
from ..ledger import ledger_tables
from .embedding_cache import row_digests
from .persons import codes_in, row_ids
from .private_records import Records

TABLE = "updates"
PERSON_BYTES = 8  # of a person's code, before the input where the unit of privacy is a person
updates = sa.Table(
    TABLE,
    ledger_tables.records_metadata,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("label", sa.BigInteger),  # null: removed
    sa.Column("input", sa.LargeBinary),
)


def received(columns: Mapping[str, np.ndarray]) -> Records:
    """Records of arrays that a custodian sent: inputs, labels, ids, and persons if there are any.

    Raises InvalidInput for persons, or ids beside them, that are not whole numbers, one a row.
    """
    inputs, labels, ids = (columns[name] for name in ("inputs", "labels", "ids"))
    if "persons" not in columns:
        return Records(inputs, labels, ids)
    if ids.dtype != np.int64 or ids.shape != inputs.shape[:1]:
        raise InvalidInput("records.ids", "int64, one for each row", shape_text(ids))
    persons = codes_in("records.persons", columns["persons"], len(inputs))
    return Records(inputs, labels, row_ids(persons, ids), persons)


def present(connection: sa.Connection, base: Records, num_labels: int) -> Records:
    """The data source's records less those removed, then those added, ascending by id."""
    named, added = changes(connection, base, num_labels)
    if not len(named):
        return base
    gone = np.isin(base.ids, named) | np.isin(base.owners, named)
    return base.take(~gone).joined(added)


def changes(
    connection: sa.Connection, like: Records, num_labels: int
) -> tuple[np.ndarray, Records]:
    """(int64 [m] ids whose rows in the data source no longer count, records added), by id.

    Public rows may have other classes and columns than when a record was added. One that no longer
    fits is dropped, as one of the data source is: it must not decide whether a call fails.
    Where the unit of privacy is a person, they are of rows and of persons: all hashes.
    ``like``: records of the same form.
    """
    dtype, shape = like.inputs.dtype, like.inputs.shape[1:]
    head = 0 if like.persons is None else PERSON_BYTES
    has_any = sa.inspect(connection).has_table(TABLE)
    rows = connection.execute(sa.select(updates).order_by(updates.c.id)).all() if has_any else []
    length = head + dtype.itemsize * int(np.prod(shape))
    added = [
        row
        for row in rows
        if row.label is not None and row.label < num_labels and len(row.input) == length
    ]
    content = b"".join(row.input[head:] for row in added)
    inputs = np.frombuffer(content, dtype=dtype.newbyteorder("<")).reshape(len(added), *shape)
    labels = np.array([row.label for row in added], dtype=np.int64)
    ids = np.array([row.id for row in added], dtype=np.int64)
    named = np.array([row.id for row in rows], dtype=np.int64)
    persons = None
    if head:
        codes = b"".join(row.input[:head] for row in added)
        persons = np.frombuffer(codes, dtype="<i8").astype(np.int64)
    return named, Records(inputs.astype(dtype), labels, ids, persons)


def add(connection: sa.Connection, records: Records) -> None:
    """Write records whose ids are not present; a tombstone with the id gives way."""
    little = records.inputs.astype(records.inputs.dtype.newbyteorder("<"), copy=False)
    heads = [b""] * len(records.ids)
    if records.persons is not None:
        heads = [code.tobytes() for code in records.persons.astype("<i8")]
    contents = (head + row.tobytes() for head, row in zip(heads, little, strict=True))
    columns = zip(records.ids.tolist(), records.labels.tolist(), contents, strict=True)
    _put(connection, ledger_tables.ADDED, tuple(columns))


def remove(connection: sa.Connection, ids: np.ndarray) -> None:
    """Leave a tombstone for each id (int64 [n]), whether or not there is such a record."""
    columns = ((identity, None, None) for identity in ids.tolist())
    _put(connection, ledger_tables.REMOVED, tuple(columns))


def _put(connection: sa.Connection, event: str, rows: tuple[tuple[object, ...], ...]) -> None:
    """Write rows (id, label, input) in place of those with their ids."""
    ledger_tables.records_metadata.create_all(connection)
    ledger_tables.note_event(connection, event, len(rows))
    for row in rows:
        connection.execute(updates.delete().where(updates.c.id == row[0]))
        connection.execute(updates.insert().values(row))


def counts(connection: sa.Connection) -> tuple[int, int]:
    """(added records that are present, ids of rows and persons that were removed). Private."""
    if not sa.inspect(connection).has_table(TABLE):
        return 0, 0
    added, named = connection.execute(
        sa.select(sa.func.count(updates.c.label), sa.func.count())
    ).one()
    return added, named - added


def without_repeated(records: Records, present_rows: Records) -> Records:
    """The rows that ``present_rows`` does not contain with the same id, label and input.

    Rows of another form are returned as they are, for ``check``.
    """
    if not records.labels.shape == records.ids.shape == records.inputs.shape[:1]:
        return records
    known = {*row_digests(present_rows.take(np.isin(present_rows.ids, records.ids)))}
    return records.take(np.array([row not in known for row in row_digests(records)], dtype=bool))


def check(records: Records, like: Records, num_labels: int) -> None:
    """Check that the rows fit the data set and that none of their ids is present.

    Raises InvalidInput, which names no value.
    """
    forms = [(rows.inputs.dtype, rows.inputs.shape[1:]) for rows in (records, like)]
    if forms[0] != forms[1]:
        raise InvalidInput("records.inputs", shape_text(like.inputs), shape_text(records.inputs))
    if records.inputs.dtype.kind == "f" and not np.isfinite(records.inputs).all():
        raise InvalidInput("records.inputs", "finite", "NaN or infinity")
    if records.persons is None and like.persons is not None:
        raise InvalidInput.missing("records.persons", "the unit of privacy is a person")
    if records.persons is not None and like.persons is None:
        raise InvalidInput.needless("records.persons", "the unit of privacy is a row")
    columns = {"labels": records.labels, "ids": records.ids, "persons": records.owners}
    for name, values in columns.items():
        if values.dtype != np.int64 or values.shape != records.inputs.shape[:1]:
            raise InvalidInput(f"records.{name}", "int64, one for each row", shape_text(values))
    if ((records.labels < 0) | (records.labels >= num_labels)).any():
        raise InvalidInput("records.labels", "indices of the public classes", "another one")
    if len(np.unique(records.ids)) != len(records.ids) or np.isin(records.ids, like.ids).any():
        rule, cure = "distinct, and of no present record", "Remove the old row first."
        raise InvalidInput("records.ids", rule, "a repeated one", cure)
