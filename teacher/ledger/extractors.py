"""The extractors that a ledger's entries name, each stored once beside the entries.

An entry names an extractor by the SHA-256 of its public fields. The fields themselves, which may be
long, are a row of the public table `extractors` (sha256, fields): canonical JSON, written in the
transaction of the first entry that names it, never changed, and in every export. The chain covers
the hash and the hash covers the fields. So a row that is missing or changed is refused, and no
other row can take its place.

Entries of earlier versions hold the fields themselves, and stay as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from ...wall.errors import LedgerMismatch
from ...wall.messages import canonical_json
from .database import EXTRACTORS

metadata = sa.MetaData()
extractors = sa.Table(
    EXTRACTORS,
    metadata,
    sa.Column("sha256", sa.Text, primary_key=True),
    sa.Column("fields", sa.Text, nullable=False),
)


def hashed(fields: dict[str, object]) -> tuple[str, str]:
    """The hash that names an extractor, and its fields as they are stored."""
    text = canonical_json(fields)
    return hashlib.sha256(text).hexdigest(), text.decode()


def store(connection: sa.Connection, sha256: str, text: str) -> None:
    """Write a new extractor inside an open transaction. A row that no entry names is an error."""
    metadata.create_all(connection)
    connection.execute(extractors.insert(), {"sha256": sha256, "fields": text})


def keep(connection: sa.Connection, sha256: str, text: str, known: set[str]) -> int:
    """``store`` one that is not ``known``; returns the bytes written. Raises LedgerMismatch where a
    known one is missing or changed.
    """
    if sha256 in known:
        require(connection, [sha256])
        return 0
    store(connection, sha256, text)
    return len(text)


def require(connection: sa.Connection, named: Iterable[str]) -> None:
    """Raise LedgerMismatch unless the fields of each named extractor are stored unchanged."""
    for sha256 in named:
        read(connection, sha256)


def read(connection: sa.Connection, sha256: str) -> dict[str, Any]:
    """The fields of an extractor. Raises LedgerMismatch where they are missing or changed."""
    chosen = sa.select(extractors.c.fields).where(extractors.c.sha256 == sha256)
    present = sa.inspect(connection).has_table(EXTRACTORS)
    text = connection.execute(chosen).scalar() if present else None
    if type(text) is not str or hashlib.sha256(text.encode()).hexdigest() != sha256:
        raise LedgerMismatch(
            f"the extractor {sha256} that the ledger names is missing beside its entries, or was "
            "changed. Restore the table `extractors`; nothing was charged or drawn."
        )
    return dict(json.loads(text))


def stored(connection: sa.Connection) -> list[dict[str, str]]:
    """All rows in the order of their hashes, as they are; none where there is no table."""
    if not sa.inspect(connection).has_table(EXTRACTORS):
        return []
    found = connection.execute(sa.select(extractors).order_by(extractors.c.sha256))
    return [dict(row) for row in found.mappings()]
