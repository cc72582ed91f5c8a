"""The ledger: an append-only, hash-chained list of charges and releases, durable before anything is drawn or sent.

One table holds entries (seq, kind, body, prev, hash); all that is public is replayed from it when the ledger is opened. A second,
private one holds what each record paid under a prepaid release (accounts.py), in the same transactions. The order is
charge (commit) -> draw -> record the results (commit) -> send. A charge whose results were never recorded stays spent and
is paid again in full when the same query comes back, so the loss on record is never below what was released.
Entries carry no time of day: when a release happened may depend on private work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import sqlalchemy as sa

from labelwall.teacher.accounting.plan import Plan
from labelwall.teacher.ledger import budgets_table as accounts_table
from labelwall.teacher.ledger.anchor import Anchor
from labelwall.teacher.ledger.anchored import Anchored
from labelwall.teacher.ledger.database import ENTRIES, HEAD, Place, open_database, write_file
from labelwall.teacher.ledger.individual_budgets import (
    DAMAGED,
    ENROL,
    Accounts,
    Payments,
    Row,
    encode_ids,
    hold,
    new_token,
    settle,
)
from labelwall.teacher.ledger.state import (
    FORMAT,
    FORMAT_ALONE,
    GENESIS_PREV,
    LedgerState,
    read_body,
)
from labelwall.wall.adversary import POOLED
from labelwall.wall.errors import LedgerMismatch
from labelwall.wall.messages import Value, canonical_json

T = TypeVar("T")
Most = Callable[[tuple[str, ...], np.ndarray], Payments]

metadata = sa.MetaData()
entries = sa.Table(
    ENTRIES,
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("prev", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
)
head = sa.Table(
    HEAD,
    metadata,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
)
SNAPSHOT_EVERY = 64  # batches: bounds what opening a ledger replays, and the rows that are kept


def entry_hash(seq: int, kind: str, body: str, prev: str) -> str:
    """SHA-256 (hex) that chains entry ``seq`` to its predecessor's hash ``prev``."""
    return hashlib.sha256(canonical_json([seq, kind, body, prev])).hexdigest()


@dataclass(frozen=True)
class Write:
    """An open transaction. ``append(kind, body)``: a public entry, its sequence number; ``keep(row)``: a private row."""

    append: Callable[[str, dict[str, object]], int]
    keep: Callable[[Row], None]
    compact: Callable[[int], None]


@dataclass(frozen=True)
class Charge:
    """A committed charge. ``granted``: the identities it pays for, in request order; the rest was refused and stored.

    ``count``: releases that this charge added to what is spent, 0 where a prepaid one was charged before.
    """

    seq: int
    granted: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Reservation:
    """A committed reservation under the prepaid charge ``seq``.

    ``granted``: the identities that nobody had answered, in request order; without any, nothing is
    charged, and nothing reserved. ``count``: 1 where this entered the charge, 0 where it was there.
    ``left``: int64 [n_records] units that the records had for them.
    ``token``: what it is settled by.
    """

    seq: int
    granted: tuple[str, ...]
    count: int
    left: np.ndarray = field(repr=False)
    token: bytes = field(repr=False)


