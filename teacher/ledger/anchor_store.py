"""Storage of an anchor: a file, or a schema of a PostgreSQL server. Both lock and write durably.

A file is replaced, never changed: a new file is written, synchronised and renamed over it, and then
the directory is synchronised. The lock is `flock` on NAME.lock beside it, which is never deleted.
A file system that several hosts mount must guarantee that `flock` excludes processes of all hosts,
that a rename is atomic, and that `fsync` of files and directories is durable.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from ...wall.errors import LedgerMismatch
from ...wall.format import FORMAT, other_format
from .database import LOCK_SECONDS, PostgresSchema
from .url import LedgerUrl

PAUSE = 0.005  # seconds between two attempts to lock

metadata = sa.MetaData()
anchor = sa.Table(
    "anchor",
    metadata,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("nonce", sa.Text, nullable=False),
)


@dataclass(frozen=True)
class AnchoredEntry:
    """What an anchor stores: an entry's sequence number and hash, and its nonce, "" for none."""

    seq: int
    hash: str
    nonce: str = ""


class FileStore:
    """A file, mode 0600. ``name``: what errors call it.

    A link is refused: a rename would separate its names, and each would let another copy continue.
    """

    def __init__(self, path: Path) -> None:
        self.name, self._path = path.name, path
        # What this process knows to be on disk, the directory's entry included.
        self._durable: AnchoredEntry | None = None

    def exists(self) -> bool:
        return os.path.lexists(self._path)

    @contextmanager
    def locked(self) -> Iterator[FileStore]:
        """Lock the anchor against all other processes; the lock ends with this process.

        Raises LedgerMismatch after 30 seconds of waiting.
        """
        with self._failures():
            descriptor = self._lock()
        try:
            yield self
        finally:
            # Closing alone would leave the lock to a child that was forked meanwhile.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def read(self) -> AnchoredEntry | None:
        """What it stores durably, None where there is no anchor. Raises LedgerMismatch."""
        with self._failures():
            try:
                descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            with open(descriptor, "rb") as file:
                if os.fstat(descriptor).st_nlink > 1:
                    raise LedgerMismatch(
                        f"the anchor {self.name} must be a file with one name. Found a linked one."
                    )
                stored = self._parsed(file.read())
            # Its writer may have died between the rename and the directory's synchronisation.
            if stored != self._durable:
                self._synchronise()
                self._durable = stored
            return stored

    def write(self, entry: AnchoredEntry) -> None:
        """Replace what it stores, durably. Raises LedgerMismatch."""
        scratch = self._path.with_name(self.name + ".part")
        content = {"format": FORMAT, "entry": entry.seq, "hash": entry.hash, "nonce": entry.nonce}
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self._failures():
            scratch.unlink(missing_ok=True)
            descriptor = os.open(scratch, flags, 0o600)
            with open(descriptor, "w") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(descriptor)
            scratch.replace(self._path)
            self._synchronise()
            self._durable = entry

    def _lock(self) -> int:
        """Lock the lock file; returns its descriptor."""
        path, deadline = self._path.with_name(self.name + ".lock"), time.monotonic() + LOCK_SECONDS
        while time.monotonic() < deadline:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # A deleted lock file, replaced by another, excludes nobody.
                if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                    return descriptor
            except (BlockingIOError, FileNotFoundError):
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            time.sleep(PAUSE)
        raise LedgerMismatch(
            f"another process holds the anchor {self.name} for more than {LOCK_SECONDS} seconds."
        )

    def _parsed(self, text: bytes) -> AnchoredEntry:
        content = None
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(text)
        if isinstance(content, dict) and set(content) == {"format", "entry", "hash", "nonce"}:
            if error := other_format(f"the anchor {self.name}", content["format"]):
                raise LedgerMismatch(error)
            entry = AnchoredEntry(content["entry"], content["hash"], content["nonce"])
            types = [type(value) for value in vars(entry).values()]
            if types == [int, str, str] and 0 <= entry.seq < 1 << 31:
                return entry
        raise LedgerMismatch(f"the anchor {self.name} is damaged. Nothing was released.")

    def _synchronise(self) -> None:
        directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LedgerMismatch(
                f"the anchor {self.name} must be a file, not a link, that can be read and written. "
                f"Found: {error.strerror}. Nothing was released."
            ) from error


class ServerStore:
    """A table of one row, in its own schema; a transaction's lock on it is the anchor's lock."""

    def __init__(self, url: LedgerUrl) -> None:
        self._database = PostgresSchema(url, "anchor", anchor.name)
        self.name, self._exists = self._database.name, False

    def exists(self) -> bool:
        if not self._database.exists():
            return False
        with self.locked() as slot:
            return slot.read() is not None

    @contextmanager
    def locked(self) -> Iterator[AnchorRow]:
        """As ``FileStore.locked``; what is written is durable when the lock ends."""
        if not self._exists and not self._database.exists():
            self._database.create(
                lambda connection: metadata.create_all(connection, checkfirst=False)
            )
        self._exists = True
        with self._database.transaction() as connection:
            yield AnchorRow(connection)


@dataclass(frozen=True)
class AnchorRow:
    """A server's anchor, locked by its open transaction."""

    connection: sa.Connection

    def read(self) -> AnchoredEntry | None:
        columns = sa.select(anchor.c.seq, anchor.c.hash, anchor.c.nonce)
        row = self.connection.execute(columns).one_or_none()
        return None if row is None else AnchoredEntry(*row)

    def write(self, entry: AnchoredEntry) -> None:
        self.connection.execute(anchor.delete())
        self.connection.execute(anchor.insert(), {"one": 1, **vars(entry)})
