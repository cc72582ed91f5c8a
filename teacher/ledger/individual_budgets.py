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

import zlib
from dataclasses import dataclass, field

import numpy as np

from ...wall.errors import LedgerMismatch
from ..accounting.plan import FULL

ENROL, HOLD, SETTLE, SNAPSHOT = "enrol", "hold", "settle", "snapshot"
TOKEN_BYTES = 16
DAMAGED = (
    "the records' budgets beside the ledger are missing or damaged. Restore the newest copy; "
    "nothing was released."
)

Row = tuple[str, int, int, bytes]  # (kind, slot, batch, body) of the private table


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
    # slot -> int64 [enrolled] units, or fewer before later enrolments
    spent: dict[int, np.ndarray] = field(default_factory=dict, repr=False)
    # slot -> batches paid
    batches: dict[int, int] = field(default_factory=dict)
    # slot -> token -> encoded reservation of a batch that is being drawn, or whose process died
    reserved: dict[int, dict[bytes, bytes]] = field(default_factory=dict, repr=False)
    # slot -> payment rows that a replay has to read
    since_snapshot: dict[int, int] = field(default_factory=dict)

    def remaining(self, slot: int, serials: np.ndarray) -> np.ndarray:
        """Units that records may still pay: int64 [m], never negative. Open reservations are spent.

        Raises LedgerMismatch where one of ``serials`` (int64 [m]) is not enrolled.
        """
        _require(int(serials.max(initial=-1)) < len(self.ids))
        return FULL - self._spent(slot)[serials]

    def serials(self, ids: np.ndarray) -> np.ndarray:
        """Serials of enrolled ids: int64 [n]. Raises LedgerMismatch where one is not enrolled."""
        _require(bool(np.isin(ids, self.ids).all()))
        order = np.argsort(self.ids, kind="stable")
        return order[np.searchsorted(self.ids, ids, sorter=order)]

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
            token, amounts = body[:TOKEN_BYTES], self._decode(body[TOKEN_BYTES:])
            spent, reserved = self._spent(slot), self.reserved.setdefault(slot, {})
            if kind == HOLD:
                _require(len(token) == TOKEN_BYTES and token not in reserved)
                _require(bool((amounts <= FULL - spent).all()))
                reserved[token] = body[TOKEN_BYTES:]
            else:
                _require(batch - self.batches.get(slot, 0) in (0, 1) and token in reserved)
                bound = self._decode(reserved.pop(token))
                _require(bool((amounts <= bound).all()))
                spent = spent - bound
                self.batches[slot] = batch
                self.since_snapshot[slot] = self.since_snapshot.get(slot, 0) + 1
            self.spent[slot] = spent + amounts
        self.position = position

    def snapshot(self, slot: int) -> list[Row]:
        """The rows that replace a slot's earlier payment rows: what is paid, then reservations."""
        reserved = self.reserved.get(slot, {})
        paid = self._spent(slot) - sum(map(self._decode, reserved.values()))
        body = encode_integers(paid)
        holds = [(HOLD, slot, 0, token + amounts) for token, amounts in reserved.items()]
        return [(SNAPSHOT, slot, self.batches.get(slot, 0), body), *holds]

    def _spent(self, slot: int) -> np.ndarray:
        """int64 [enrolled] units; records enrolled after the last payment have spent 0."""
        spent = self.spent.get(slot, np.zeros(0, dtype=np.int64))
        return np.pad(spent, (0, len(self.ids) - len(spent)))

    def _decode(self, body: bytes) -> np.ndarray:
        """Encoded payments of enrolled records: int64 [enrolled] units. Raises LedgerMismatch."""
        values, amounts = _decode_integers(body), np.zeros(len(self.ids), dtype=np.int64)
        _require(len(values) % 2 == 0)
        steps, paid = values.reshape(2, -1)
        serials = np.cumsum(steps)
        _require(bool((np.diff(serials) > 0).all() and (paid > 0).all()))
        _require(len(serials) == 0 or (serials[0] >= 0 and int(serials[-1]) < len(amounts)))
        amounts[serials] = paid
        return amounts


def payment_row(
    kind: str, slot: int, batch: int, token: bytes, serials: np.ndarray, amounts: np.ndarray
) -> Row:
    """The row of a reservation (HOLD), or of the payments in its place (SETTLE).

    ``batch``: batches of the slot with recorded answers, this one included if it has any; 0 of a
    reservation. ``token``: random, so distinct even after an older database was restored.
    ``serials``, ``amounts``: int64 [m], distinct records and units, stored as differences of the
    serials of those who pay, then what they pay, compressed.
    """
    order = np.argsort(serials)
    paying = order[amounts[order] != 0]
    paid = np.concatenate([np.diff(serials[paying], prepend=0), amounts[paying]])
    return kind, slot, batch, token + encode_integers(paid)


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
