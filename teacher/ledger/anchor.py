"""The anchor: a record apart from a ledger, which lets only one of the ledger's copies continue,
and the transactions of a ledger under it.

The anchor stores the newest entry of the copy in use and the nonce that wrote it. A nonce is a
random number. Every transaction that writes takes a new nonce, stores it in the ledger with the
previous one, in the same commit, and then moves the anchor to it. Two copies may write the same
entry, but never under the same nonce.

The order, with the anchor locked from the first step to the last:

    read the anchor, compare  ->  commit the ledger  ->  move the anchor, durably  ->  draw, or send

A process that dies before the ledger's commit leaves both as they were. One that dies after it
leaves the ledger one nonce ahead of the anchor; nothing was drawn for that nonce, and nothing that
it stored was sent. The next transaction of this copy moves the anchor before it reads. If another
copy writes first, that copy continues, and this one is refused from then on.

**Claim.** The charges that were drawn for, and the entries that were sent or read under the anchor,
in whatever copy, are one chain, and each charge is drawn for at most once. t(W) is the nonce of a
transaction W, p(W) the ledger's nonce before it. *Proof.*

1. The anchor moves under its lock alone, and only from a nonce p to a nonce t(W) with p(W) = p:
   when W itself moves it, W had the lock since the comparison; when a later transaction does, it
   saw the anchor at the nonce before the ledger's. Nonces are fresh, so none is left and entered
   again. The nonces that the anchor has had are a path W1, W2, ...: each continues the last.
2. A copy of W's entries holds t(W). A copy that holds the anchor's nonce and the anchored entry has
   W1, ..., Wn and nothing else (or Wn alone is missing from the anchor, and is then moved in
   first). So the entries of the path are one chain of hashes.
3. A process draws for the charges of W after its own move to t(W) has returned, and no other
   process can return from it. What a transaction reads was anchored before it reads. Both are on
   the path.
4. Kills. Before the ledger's commit: it is rolled back. Between the commit and the move: the ledger
   has W, the anchor p(W), and W was neither drawn for nor sent. Either this copy later moves the
   anchor to t(W), or a copy that ended at p(W) comes first and moves the anchor to its own W'; then
   t(W) is off the path and this copy is refused for ever. After the move: every other copy is
   refused. A COMMIT in flight on a server whose client died is stored later or not at all: both are
   one of these cases, and a transaction on the same server waits for it; so for an anchor on a
   server. Between the end of a file's commit and the synchronisation of its directory: whoever
   reads a value that it did not write synchronises the directory first. A server drops the anchor's
   lock while its holder lives: the move fails with the connection, as a kill between commit and
   move.
5. Two copies that wrote the same entry have the same hash and different nonces. A reservation of
   individual budgets writes private rows alone and takes a nonce, too. QED

An anchor is an SQLite file, or a schema of a PostgreSQL server. A file system that several hosts
mount must guarantee that its locks exclude the processes of all hosts, and that `fsync` of files
and directories is durable.
"""

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from ...wall.errors import LedgerMismatch
from ...wall.files import FORMAT, other_format
from . import ledger_tables
from .database import open_database, write_file
from .url import Place

T = TypeVar("T")

metadata = sa.MetaData()
table = ledger_tables.table(
    "anchor", metadata, "format", seq=sa.Integer, hash=sa.Text, nonce=sa.Text
)
# In the ledger, in no export.
nonces = ledger_tables.table("nonces", sa.MetaData(), "one", nonce=sa.Text, previous=sa.Text)
WRITTEN = "written"  # what a connection is marked with whose changes the anchor follows
Entry = tuple[int, str, str]  # sequence number and hash of an entry, its nonce ("" for none)


def read_nonces(ledger: sa.Connection) -> tuple[str, str]:
    """(last nonce, the one before it), both "" for a ledger that never had an anchor."""
    if not sa.inspect(ledger).has_table(nonces.name):
        return "", ""
    row = ledger.execute(sa.select(nonces.c.nonce, nonces.c.previous)).one()
    return row.nonce, row.previous


def take_nonce(ledger: sa.Connection, previous: str) -> Entry:
    """Store a new nonce of 128 bits after ``previous`` ("" for none) in the ledger's transaction.

    Returns what the anchor moves to once that is committed.
    """
    row = {"one": 1, "nonce": secrets.token_hex(16), "previous": previous}
    if previous:
        ledger.execute(nonces.update(), row)
    else:
        nonces.create(ledger)
        ledger.execute(nonces.insert(), row)
    seq, digest = ledger.execute(ledger_tables.READ_HEAD).one()
    return seq, digest, str(row["nonce"])


