"""The ledger: an append-only, hash-chained list of charges and releases.

A charge is durable before anything is drawn, and a result before it is sent. The order is

    charge (commit)  ->  draw  ->  record the results (commit)  ->  send

A charge whose results were never recorded stays spent. The same query pays again in full when it
comes back, so the recorded loss is never below what was released.

The table `entries` (seq, kind, body, prev, hash) has all that is public, but for the extractors'
fields, which it names by their hash (ledger_tables.py); it is replayed when the ledger is opened. A
private table has what each record paid under a prepaid release (individual_budgets.py), written in
the same transactions.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import sqlalchemy as sa

from ...wall.errors import LedgerMismatch
from ...wall.files import FORMAT
from ...wall.guarantee import POOLED
from ...wall.messages import Value, canonical_json
from ..accounting.plan import Plan
from . import ledger_tables
from .anchor import StoredLedger
from .database import open_database
from .individual_budgets import (
    DAMAGED,
    ENROL,
    HOLD,
    SETTLE,
    TOKEN_BYTES,
    IndividualBudgets,
    Row,
    encode_integers,
    payment_row,
)
from .ledger_tables import private
from .state import GENESIS_PREV, LedgerState, entry_hash
from .url import Place

# Batches between two snapshots: bounds the rows that are kept, and so what opening a ledger
# replays.
SNAPSHOT_EVERY = 64
# (identities granted, int64 [n_records] remaining units) -> what to reserve, int64 [n_records]
UpperBound = Callable[[tuple[str, ...], np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Charge:
    """A committed charge, or the prepaid one that a reservation draws under: entry ``seq``.

    ``granted``: the identities that it pays for, in request order; none of them is answered yet.
    Where there are none, nothing is charged and nothing reserved. ``count``: releases that it added
    to what is spent, 0 where a prepaid release was charged before.
    """

    seq: int
    granted: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Reservation(Charge):
    """A committed reservation under a prepaid charge.

    ``serials``, ``remaining``: int64 [n_records], the records and the units that each had before
    this reservation. ``token``: names the reservation when the exact payments replace it.
    """

    serials: np.ndarray = field(repr=False)
    remaining: np.ndarray = field(repr=False)
    token: bytes = field(repr=False)


class Ledger(StoredLedger):
    """The ledger of one data set, in an SQLite file or a schema of PostgreSQL.

    Several processes may share one: each transaction is exclusive, and first replays what the
    others have written.

    ``anchor``: the place of its anchor (anchor.py), created for a ledger that has none: of all
    copies it lets one continue. A ledger that has one is not written without it, nor one that is
    older than what this object has read.

    Raises LedgerMismatch for what is refused, and where there is no ledger or it does not replay.
    """

    def __init__(self, place: Place, anchor: Place | None = None) -> None:
        super().__init__(place, anchor)
        if not self._database.exists():
            raise LedgerMismatch(
                f"there is no ledger {self._database.name}; it is created with the data set's "
                "first plan."
            )
        # (seq, hash) of the last entry that this process knows to be stored
        self._newest = (-1, GENESIS_PREV)
        self._extractor: tuple[str, str] | None = None  # (hash, fields) of the one in use
        self.state, self.individual_budgets = LedgerState(), IndividualBudgets()
        self.written = 0  # bytes of the entries and extractors that this object has stored
        self.catch_up()

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
    ) -> "Ledger":
        """Start a data set's ledger with its plan.

        ``unsafe``: noise comes from a test tape, so the ledger certifies epsilon = infinity.
        ``adversary``: against whom the plan's certificate holds (wall/guarantee.py). EACH starts a
        register, which is never charged.
        """
        body = {"format": FORMAT, "dataset": dataset, "unsafe": unsafe}
        text = canonical_json({**body, "adversary": adversary, "plan": plan.to_json()}).decode()
        open_database(place).create(lambda connection: ledger_tables.begin(connection, text))
        return cls(place, anchor)

    def catch_up(self) -> None:
        """Read what other processes have written since. Raises LedgerMismatch."""
        with self._transaction():
            pass

    def use_extractor(self, fields: dict[str, object]) -> None:
        """Set the public extractor of what this object charges or refuses from now on.

        A transaction that does so names it first, if another was named last.
        """
        text = canonical_json(fields)
        self._extractor = hashlib.sha256(text).hexdigest(), text.decode()

    def enter_analyst(self, name: str, dataset: str) -> None:
        """Enter an analyst and the data set of their own ledger in a register. Raises
        LedgerMismatch for an analyst, or a data set, that is already entered.
        """
        with self._transaction() as connection:
            self._append(connection, "analyst", {"name": name, "dataset": dataset})

    def analysts(self) -> dict[str, str]:
        """A register's analysts and the data sets of their ledgers, as stored now."""
        with self._transaction():
            return dict(self.state.analysts)

    def enrol(self, ids: np.ndarray) -> np.ndarray:
        """Give records (int64 [n], distinct) without an individual budget one, and commit.

        Returns the records' serials, int64 [n].
        """
        with self._transaction() as connection:
            new = np.setdiff1d(ids, self.individual_budgets.ids)
            # The first call writes a row even without records, so the table exists in any case.
            if len(new) or self.individual_budgets.position == 0:
                self._append_private(connection, (ENROL, -1, 0, encode_integers(new)))
        return self.individual_budgets.serials(ids)

    def charge_prepaid(
        self,
        slot: int,
        release: str,
        identities: Sequence[str],
        serials: np.ndarray,
        upper_bound: UpperBound,
    ) -> Reservation:
        """Charge a prepaid release once and in full, reserve an upper bound of these queries' cost
        to each record, and commit.

        ``serials``: int64 [n_records], distinct.
        ``upper_bound(granted, remaining)``: what to reserve, at most ``remaining`` (int64
        [n_records] units, in the order of ``serials``), read in this transaction: what other
        processes have paid or reserved is spent. What they have answered is not ``granted``.

        Raises LedgerMismatch where the individual budgets do not match the entries; then nothing is
        drawn.
        """
        with self._transaction() as connection:
            self._require_matching_budgets(slot)
            if not self.state.release(slot, release).prepaid:
                raise LedgerMismatch(f"release {release!r} of slot {slot} is not prepaid.")
            granted = self._unanswered(release, identities)
            remaining = self.individual_budgets.remaining(slot, serials)
            if not granted:
                return Reservation(-1, (), 0, serials, remaining, b"")
            self._name_extractor(connection)
            charges = self.state.open_charges.items()
            seq = next((seq for seq, paid in charges if paid[:2] == (slot, release)), None)
            count = int(seq is None)
            if seq is None:
                seq = self._append(
                    connection, "charge", {"slot": slot, "release": release, "count": 1}
                )
            token = secrets.token_bytes(TOKEN_BYTES)
            bound = upper_bound(granted, remaining)
            self._append_private(connection, payment_row(HOLD, slot, 0, token, serials, bound))
        return Reservation(seq, granted, count, serials, remaining, token)

    def record_prepaid(
        self, reservation: Reservation, results: dict[str, Value], payments: np.ndarray
    ) -> tuple[str, ...]:
        """Store a batch's results and its exact ``payments`` in one transaction, and commit.

        ``payments``: int64 [n_records] units, in the order of the reservation's serials, which they
        replace.

        Returns the identities whose results were stored. A query that another process has answered
        since it was granted keeps that answer; what was drawn for it here is paid and never sent.
        """
        with self._transaction() as connection:
            slot, release, _ = self.state.open_charges[reservation.seq]
            self._require_matching_budgets(slot)
            unanswered = self._unanswered(release, tuple(results))
            if unanswered:
                self._name_extractor(connection)
                stored = {identity: results[identity] for identity in unanswered}
                self._append(connection, "release", {"charge": reservation.seq, "results": stored})
            batch, token = self.state.batches.get(slot, 0), reservation.token
            row = payment_row(SETTLE, slot, batch, token, reservation.serials, payments)
            self._append_private(connection, row)
            if self.individual_budgets.since_snapshot[slot] >= SNAPSHOT_EVERY:
                self._compact(connection, slot)
        return unanswered

    def _unanswered(self, release: str, identities: Sequence[str]) -> tuple[str, ...]:
        results, refused = self.state.results, self.state.refused
        left = (i for i in identities if i not in refused)
        return tuple(i for i in left if release not in results.get(i, {}))

    def charge(self, slot: int, release: str, identities: Sequence[str]) -> Charge:
        """Charge one release per identity, in order, up to the cap; refuse the others; commit.

        A release that is charged by the batch is charged once for all, or refused to all. What
        another process has answered or refused since is neither. Nothing may be drawn for an
        identity that is not in the returned ``granted``.
        """
        with self._transaction() as connection:
            return self._charge(connection, slot, release, identities)

    def record(
        self,
        charge: Charge,
        results: dict[str, Value],
        following: str | None = None,
        due: Callable[[], Sequence[str]] = tuple,
    ) -> Charge | None:
        """Store a charge's results by query identity, and commit. After this they may be sent.

        ``following``: the slot's next release. It is charged in the same transaction, to the
        identities ``due()``, asked when the results are part of the state; returns that charge.

        Where another process has answered all since, its answers stay, and what was drawn here is
        never sent. Raises LedgerMismatch where it has answered some.
        """
        with self._transaction() as connection:
            paid = self.state.open_charges.get(charge.seq)
            if paid is None or not results or self._unanswered(paid[1], tuple(results)):
                self._append(connection, "release", {"charge": charge.seq, "results": results})
            if following is None:
                return None
            assert paid is not None  # or nothing was appended
            return self._charge(connection, paid[0], following, due())

    def _charge(
        self, connection: sa.Connection, slot: int, release: str, identities: Sequence[str]
    ) -> Charge:
        planned = self.state.release(slot, release)
        if planned.prepaid:
            raise LedgerMismatch(f"{release!r} of slot {slot} is prepaid: it needs a reservation.")
        identities = self._unanswered(release, identities)
        remaining = self.state.remaining(slot, release)
        paid = len(identities) if planned.batch and remaining else remaining
        granted, refused = identities[:paid], list(identities[paid:])
        if identities:
            self._name_extractor(connection)
        count, seq = min(1, len(granted)) if planned.batch else len(granted), -1
        key = {"slot": slot, "release": release}
        if granted:
            seq = self._append(connection, "charge", {**key, "count": count})
        if refused:
            self._append(connection, "refusal", {**key, "identities": refused})
        return Charge(seq, granted, count)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """One exclusive transaction: replay what is new, append, commit, move the anchor.

        After any failure the next transaction replays the stored state. A commit that was not
        confirmed was either stored, and then it counts, or nothing that it paid for was sent.
        """
        try:
            with self._open() as connection:
                self._catch_up(connection)
                yield connection
        except BaseException:
            self.state, self.individual_budgets = LedgerState(), IndividualBudgets()
            raise
        self._newest = self.state.seq, self.state.head

    def _catch_up(self, connection: sa.Connection) -> None:
        """Replay new entries. Raises LedgerMismatch unless they continue what was read before."""
        checked = set(self.state.extractors)
        while rows := ledger_tables.page_after(connection, self.state.seq):
            for row in rows:
                self.state.apply(row.seq, row.kind, row.body, row.prev, row.hash)
        seq, digest = self._newest
        stored = connection.execute(ledger_tables.READ_HEAD).one()
        if tuple(stored) != (self.state.seq, self.state.head) or (
            seq >= 0 and self.state.hashes[seq : seq + 1] != [digest]
        ):
            raise LedgerMismatch(
                "the stored ledger is older than, or forked from, what this process has seen of it."
            )
        ledger_tables.require_extractors(connection, self.state.extractors - checked)
        plan = self.state.plan
        if plan is None or not any(release.prepaid for release in plan.releases()):
            return
        budgets = self.individual_budgets
        if budgets.position == 0 and not sa.inspect(connection).has_table(private.name):
            return  # an export, or nobody is enrolled
        newer = sa.select(private).where(private.c.position > budgets.position)
        for row in connection.execute(newer.order_by(private.c.position)):
            budgets.apply(row.position, (row.kind, row.slot, row.batch, row.body))

    def _require_matching_budgets(self, slot: int) -> None:
        if self.state.batches.get(slot, 0) != self.individual_budgets.batches.get(slot, 0):
            raise LedgerMismatch(DAMAGED)

    def _append_private(self, connection: sa.Connection, row: Row) -> None:
        budgets = self.individual_budgets
        self._writing(connection)
        if budgets.position == 0:
            private.create(connection, checkfirst=True)
        budgets.apply(budgets.position + 1, row)
        stored = dict(zip(private.columns.keys(), (budgets.position, *row), strict=True))
        connection.execute(private.insert(), stored)

    def _compact(self, connection: sa.Connection, slot: int) -> None:
        """Write a slot's snapshot and delete the rows that it replaces.

        So neither the file nor a replay grows with the answers. Open reservations are written again
        after the snapshot, so that their batches can still replace them.
        """
        before = self.individual_budgets.position
        for row in self.individual_budgets.snapshot(slot):
            self._append_private(connection, row)
        earlier = (private.c.slot == slot) & (private.c.position <= before)
        connection.execute(private.delete().where(earlier))

    def _name_extractor(self, connection: sa.Connection) -> None:
        """Name the extractor in use, whatever another process named since, and store a new one."""
        if self._extractor is None or self.state.extractor == self._extractor[0]:
            return
        sha256, text = self._extractor
        if sha256 in self.state.extractors:
            ledger_tables.require_extractors(connection, [sha256])
        else:
            values = {"sha256": sha256, "fields": text}
            self._writing(connection).execute(ledger_tables.extractors.insert(), values)
            self.written += len(text)
        self._append(connection, "extractor", {"sha256": sha256})

    def _append(self, connection: sa.Connection, kind: str, body: dict[str, object]) -> int:
        """Write a public entry; returns its sequence number."""
        seq, prev, text = self.state.seq + 1, self.state.head, canonical_json(body).decode()
        digest = entry_hash(seq, kind, text, prev)
        self._writing(connection)
        self.state.apply(seq, kind, text, prev, digest)
        ledger_tables.append(connection, seq, kind, text, prev, digest)
        self.written += len(text)
        return seq
