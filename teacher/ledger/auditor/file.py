"""The auditor's reader of a ledger's SQLite file: plain tables of the right types, one chain.

Any other file is a problem and never an error: a damaged or truncated one, another program's, one
that is too large, or one with values of types that a ledger does not write.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .entries import DIGEST, shown

LARGEST_FILE = 1 << 34  # bytes: everything is read into memory
ATTEMPTS = 20  # to read a file that others write
LONGEST_VALUE = 1 << 28  # bytes of one entry
FIRST_PREV = "0" * 64
COLUMNS = {
    "entries": ["seq", "kind", "body", "prev", "hash"],
    "head": ["one", "seq", "hash"],
    "extractors": ["sha256", "fields"],
}
# Tables of a live ledger, in no export.
PRIVATE = ("private", "updates", "event_times", "nonces")
UNREADABLE = "the file is not a readable ledger: truncated, damaged or something else"

Table = list[tuple[Any, ...]]


@dataclass
class Stored:
    """A file's content, empty where it could not be read. ``entries``: (kind, text) in order;
    ``hashes``: of each; ``extractors``: (hash, fields as text).
    """

    entries: list[tuple[str, str]] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    extractors: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read_file(path: Path) -> Stored:
    """The entries of a file that exists, with every problem of tables, types, chain and head."""
    stored = Stored()
    try:
        if path.stat().st_size > LARGEST_FILE:
            stored.problems.append(f"the file is larger than {LARGEST_FILE} bytes")
            return stored
        rows, heads, extractors = _last_commit(path, stored.problems)
    except (sqlite3.Error, OSError, MemoryError, UnicodeDecodeError):
        stored.problems.append(UNREADABLE)
        return stored
    if not stored.problems:
        _check_types(rows, heads, extractors, stored.problems)
    if stored.problems:
        return stored
    stored.extractors = [(sha256, fields) for sha256, fields in extractors]
    _chain(sorted(rows), stored)
    if heads != [(1, len(rows) - 1, stored.hashes[-1] if rows else FIRST_PREV)]:
        stored.problems.append(
            "the recorded head is not the last entry: entries are missing at the end, or were "
            "added by hand"
        )
    return stored


def _last_commit(path: Path, problems: list[str]) -> list[Table]:
    """``_tables`` without a transaction that its writer died in.

    The journal beside the file has the pages as they were before, and SQLite has yet to put them
    back. That is done in a private copy. While the journal did not change, it undoes the copied
    file, also one that another process is undoing.
    """
    journal = path.resolve().with_name(f"{path.resolve().name}-journal")
    for _ in range(ATTEMPTS):
        try:
            return _tables(path, problems, "ro")
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
        with (
            tempfile.TemporaryDirectory(prefix="labelwall-audit-") as folder,
            contextlib.suppress(FileNotFoundError),  # another process has undone it
        ):
            copy, before = Path(folder) / "ledger.sqlite", _version(journal)
            shutil.copyfile(journal, f"{copy}-journal")
            shutil.copyfile(path, copy)
            if _version(journal) == before:
                return _tables(copy, problems, "rw")
    raise OSError("the file is written again and again")


def _version(path: Path) -> tuple[int, int, int]:
    file = os.stat(path)
    return file.st_ino, file.st_size, file.st_mtime_ns


def _tables(path: Path, problems: list[str], mode: str) -> list[Table]:
    """The rows of entries, of head and of extractors; empty where the tables are not a ledger's."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
        connection.execute("PRAGMA trusted_schema=OFF")
        if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            problems.append("the file is damaged")
        else:
            _check_tables(connection, problems)
        return [
            [] if problems else connection.execute(f"SELECT {', '.join(c)} FROM {t}").fetchall()
            for t, c in COLUMNS.items()
        ]


def _check_tables(connection: sqlite3.Connection, problems: list[str]) -> None:
    """Check that there are a ledger's tables alone, no views or triggers, and their columns."""
    stored = connection.execute("SELECT type, name FROM sqlite_master").fetchall()
    other = sorted(
        shown(name)
        for kind, name in stored
        if not (kind == "table" and (name in COLUMNS or name in PRIVATE))
        and not str(name).startswith("sqlite_")
    )
    if other:
        problems.append(f"the file holds what no ledger has: {', '.join(other[:5])}")
    for table, columns in COLUMNS.items():
        present = [row[1] for row in connection.execute(f"PRAGMA table_xinfo({table})")]
        if ("table", table) not in stored or present != columns:
            problems.append(f"the file has no table {table!r} with columns {', '.join(columns)}")


def _check_types(rows: Table, heads: Table, extractors: Table, problems: list[str]) -> None:
    """Check that each value has the type that a ledger writes, and that there is one head."""
    for row in rows:
        if [type(value) for value in row] != [int, str, str, str, str]:
            problems.append(f"an entry holds values of other types: {shown(row[:2])}")
            return
    if len(heads) != 1 or [type(value) for value in heads[0]] != [int, int, str]:
        problems.append(
            f"the file must record one head, of two numbers and a hash. Found {len(heads)}"
        )
    if any(type(value) is not str for row in extractors for value in row):
        problems.append("an extractor holds values of other types")


def _chain(rows: Table, stored: Stored) -> None:
    """Add the rows to ``stored``, with the problems of their numbers and hashes."""
    prev = FIRST_PREV
    for position, (seq, kind, body, before, digest) in enumerate(rows):
        text = json.dumps([seq, kind, body, before], separators=(",", ":")).encode()
        if seq != position:
            stored.problems.append(
                f"entry {position} is missing or out of order (sequence number {seq})"
            )
        if before != prev or hashlib.sha256(text).hexdigest() != digest:
            stored.problems.append(f"entry {seq} was edited, moved, or follows an entry that was")
        prev = digest
        stored.entries.append((kind, body))
        stored.hashes.append(digest if DIGEST.holds(digest) else "")
