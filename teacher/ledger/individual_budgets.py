"""Individual budgets: what each record has paid, private, in the ledger's file and transactions.

The guarantee of a prepaid release (Ind-KNN) rests on these numbers, so they are as durable as the
answers. A reservation, an upper bound of what a batch may cost each record, is on disk before any
noise of the batch is drawn. The exact payments replace it in the transaction that records the
answers. After a crash between the two the reservation stands.

A reservation has a token that only its batch knows. Batches of several processes may therefore be
open at once: what one has reserved is spent for all others, and each replaces only its own
reservation. Nothing here is ever exported: who paid tells who is near a query, and that a record
exists.

**Several processes.** The theorem of docs/privacy.md, section 12 (its steps (a) to (c), record i,
budget z_i left) holds for every order of the transactions, and for processes that die at any point.
*Proof.* Order the batches by the transactions that record them, and let h at a recording be all
values drawn in batches recorded so far, with the order of all transactions. By induction over the
transactions, what i has spent and what each open batch holds of it are functions of (x_i, y_i) and
h: a reservation is the smaller of z_i and a price of i's own similarities, a payment follows from
the z_i read at its reservation and the batch's own values, and a dead process leaves its
reservation as it is. So (a) and (b) hold with z_i as read at the reservation. Only fresh noise,
which no other process sees, enters between a batch's reservation and its recording; so given h, the
batch has at its recording the law that its reservation fixed, and the moment bound of (c) for what
i pays in it. Payments and open reservations together never pass rho, since each reservation is at
most z_i, and each payment at most its reservation. QED

*The same query in two batches.* Both draw, the first to be recorded is the answer, and the other
value is dropped: public entries decide which. The dropped value is in h and is paid for as if it
had been sent, because what its batch paid later depends on it. A query that is answered by the time
of the reservation is neither drawn nor paid again.

*No outcome tells of a record.* A transaction is refused where the plan, the entries, the chain or
the count of batches does not fit, all of them public, or where the private rows were damaged. No
private amount can refuse one: a reservation is at most what is left in the same transaction, a
payment at most its own reservation, which only its own batch can settle, and neither is compared
with another's amount. So whether a process is answered, refused or fails, what it draws, what is
recorded in which order, and the receipts are functions of the requests, the released values and the
order of transactions, with a record as without it. Snapshots count by batches, and write others'
open reservations anew after them.
"""

from __future__ import annotations

import secrets
import zlib
from dataclasses import dataclass, field

import numpy as np

from ...wall.errors import LedgerMismatch

# Units of one record's full budget in every slot. Payments are integers, rounded up.
FULL = 1 << 40
ENROL, HOLD, SETTLE, SNAPSHOT = "enrol", "hold", "settle", "snapshot"
TOKEN_BYTES = 16
DAMAGED = (
    "the records' budgets beside the ledger are missing or damaged. Restore the newest copy; "
    "nothing was released."
)

Row = tuple[str, int, int, bytes]  # (kind, slot, batch, body) of the private table


@dataclass(frozen=True)
class Payments:
    """Payments of records.

    ``serials``: int64 [m], ascending. ``amounts``: int64 [m] units, at least 1.
    """

    serials: np.ndarray = field(repr=False)
    amounts: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, serials: np.ndarray, amounts: np.ndarray) -> Payments:
        """From units by record: zeros and any order are allowed, ``serials`` are distinct."""
        paying = np.flatnonzero(amounts)
        order = paying[np.argsort(serials[paying])]
        return cls(serials[order], amounts[order])

    def encode(self) -> bytes:
        """Differences of serials, then amounts, compressed."""
        return encode_integers(np.concatenate([np.diff(self.serials, prepend=0), self.amounts]))

    @classmethod
    def decode(cls, body: bytes) -> Payments:
        """Inverse of ``encode``. Raises LedgerMismatch for anything else."""
        values = _decode_integers(body)
        _require(len(values) % 2 == 0)
        steps, amounts = values.reshape(2, -1)
        return cls(np.cumsum(steps), amounts)


