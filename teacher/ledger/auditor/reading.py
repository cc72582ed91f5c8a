"""The auditor's strict reading of a ledger's file: plain tables of exact types, one chain, entries
of one byte form and of closed schemas.

Everything else is a problem and never an error: a file that is damaged, truncated, too large or
another program's, a value or a field that no ledger writes. A problem never quotes the file's text
verbatim: the text is cut, and characters beyond ASCII are escaped.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Predicate
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from ....wall.files import other_format
from ....wall.guarantee import EACH, POOLED, is_single_analyst, single_analyst

LARGEST_FILE = 1 << 34  # bytes: everything is read into memory
ATTEMPTS = 20  # to read a file that others write
LONGEST_VALUE = 1 << 28  # bytes of one entry
LARGEST_INTEGER = 2**63 - 1  # releases are 64-bit integers
LARGEST_CAP = 10**9
MAX_SLOTS = 10_000
SHOWN = 60  # characters of a value in a problem
FIRST_PREV = "0" * 64
COLUMNS: dict[str, dict[str, type]] = {
    "entries": {"seq": int, "kind": str, "body": str, "prev": str, "hash": str},
    "head": {"one": int, "seq": int, "hash": str},
    "extractors": {"sha256": str, "fields": str},
}
# Tables of a live ledger, in no export.
PRIVATE = ("private", "updates", "row_names", "event_times", "nonces")
UNREADABLE = "the file is not a readable ledger: truncated, damaged or something else"

Table = list[tuple[Any, ...]]


class Problem(Exception):
    """One line on what is wrong with an entry."""


def shown(value: Any) -> str:
    """A value of the file for a problem's line: ASCII, at most ``SHOWN`` characters."""
    if type(value) is int and abs(value) > LARGEST_INTEGER:
        return f"an integer of {value.bit_length()} bits"
    text = ascii(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def canonical(value: Any) -> str:
    """The one text of a JSON value. Raises ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse(text: str) -> Any:
    """The JSON value of an entry's text. Raises Problem.

    Refused: a repeated key at any depth, NaN, infinity, a number that float64 can not hold, and
    every text but the one that a writer writes (sorted keys, no spaces, shortest numbers).
    """
    try:
        value = json.loads(text)
        same = canonical(value) == text
    except (ValueError, RecursionError) as error:
        raise Problem("is not JSON, or holds a number that is not finite") from error
    if not same:
        raise Problem("is not in the one form that a ledger writes")
    return value


class Schema(BaseModel):
    """An object of exactly its fields, of exact types: 1.0 and true are no integers."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


def schema(name: str, fields: Mapping[str, Any]) -> type[Schema]:
    """The schema of objects of these fields, none of which may be left out."""
    rules: dict[str, Any] = {field: (kind, ...) for field, kind in fields.items()}
    return create_model(name, __base__=Schema, **rules)


def require(what: str, value: Any, schema: type[Schema]) -> dict[str, Any]:
    """The object itself. Raises Problem unless it is the schema's, which converts nothing."""
    try:
        schema.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join([what, *map(str, first["loc"])])
        raise Problem(f"{shown(place)}: {first['msg']}. Found {shown(first['input'])}") from error
    return value  # type: ignore[no-any-return]


def has_certificates(adversary: str) -> bool:
    return adversary in (POOLED, EACH) or is_single_analyst(adversary)


def names_an_analyst(name: str) -> bool:
    return is_single_analyst(single_analyst(name))


def all_different(names: list[str]) -> bool:
    return len({*names}) == len(names)


def integer(low: int, high: int) -> Any:
    return Annotated[int, Field(ge=low, le=high)]


PLACE = integer(0, MAX_SLOTS)
NAME = Annotated[str, Field(min_length=1, max_length=256), Predicate(str.isprintable)]
DIGEST = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
DIGESTS = Annotated[list[DIGEST], Field(min_length=1), Predicate(all_different)]
GENESIS: dict[str, Any] = {
    "format": integer(0, LARGEST_INTEGER),
    "dataset": NAME,
    "unsafe": bool,
    "adversary": Annotated[str, Predicate(has_certificates)],
    "plan": dict[str, Any],
}
RESULTS = Annotated[dict[DIGEST, Any], Field(min_length=1)]
SCHEMAS = {
    "genesis": schema("genesis", GENESIS),
    "extractor": schema("extractor", {"sha256": DIGEST}),
    "charge": schema("charge", {"slot": PLACE, "release": NAME, "count": integer(1, LARGEST_CAP)}),
    "release": schema("release", {"charge": integer(0, LARGEST_INTEGER), "results": RESULTS}),
    "refusal": schema("refusal", {"slot": PLACE, "release": NAME, "identities": DIGESTS}),
    "analyst": schema(
        "analyst", {"name": Annotated[str, Predicate(names_an_analyst)], "dataset": NAME}
    ),
}


def read_entry(kind: str, text: str) -> dict[str, Any]:
    """The body of an entry.

    Raises Problem for an unknown kind, and unless form, fields, types and ranges are a writer's.
    """
    if kind not in SCHEMAS:
        raise Problem(f"is of an unknown kind: {shown(kind)}")
    body = parse(text)
    named = body.get("format") if type(body) is dict else None
    if kind == "genesis" and (error := other_format("the ledger", named)):
        raise Problem(f"is of another format: {error}")
    return require(kind, body, SCHEMAS[kind])


def check_extractor(sha256: str, text: str) -> None:
    """An extractor's identity is the hash of its public fields. Raises Problem."""
    if type(parse(text)) is not dict or hashlib.sha256(text.encode()).hexdigest() != sha256:
        raise Problem("names another hash than that of its extractor's fields")


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
    """The entries of a file that exists, with the problems of tables, types, chain and head."""
    stored = Stored()
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise Problem(f"the file is larger than {LARGEST_FILE} bytes")
        rows, (head,), stored.extractors = _last_commit(path)
    except Problem as problem:
        stored.problems.append(str(problem))
        return stored
    except (sqlite3.Error, OSError, MemoryError, UnicodeDecodeError):
        stored.problems.append(UNREADABLE)
        return stored
    prev = FIRST_PREV
    for position, (seq, kind, body, before, digest) in enumerate(sorted(rows)):
        text = json.dumps([seq, kind, body, before], separators=(",", ":")).encode()
        if seq != position:
            stored.problems.append(
                f"entry {position} is missing or out of order (sequence number {seq})"
            )
        genuine = hashlib.sha256(text).hexdigest() == digest
        if before != prev or not genuine:
            stored.problems.append(f"entry {seq} was edited, moved, or follows an entry that was")
        prev = digest
        stored.entries.append((kind, body))
        stored.hashes.append(digest if genuine else "")
    if head != (1, len(rows) - 1, stored.hashes[-1] if rows else FIRST_PREV):
        stored.problems.append(
            "the recorded head is not the last entry: entries are missing at the end, or were "
            "added by hand"
        )
    return stored


def _last_commit(path: Path) -> list[Table]:
    """``_tables`` without a transaction that its writer died in.

    The journal beside the file has the pages as they were before, and SQLite has yet to put them
    back. That is done in a private copy. While the journal did not change, it undoes the copied
    file, also one that another process is undoing.
    """
    journal = path.resolve().with_name(f"{path.resolve().name}-journal")
    for _ in range(ATTEMPTS):
        try:
            return _tables(path, "ro")
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
                return _tables(copy, "rw")
    raise OSError("the file is written again and again")


def _version(path: Path) -> tuple[int, int, int]:
    file = os.stat(path)
    return file.st_ino, file.st_size, file.st_mtime_ns


def _tables(path: Path, mode: str) -> list[Table]:
    """The rows of entries, of head and of extractors, of the types that a ledger writes.

    Raises Problem where these are not the file's tables, with private ones, and one head.
    """
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
        connection.execute("PRAGMA trusted_schema=OFF")
        if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            raise Problem("the file is damaged")
        stored = connection.execute("SELECT type, name FROM sqlite_master").fetchall()
        for table, columns in COLUMNS.items():
            present = [row[1] for row in connection.execute(f"PRAGMA table_xinfo({table})")]
            if ("table", table) not in stored or present != [*columns]:
                raise Problem(f"the file has no table {table!r} with columns {', '.join(columns)}")
        expected = {("table", table) for table in (*COLUMNS, *PRIVATE)}
        other = [str(name) for kind, name in stored if (kind, name) not in expected]
        if other := sorted(name for name in other if not name.startswith("sqlite_")):
            names = ", ".join(map(shown, other[:5]))
            raise Problem(f"the file holds what no ledger has: {names}")
        tables = [
            connection.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
            for table, columns in COLUMNS.items()
        ]
    for (table, columns), rows in zip(COLUMNS.items(), tables, strict=True):
        for row in rows:
            if [type(value) for value in row] != [*columns.values()]:
                raise Problem(f"the table {table!r} holds values of other types: {shown(row[:2])}")
    if len(tables[1]) != 1:
        raise Problem(f"the file must record one head. Found {len(tables[1])}")
    return tables