def move(anchor: sa.Connection, entry: Entry) -> None:
    """Replace what a locked anchor stores, durably when its lock ends."""
    seq, digest, nonce = entry
    anchor.execute(table.delete())
    row = {"format": FORMAT, "seq": seq, "hash": digest, "nonce": nonce}
    anchor.execute(table.insert(), row)


class Anchor:
    """The anchor of one ledger, created where there is none. Errors call it ``name``.

    ``begun``: the sequence number at which this object created it, None where the anchor existed.
    """

    def __init__(self, place: Place) -> None:
        self._path = place if isinstance(place, Path) else None
        self._database = open_database(place, "anchor", anchored=True)
        self.name = self._database.name
        self.begun: int | None = None
        self._ready = False  # whether its table was there
        # What this process knows to be on disk, the directory's entry included.
        self._durable: Entry | None = None

    def exists(self) -> bool:
        """Whether there is an anchor, or a file in its place. Raises LedgerMismatch where it can
        not be reached.
        """
        return self._has_place() and (self._path is not None or self._database.exists())

    @contextmanager
    def locked(self, ledger: sa.Connection) -> Iterator[tuple[sa.Connection, str]]:
        """Lock the anchor, which on entry durably stores the newest entry of ``ledger``.

        The caller has locked the ledger, whose last nonce is in the tuple. Raises LedgerMismatch
        for a ledger that the anchor does not let continue, and for an anchor that is gone or can
        not be read.
        """
        nonce, previous = read_nonces(ledger)
        seq, digest = ledger.execute(ledger_tables.READ_HEAD).one()
        if not self._has_place() or not (self._ready or self._database.exists()):
            self._require_new(nonce)  # nothing is created under a mistyped name
            self._database.create(metadata.create_all)
        self._ready = True
        while True:
            with self._database.transaction() as connection:
                anchored = self._read(connection)
                if anchored is None:
                    self._require_new(nonce)
                else:
                    self._require_continued(anchored, (nonce, previous), ledger)
                if anchored == (seq, digest, nonce):
                    yield connection, nonce
                    return
                move(connection, (seq, digest, nonce))
            # Locked again: the move is durable only now that its transaction has ended.
            if anchored is None:
                self.begun = seq

    def _has_place(self) -> bool:
        """Whether a file is there, under one name; True for a server."""
        if self._path is None:
            return True
        with self._failures(), suppress(FileNotFoundError):
            file = os.lstat(self._path)
            if not stat.S_ISREG(file.st_mode) or file.st_nlink > 1:
                # SQLite names the journal, which undoes a broken move, by the file's name.
                raise OSError(0, "a link, or no file")
            return True
        return False

    def _read(self, connection: sa.Connection) -> Entry | None:
        """The state that it stores durably, None for an empty table. Raises LedgerMismatch."""
        row = connection.execute(sa.select(table)).one_or_none()
        if row is None:
            return None
        if error := other_format(f"the anchor {self.name}", row.format):
            raise LedgerMismatch(error)
        entry = row.seq, row.hash, row.nonce
        if [type(value) for value in entry] != [int, str, str]:
            raise LedgerMismatch(f"the anchor {self.name} is damaged. Nothing was released.")
        # Its writer may have died between its commit and the directory's synchronisation.
        if self._path is not None and entry != self._durable:
            with self._failures():
                synchronise(self._path.parent)
            self._durable = entry
        return entry

    def _require_new(self, nonce: str) -> None:
        if nonce:
            raise LedgerMismatch(
                f"there is no anchor {self.name}, but the ledger has one. Name the anchor that it "
                "has; where that is lost, docs/guide.md says what to do. Nothing was charged or "
                "drawn."
            )

    def _require_continued(
        self, anchored: Entry, nonces: tuple[str, str], ledger: sa.Connection
    ) -> None:
        seq, digest, nonce = anchored
        stored = ledger.execute(ledger_tables.HASH_OF, {"seq": seq}).scalar()
        if nonce not in ("", *nonces) or stored != digest:
            raise LedgerMismatch(
                f"the ledger is older than, or forked from, its anchor {self.name} (entry {seq}): "
                "another copy of it has continued. Nothing was charged or drawn. Use the copy that "
                "has continued, or restore the newest one."
            )

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LedgerMismatch(
                f"the anchor {self.name} must be a file, not a link, that can be read and written. "
                f"Found: {error.strerror}. Nothing was released."
            ) from error