@dataclass
class IndividualBudgets:
    """The replayed private table: which records are enrolled, and what each has spent in each slot.

    A record's serial is its place in the order of enrolment. Serials are permanent: a removed
    record stays enrolled (a tombstone: id and what it spent), so adding it again does not refill
    its budget.
    """

    position: int = 0  # of the last row replayed
    # int64 [enrolled], by serial
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)
    # slot -> int64 [enrolled] units
    spent: dict[int, np.ndarray] = field(default_factory=dict, repr=False)
    # slot -> batches paid
    batches: dict[int, int] = field(default_factory=dict)
    # slot -> token -> reservation of a batch that is being drawn, or whose process died
    reserved: dict[int, dict[bytes, Payments]] = field(default_factory=dict, repr=False)
    # slot -> payment rows that a replay has to read
    since_snapshot: dict[int, int] = field(default_factory=dict)

    def remaining(self, slot: int, serials: np.ndarray) -> np.ndarray:
        """What records may still pay: int64 [m] units, never negative. Open reservations are spent.

        Raises LedgerMismatch where one of ``serials`` (int64 [m]) is not enrolled.
        """
        _require(int(serials.max(initial=-1)) < len(self.ids))
        return FULL - self._spent(slot)[serials]

    def new(self, ids: np.ndarray) -> np.ndarray:
        """The ``ids`` (int64 [n], distinct) that are not enrolled: int64 [m], ascending."""
        return np.setdiff1d(ids, self.ids)

    def serials(self, ids: np.ndarray) -> np.ndarray:
        """Serials of enrolled ids: int64 [n]. Raises LedgerMismatch where one is not enrolled."""
        order = np.argsort(self.ids, kind="stable")
        at = np.searchsorted(self.ids, ids, sorter=order)
        if len(ids) and (at.max(initial=0) >= len(order) or (self.ids[order[at]] != ids).any()):
            raise LedgerMismatch(DAMAGED)
        return order[at] if len(ids) else np.zeros(0, dtype=np.int64)

    def apply(self, position: int, row: Row) -> None:
        """Replay one row of the table.

        Raises LedgerMismatch for an unknown kind, and for payments that exceed what was reserved or
        what a budget allows.
        """
        kind, slot, batch, body = row
        _require(kind in (ENROL, HOLD, SETTLE, SNAPSHOT))
        if kind == ENROL:
            ids = _decode_integers(body)
            _require(len(np.unique(ids)) == len(ids) and not np.isin(ids, self.ids).any())
            self.ids = np.concatenate([self.ids, ids])
        elif kind == SNAPSHOT:
            spent = _decode_integers(body)
            _require(len(spent) <= len(self.ids) and bool(((spent >= 0) & (spent <= FULL)).all()))
            self.spent[slot], self.batches[slot], self.since_snapshot[slot] = spent, batch, 0
            self.reserved.pop(slot, None)
        else:
            token, payments = body[:TOKEN_BYTES], Payments.decode(body[TOKEN_BYTES:])
            self._require_serials(slot, payments)
            if kind == HOLD:
                self._reserve(slot, token, payments)
            else:
                self._pay(slot, batch, token, payments)
        self.position = position

    def snapshot(self, slot: int) -> list[Row]:
        """The rows that replace a slot's earlier payment rows: what is paid, then reservations."""
        spent, reserved = self._spent(slot).copy(), self.reserved.get(slot, {})
        for payments in reserved.values():
            spent[payments.serials] -= payments.amounts
        paid = SNAPSHOT, slot, self.batches.get(slot, 0), encode_integers(spent)
        return [paid, *(reservation_row(slot, *one) for one in reserved.items())]

    def _spent(self, slot: int) -> np.ndarray:
        """int64 [enrolled] units; records enrolled since the last call have spent 0."""
        spent = self.spent.get(slot, np.zeros(0, dtype=np.int64))
        if len(spent) < len(self.ids):
            spent = np.concatenate([spent, np.zeros(len(self.ids) - len(spent), dtype=np.int64)])
            self.spent[slot] = spent
        return spent

    def _require_serials(self, slot: int, payments: Payments) -> None:
        """Of enrolled records, ascending, with amounts that are positive."""
        serials, most = payments.serials, len(self._spent(slot))
        _require(bool((np.diff(serials) > 0).all() and (payments.amounts > 0).all()))
        _require(len(serials) == 0 or (serials[0] >= 0 and int(serials[-1]) < most))

    def _reserve(self, slot: int, token: bytes, payments: Payments) -> None:
        """Spend an upper bound of a batch until the batch pays in its place."""
        reserved = self.reserved.setdefault(slot, {})
        _require(len(token) == TOKEN_BYTES and token not in reserved)
        spent = self._spent(slot)
        _require(bool((payments.amounts <= FULL - spent[payments.serials]).all()))
        spent[payments.serials] += payments.amounts
        reserved[token] = payments

    def _pay(self, slot: int, batch: int, token: bytes, payments: Payments) -> None:
        """Replace the token's reservation by exact payments, which it bounds record by record.

        ``batch``: batches of the slot with recorded answers, this one included if it has any.
        """
        _require(batch - self.batches.get(slot, 0) in (0, 1))
        _require(token in self.reserved.get(slot, {}))
        reserved, spent = self.reserved[slot].pop(token), self._spent(slot)
        most = np.zeros(len(spent), dtype=np.int64)
        most[reserved.serials] = reserved.amounts
        _require(bool((payments.amounts <= most[payments.serials]).all()))
        spent[reserved.serials] -= reserved.amounts
        spent[payments.serials] += payments.amounts
        self.batches[slot] = batch
        self.since_snapshot[slot] = self.since_snapshot.get(slot, 0) + 1


def new_token() -> bytes:
    """A reservation's token: random, so distinct even after an older database was restored."""
    return secrets.token_bytes(TOKEN_BYTES)


def reservation_row(slot: int, token: bytes, payments: Payments) -> Row:
    """The row of a reservation."""
    return HOLD, slot, 0, token + payments.encode()


def payment_row(slot: int, batch: int, token: bytes, payments: Payments) -> Row:
    """The row of the payments that replace the token's reservation.

    ``batch``: batches of the slot with recorded answers, this one included if it has any.
    """
    return SETTLE, slot, batch, token + payments.encode()


def encode_integers(values: np.ndarray) -> bytes:
    """int64 [n] as the body of an enrolment (ids) or a snapshot (units spent), compressed."""
    return zlib.compress(values.astype("<i8").tobytes(), 1)


def _decode_integers(body: bytes) -> np.ndarray:
    """Inverse of ``encode_integers``."""
    try:
        return np.frombuffer(zlib.decompress(body), "<i8").astype(np.int64)
    except (zlib.error, TypeError, ValueError) as error:
        raise LedgerMismatch(DAMAGED) from error


def _require(rule: bool) -> None:
    if not rule:
        raise LedgerMismatch(DAMAGED)
