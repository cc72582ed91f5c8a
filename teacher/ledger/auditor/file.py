"""The auditor's reader of a ledger's SQLite file: plain tables of the right types, one chain.

Any other file is a problem and never an error: a damaged or truncated one, another program's, one
that is too large, or one with values of types that a ledger does not write.

A process that is killed while it writes leaves a sound ledger whose last transaction SQLite has yet
to undo, by the journal beside the file. It is undone in a private copy, which is then read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .values import DIGEST, shown

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

Rows = tuple[list[Any], list[Any], list[Any]]  # of entries, head and extractors


@dataclass
class Stored:
    """A file's content. ``entries``: (kind, text) in order; ``hashes``: of each; ``extractors``:
    (hash, fields as text).

    All are empty where the file could not be read.
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
        rows, heads, stored.extractors = _last_commit(path, stored.problems)
    except (sqlite3.Error, OSError, MemoryError, UnicodeDecodeError):
        stored.problems.append(UNREADABLE)
        return stored
    if stored.problems or not _typed(rows, heads, stored.problems):
        return stored
    if any(type(value) is not str for row in stored.extractors for value in row):
        stored.problems.append("an extractor holds values of other types")
        return stored
    _chain(rows, stored)
    if heads != [(1, len(rows) - 1, stored.hashes[-1] if rows else FIRST_PREV)]:
        stored.problems.append(
            "the recorded head is not the last entry: entries are missing at the end, or were "
            "added by hand"
        )
    return stored


def _last_commit(path: Path, problems: list[str]) -> Rows:
    """``_rows`` without a transaction that its writer died in."""
    for _ in range(ATTEMPTS):
        try:
            return _rows(path, problems)
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
        with _recovered(path) as copy:
            if copy is not None:
                return _rows(copy, problems, mode="rw")
    raise OSError("the file is written again and again")


@contextmanager
def _recovered(path: Path) -> Iterator[Path | None]:
    """A private copy of a file and of the journal that undoes its last transaction; None where
    another process did that meanwhile, so that the file can be read.

    The journal holds the pages as they were before, so it also undoes a file that another process
    is undoing; but none that was written again.
    """
    journal = path.resolve().with_name(f"{path.resolve().name}-journal")
    with tempfile.TemporaryDirectory(prefix="labelwall-audit-") as folder:
        copy, unchanged = Path(folder) / "ledger.sqlite", False
        with contextlib.suppress(FileNotFoundError):
            before = os.stat(journal)
            shutil.copyfile(journal, f"{copy}-journal")
            shutil.copyfile(path, copy)
            unchanged = _version(os.stat(journal)) == _version(before)
        yield copy if unchanged else None


def _version(file: os.stat_result) -> tuple[int, int, int]:
    return file.st_ino, file.st_size, file.st_mtime_ns


def _rows(path: Path, problems: list[str], mode: str = "ro") -> Rows:
    """(rows of entries, of head, of extractors); empty where the tables are not a ledger's."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
        connection.execute("PRAGMA trusted_schema=OFF")
        if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            problems.append("the file is damaged")
            return [], [], []
        _check_tables(connection, problems)
        if problems:
            return [], [], []
        rows = connection.execute("SELECT seq, kind, body, prev, hash FROM entries").fetchall()
        heads = connection.execute("SELECT one, seq, hash FROM head").fetchall()
        extractors = connection.execute("SELECT sha256, fields FROM extractors").fetchall()
        return rows, heads, extractors
    finally:
        connection.close()


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


def _typed(rows: list[Any], heads: list[Any], problems: list[str]) -> bool:
    """Whether each value has the type that a ledger writes. If so, sorts the rows by number."""
    for row in rows:
        if [type(value) for value in row] != [int, str, str, str, str]:
            problems.append(f"an entry holds values of other types: {shown(row[:2])}")
            return False
    if len(heads) != 1 or [type(value) for value in heads[0]] != [int, int, str]:
        problems.append(
            f"the file must record one head, of two numbers and a hash. Found {len(heads)}"
        )
        return False
    rows.sort(key=lambda row: row[0])
    return True


def _chain(rows: list[Any], stored: Stored) -> None:
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