def synchronise(folder: Path) -> None:
    """Write a directory's entries to disk."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class StoredLedger:
    """The tables of one ledger, in transactions that are under its anchor where it has one.

    Any thread may use it: it neither reads nor changes a state in memory.
    """

    def __init__(self, place: Place, anchor: Place | None) -> None:
        self._database = open_database(place, anchored=anchor is not None)
        self._anchor = Anchor(anchor) if anchor else None
        self._with_write: Callable[[sa.Connection], None] | None = None

    @property
    def anchor_begun(self) -> int | None:
        """Number of the newest entry when this object created the anchor, None where it existed."""
        return self._anchor.begun if self._anchor else None

    @contextmanager
    def with_next_write(self, work: Callable[[sa.Connection], None]) -> Iterator[None]:
        """The first transaction that writes in this context runs ``work`` at its end.

        Both are stored or neither: what ``work`` raises undoes the transaction.
        """
        self._with_write = work
        try:
            yield
        finally:
            self._with_write = None

    def in_custody(self, work: Callable[[sa.Connection], T], purged: str | None = None) -> T:
        """Run ``work`` on the private tables beside the entries, in one durable transaction.

        Nothing of these tables is exported. ``purged``: a table whose deleted rows are erased from
        the database's files, too.
        """
        with self._open() as connection:
            result = work(connection)
        if purged is not None:
            self._database.purge(purged)
        return result

    def export(self, path: Path) -> None:
        """Write the auditors' copy: every entry, nothing private, in an SQLite file whose bytes are
        a function of the entries.

        The newest entry is read in a transaction, so it is anchored. The others pass through memory
        page by page, in plain reads that keep no writer waiting: they never change, what comes
        after that entry is left out, and the last one must have its hash.
        """
        ((seq, newest), extractors) = self.in_custody(ledger_tables.read_public)

        def copy(target: sa.Connection) -> None:
            last, digest = -1, ""
            ledger_tables.metadata.create_all(target)
            while last < seq:
                with self._database.reading() as connection:
                    page = [
                        row for row in ledger_tables.page_after(connection, last) if row.seq <= seq
                    ]
                if not page:
                    break
                target.execute(ledger_tables.APPEND, [dict(row._mapping) for row in page])
                last, digest = page[-1].seq, page[-1].hash
            if digest != newest:
                raise LedgerMismatch("the ledger was replaced by another one while it was copied.")
            target.execute(ledger_tables.head.insert(), {"one": 1, "seq": seq, "hash": newest})
            if extractors:
                target.execute(ledger_tables.extractors.insert(), extractors)

        write_file(path, copy)

    @contextmanager
    def _open(self) -> Iterator[sa.Connection]:
        """An exclusive, durable transaction; what it wrote is committed and anchored on exit.

        What it read is anchored, too: where an entry's writer died before it moved the anchor, the
        anchor is moved first. Otherwise something could be sent that another copy may still
        replace. Raises LedgerMismatch, before anything is written, where the anchor does not let
        this ledger continue.
        """
        entry: Entry | None = None
        with ExitStack() as until_moved:
            with self._database.transaction() as connection:
                if self._anchor is not None:
                    anchor, nonce = until_moved.enter_context(self._anchor.locked(connection))
                yield connection
                written = connection.info.get(WRITTEN, False)
                if written and self._with_write is not None:
                    work, self._with_write = self._with_write, None
                    work(connection)
                if written and self._anchor is not None:
                    entry = take_nonce(connection, nonce)
            if entry is not None:
                move(anchor, entry)

    def _writing(self, connection: sa.Connection) -> sa.Connection:
        """The connection of an open transaction, for a change that the anchor follows.

        Raises LedgerMismatch where the ledger has an anchor that this program was not given.
        """
        unnamed = self._anchor is None and WRITTEN not in connection.info
        if unnamed and any(read_nonces(connection)):
            raise LedgerMismatch(
                "the ledger has an anchor, which was not named. Name it (`anchor`): without it, "
                "two copies of the ledger could both answer. Nothing was charged or drawn."
            )
        connection.info[WRITTEN] = True  # no connection outlives its transaction
        return connection