class Ledger:
    """The ledger of one data set, in an SQLite file or a schema of PostgreSQL.

    Several processes may share one: each transaction is exclusive and begins by taking in what the others have written.

    ``anchor``: the place of its anchor (anchor.py), a file or a schema of a server; of all copies of a ledger it lets one go on,
    and it is begun where a ledger had none. A ledger that has one is not written without it. While this object lives, a ledger
    that has gone back behind what it has seen is refused, too. ``anchor_begun``: the sequence number of the newest entry when
    this object began the anchor, None where it was there. Raises LedgerMismatch for all that is refused, and where there is no
    ledger or it does not replay.
    """

    def __init__(self, place: Place, anchor: Place | None = None) -> None:
        self._database = open_database(place, anchored=anchor is not None)
        if not self._database.exists():
            raise LedgerMismatch(
                f"there is no ledger {self._database.name}; it is created with the data set's first plan."
            )
        self._anchor = Anchor(anchor) if anchor else None
        self._anchored = Anchored(self._database, self._anchor)
        self._newest = (
            -1,
            GENESIS_PREV,
        )  # (seq, hash) of the last entry that this process knows to be stored
        self.state, self.accounts = LedgerState(), Accounts()
        with self._transaction():
            pass

    @property
    def anchor_begun(self) -> int | None:
        return self._anchor.begun if self._anchor else None

    @classmethod
    def create(
        cls,
        place: Place,
        *,
        dataset: str,
        plan: Plan,
        unsafe: bool,
        anchor: Place | None = None,
        adversary: str = POOLED,
    ) -> Ledger:
        """Start a data set's ledger with its plan. ``unsafe``: drawn from a test tape, so it certifies epsilon = infinity.

        ``adversary``: against whom the plan's certificate holds (wall/adversary.py); another than POOLED is named in the first
        entry, so that it can be left out of no copy. EACH starts a register, which is charged for nothing.
        """
        body = {"format": FORMAT, "dataset": dataset, "unsafe": unsafe, "plan": plan.to_json()}
        if adversary != POOLED:
            body |= {"format": FORMAT_ALONE, "adversary": adversary}
        text = canonical_json(body).decode()
        row = {"seq": 0, "kind": "genesis", "body": text, "prev": GENESIS_PREV}
        digest = entry_hash(0, "genesis", text, GENESIS_PREV)

        def begin(connection: sa.Connection) -> None:
            metadata.create_all(connection, checkfirst=False)
            connection.execute(entries.insert(), {**row, "hash": digest})
            connection.execute(head.insert(), {"one": 1, "seq": 0, "hash": digest})

        database = open_database(place)
        database.create(begin)
        database.close()
        return cls(place, anchor)

    def use_extractor(self, sha256: str, fields: dict[str, object]) -> None:
        """Record the extractor that later charges use. Public: it came from the caller, or is a constant."""
        with self._transaction() as write:
            if self.state.extractor != sha256:
                write.append("extractor", {"sha256": sha256, "fields": fields})

    def enter_analyst(self, name: str, dataset: str) -> None:
        """Enter an analyst and the data set of the analyst's own ledger in a register. Raises LedgerMismatch for a known one."""
        with self._transaction() as write:
            write.append("analyst", {"name": name, "dataset": dataset})

    def analysts(self) -> dict[str, str]:
        """A register's analysts and the data sets of their ledgers, as they are stored now."""
        with self._transaction():
            return dict(self.state.analysts)

    def enrol(self, ids: np.ndarray) -> np.ndarray:
        """Give records (int64 [n] distinct ids) their accounts, where they have none: int64 [n] serials. Commits."""
        with self._transaction() as write:
            new = self.accounts.new(ids)
            if (
                len(new) or self.accounts.position == 0
            ):  # the table is there, whoever the records are
                write.keep((ENROL, -1, 0, encode_ids(new)))
        return self.accounts.serials(ids)

    def charge_prepaid(
        self,
        slot: int,
        release: str,
        identities: Sequence[str],
        serials: np.ndarray,
        most: Most,
    ) -> Reservation:
        """Charge a prepaid release, once and in full, and reserve what these queries may cost each
        record at most. Commits.

        ``serials``: int64 [n_records], distinct. ``most(granted, left)``: what is to be reserved, at
        most ``left`` (int64 [n_records] units, in the order of ``serials``). What is left is read in the
        transaction that reserves: what other processes paid by then, and what they hold, is spent.
        Queries that one of them has answered are not ``granted``.

        Raises LedgerMismatch where the records' accounts do not stand where the entries do: without them nothing is drawn.
        """
        with self._transaction() as write:
            self._require_accounts(slot)
            if not self.state.release(slot, release).prepaid:
                raise LedgerMismatch(f"release {release!r} of slot {slot} is not prepaid.")
            granted, left = self._unanswered(release, identities), self.accounts.left(slot, serials)
            if not granted:
                return Reservation(-1, (), 0, left, b"")
            seq = self.state.prepaid_charge(slot, release)
            count = int(seq is None)
            if seq is None:
                seq = write.append("charge", {"slot": slot, "release": release, "count": 1})
            token = new_token()
            write.keep(hold(slot, token, most(granted, left)))
        return Reservation(seq, granted, count, left, token)

    def record_prepaid(
        self,
        reservation: Reservation,
        results: dict[str, Value],
        payments: Payments,
    ) -> tuple[str, ...]:
        """Store a batch's results and, in the same transaction, the exact payments in place of the
        reservation. Commits.

        Returns the identities whose results were stored. Queries that another process has answered
        since they were granted keep the answer that they have; what was drawn for them is never sent,
        and is paid.
        """
        with self._transaction() as write:
            slot, release, _ = self.state.open_charges[reservation.seq]
            self._require_accounts(slot)
            fresh = self._unanswered(release, tuple(results))
            if fresh:
                stored = {identity: results[identity] for identity in fresh}
                write.append("release", {"charge": reservation.seq, "results": stored})
            write.keep(settle(slot, self.state.batches.get(slot, 0), reservation.token, payments))
            if self.accounts.since_snapshot[slot] >= SNAPSHOT_EVERY:
                write.compact(slot)
        return fresh

    def _unanswered(self, release: str, identities: Sequence[str]) -> tuple[str, ...]:
        return tuple(i for i in identities if release not in self.state.results.get(i, {}))

    def charge(self, slot: int, release: str, identities: Sequence[str]) -> Charge:
        """Pay for one release per identity, in order, as far as the cap goes; store a refusal for the rest. Commits.

        Of a release that is charged by the batch, one pays for all identities together, or all are refused.
        Nothing may be drawn for an identity before it stands in the returned ``granted``.
        """
        with self._transaction() as write:
            planned = self.state.release(slot, release)
            if planned.prepaid:
                raise LedgerMismatch(
                    f"release {release!r} of slot {slot} is prepaid: it needs a reservation."
                )
            left = self.state.left(slot, release)
            paid = len(identities) if planned.batch and left else left
            granted, refused = tuple(identities[:paid]), list(identities[paid:])
            count = min(1, len(granted)) if planned.batch else len(granted)
            seq = (
                write.append("charge", {"slot": slot, "release": release, "count": count})
                if granted
                else -1
            )
            if refused:
                write.append("refusal", {"slot": slot, "release": release, "identities": refused})
        return Charge(seq, granted, count)

    def record(self, charge: Charge, results: dict[str, Value]) -> None:
        """Store the results of a charge's draws under their queries' identities. Commits; after this they may be sent."""
        with self._transaction() as write:
            write.append("release", {"charge": charge.seq, "results": results})

    def export(self, path: Path) -> None:
        """Write all that an auditor needs to a fresh SQLite file, byte for byte a function of the entries."""
        with self._anchored.transaction() as step:
            rows = {
                table: step.connection.execute(sa.select(table).order_by(table.c[0]))
                .mappings()
                .all()
                for table in (entries, head)
            }

        def copy(target: sa.Connection) -> None:
            metadata.create_all(target)
            for table, found in rows.items():
                target.execute(table.insert(), [dict(row) for row in found])

        write_file(path, copy)

    def entries_after(self, seq: int, most: int) -> list[tuple[int, str, str]]:
        """At most so many (sequence number, kind, body as JSON) that follow entry ``seq``, in order. Public.

        From any thread: what is in memory is neither read nor touched.
        """
        chosen = sa.select(entries.c.seq, entries.c.kind, entries.c.body).where(entries.c.seq > seq)
        with self._anchored.transaction() as step:
            found = step.connection.execute(chosen.order_by(entries.c.seq).limit(most)).all()
        return [(row.seq, row.kind, row.body) for row in found]

    def in_custody(self, work: Callable[[sa.Connection], T], purged: str | None = None) -> T:
        """Run ``work`` on the private tables beside the entries, in one durable transaction. Nothing of it is exported.

        ``purged``: the table whose deleted rows are gone from the database's files, too, when this returns.
        """
        with self._anchored.transaction() as step:
            found = work(step.connection)
        if purged is not None:
            self._database.purge(purged)
        return found

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[Write]:
        """One exclusive transaction: catch up with what is stored, append, commit, move the anchor.

        Whatever goes wrong, the state in memory is dropped and replayed by the next transaction: a commit that failed, or that
        nobody confirmed, was either stored, and then counts, or it was not, and nothing that it paid for has left.
        """
        try:
            with self._anchored.transaction() as step:
                self._catch_up(step.connection)
                yield Write(
                    append=lambda kind, body: self._append(step.writing(), kind, body),
                    keep=lambda row: accounts_table.keep(step.writing(), self.accounts, row),
                    compact=lambda slot: accounts_table.compact(
                        step.writing(), self.accounts, slot
                    ),
                )
        except BaseException:
            self.state, self.accounts = LedgerState(), Accounts()
            raise
        self._newest = self.state.seq, self.state.head

    def _catch_up(self, connection: sa.Connection) -> None:
        """Take in what is new. Raises LedgerMismatch where the stored ledger does not go on from what was seen of it."""
        for row in connection.execute(
            sa.select(entries).where(entries.c.seq > self.state.seq).order_by(entries.c.seq)
        ):
            self._take(row.seq, row.kind, row.body, row.prev, row.hash)
        seq, digest = self._newest
        stored = connection.execute(sa.select(head.c.seq, head.c.hash)).one()
        if tuple(stored) != (self.state.seq, self.state.head) or (
            seq >= 0 and self.state.hashes[seq : seq + 1] != [digest]
        ):
            raise LedgerMismatch(
                "the stored ledger is older than, or forked from, what this process has seen of it."
            )
        if self._prepaid():
            accounts_table.replay(connection, self.accounts)

    def _prepaid(self) -> bool:
        return self.state.plan is not None and any(
            release.prepaid for release in self.state.plan.releases()
        )

    def _require_accounts(self, slot: int) -> None:
        if self.state.batches.get(slot, 0) != self.accounts.batches.get(slot, 0):
            raise LedgerMismatch(DAMAGED)

    def _append(self, connection: sa.Connection, kind: str, body: dict[str, object]) -> int:
        seq, prev, text = self.state.seq + 1, self.state.head, canonical_json(body).decode()
        digest = entry_hash(seq, kind, text, prev)
        self._take(seq, kind, text, prev, digest)
        connection.execute(
            entries.insert(), {"seq": seq, "kind": kind, "body": text, "prev": prev, "hash": digest}
        )
        connection.execute(head.update(), {"seq": seq, "hash": digest})
        return seq

    def _take(self, seq: int, kind: str, text: str, prev: str, digest: str) -> None:
        chained = (
            seq == self.state.seq + 1
            and prev == self.state.head
            and digest == entry_hash(seq, kind, text, prev)
        )
        if not chained:
            raise LedgerMismatch(f"entry {seq} of the ledger does not continue the chain.")
        self.state.apply(kind, read_body(text), digest)
