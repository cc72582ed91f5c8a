"""Where an anchor lies: a file, or a schema of a PostgreSQL server. Both give exclusive access and durable writes.

A file is replaced, never changed: a new one is written, synchronised and renamed over it, and then the directory is
synchronised. The lock is `flock` on a file beside it, NAME.lock, which stays. Required of a file system that several hosts
mount: `flock` excludes processes of all hosts, a rename is atomic, and `fsync` of files and directories is durable.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa

from labelwall.teacher.ledger.database import LOCK_SECONDS, PostgresSchema
from labelwall.teacher.ledger.url import LedgerUrl
from labelwall.wall.errors import LedgerMismatch

FORMAT = 2  # the first had no turns: {"seq": ..., "hash": ...}
PAUSE = 0.005  # seconds between two looks at a lock that another process holds

metadata = sa.MetaData()
anchor = sa.Table(
    "anchor",
    metadata,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("turn", sa.Text, nullable=False),
)


@dataclass(frozen=True)
class Held:
    """What an anchor holds: an entry's sequence number, its hash, and the turn that wrote it, "" for none."""

    seq: int
    hash: str
    turn: str = ""


class Slot(Protocol):
    """An anchor that is held exclusively."""

    def read(self) -> Held | None:
        """What it holds, durably; None where there is no anchor. Raises LedgerMismatch for one that can not be read."""
        ...

    def write(self, held: Held) -> None:
        """Replace what it holds. Durable when this returns, on a server when ``Store.locked`` ends. Raises LedgerMismatch."""
        ...


class Store(Protocol):
    """A place for one anchor. ``name``: what errors call it."""

    name: str

    def exists(self) -> bool: ...

    def locked(self) -> AbstractContextManager[Slot]:
        """Exclusive among all processes, and released when the holder dies. Raises LedgerMismatch after 30 seconds of waiting."""
        ...


class FileStore:
    """A file, mode 0600. A link is refused: a rename would part its names, and each would let another copy go on."""

    def __init__(self, path: Path) -> None:
        self.name, self._path = path.name, path
        self._durable: Held | None = (
            None  # what this process knows to be on disk, the directory's entry included
        )

    def exists(self) -> bool:
        return os.path.lexists(self._path)

    @contextmanager
    def locked(self) -> Iterator[Slot]:
        with self._failures():
            descriptor = self._lock()
        try:
            yield self
        finally:
            fcntl.flock(
                descriptor, fcntl.LOCK_UN
            )  # also for a child that was forked meanwhile and has it open
            os.close(descriptor)

    def read(self) -> Held | None:
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
                found = self._parsed(file.read())
            if (
                found != self._durable
            ):  # whoever renamed it may have died before the directory was synchronised
                self._synchronise()
                self._durable = found
            return found

    def write(self, held: Held) -> None:
        scratch = self._path.with_name(self.name + ".part")
        with self._failures():
            scratch.unlink(missing_ok=True)
            descriptor = os.open(
                scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            with open(descriptor, "w") as file:
                json.dump(
                    {"format": FORMAT, "entry": held.seq, "hash": held.hash, "turn": held.turn},
                    file,
                )
                file.flush()
                os.fsync(descriptor)
            scratch.replace(self._path)
            self._synchronise()
            self._durable = held

    def _lock(self) -> int:
        """The descriptor of the lock file, locked."""
        path, until = self._path.with_name(self.name + ".lock"), time.monotonic() + LOCK_SECONDS
        while time.monotonic() < until:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(
                    os.fstat(descriptor), os.lstat(path)
                ):  # else somebody deleted it, and made another
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

    def _parsed(self, text: bytes) -> Held:
        try:
            found = json.loads(text)
            if isinstance(found, dict) and set(found) == {"seq", "hash"}:
                found = {"format": FORMAT, "entry": found["seq"], "hash": found["hash"], "turn": ""}
            if not isinstance(found, dict) or set(found) != {"format", "entry", "hash", "turn"}:
                raise ValueError
            held = Held(found["entry"], found["hash"], found["turn"])
            if found["format"] != FORMAT or [
                type(value) for value in (held.seq, held.hash, held.turn)
            ] != [int, str, str]:
                raise ValueError
            if not 0 <= held.seq < 1 << 31:
                raise ValueError
        except ValueError as error:
            raise LedgerMismatch(
                f"the anchor {self.name} is damaged, or a newer program's. Nothing was released."
            ) from error
        return held

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
                f"the anchor {self.name} must be a file, not a link, that can be read and written. Found: {error.strerror}. "
                "Nothing was released."
            ) from error


class ServerStore:
    """A table of one row, in a schema of its own. It is held by a transaction that has the table's lock."""

    def __init__(self, url: LedgerUrl) -> None:
        self._database = PostgresSchema(url, "anchor", anchor.name)
        self.name, self._made = self._database.name, False

    def exists(self) -> bool:
        if not self._database.exists():
            return False
        with self.locked() as slot:
            return slot.read() is not None

    @contextmanager
    def locked(self) -> Iterator[Slot]:
        if not self._made and not self._database.exists():
            self._database.create(
                lambda connection: metadata.create_all(connection, checkfirst=False)
            )
        self._made = True
        with self._database.transaction() as connection:
            yield _Row(connection)


@dataclass(frozen=True)
class _Row:
    connection: sa.Connection

    def read(self) -> Held | None:
        row = self.connection.execute(
            sa.select(anchor.c.seq, anchor.c.hash, anchor.c.turn)
        ).one_or_none()
        return None if row is None else Held(*row)

    def write(self, held: Held) -> None:
        self.connection.execute(anchor.delete())
        self.connection.execute(
            anchor.insert(), {"one": 1, "seq": held.seq, "hash": held.hash, "turn": held.turn}
        )
