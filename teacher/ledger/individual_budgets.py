"""What each record has paid: private integers beside the ledger's entries, in the same file and transactions.

A prepaid release (Ind-KNN) owes its guarantee to these numbers, so they are as durable as the answers: a reservation, an
upper bound of what a batch may cost each record, is on disk before any noise of the batch is drawn; the exact payments
replace it in the transaction that records the answers. After a crash between the two the reservation stands.
A reservation has a token that only its batch knows. So batches of several processes may be open at
once: what one of them reserved is spent for all others, and each pays in place of its own alone.
Nothing here is ever exported: who paid tells who is near a query, and that a record exists.
"""

from __future__ import annotations

import secrets
import zlib
from dataclasses import dataclass, field

import numpy as np

from labelwall.wall.errors import LedgerMismatch

FULL = (
    1 << 40
)  # units of one record's whole budget, for every slot: payments are integers, rounded up
ENROL, HOLD, SETTLE, SNAPSHOT = "enrol", "hold", "settle", "snapshot"
RESERVE, PAY = "reserve", "pay"  # as written before batches had tokens: one open at a time
TOKEN_BYTES, NOBODY = 16, b""  # the second: the token of a row without one
DAMAGED = "the records' budgets beside the ledger are missing or damaged. Restore the newest copy; nothing was released."

Row = tuple[str, int, int, bytes]  # (kind, slot, batch, body), as one line of the private table


@dataclass(frozen=True)
class Payments:
    """``serials``: int64 [m], ascending, places of records among the enrolled; ``amounts``: int64 [m] units, at least 1."""

    serials: np.ndarray = field(repr=False)
    amounts: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, serials: np.ndarray, amounts: np.ndarray) -> Payments:
        """From units by record, zeros and any order allowed; ``serials`` are distinct."""
        paying = np.flatnonzero(amounts)
        order = paying[np.argsort(serials[paying])]
        return cls(serials[order], amounts[order])

    def encode(self) -> bytes:
        """Differences of serials (uint32), then amounts (int64), compressed."""
        steps = np.diff(self.serials, prepend=0).astype("<u4")
        return zlib.compress(steps.tobytes() + self.amounts.astype("<i8").tobytes(), 1)

    @classmethod
    def decode(cls, body: bytes) -> Payments:
        """Inverse of ``encode``. Raises LedgerMismatch for anything else."""
        plain = _plain(body)
        if len(plain) % 12:
            raise LedgerMismatch(DAMAGED)
        m = len(plain) // 12
        steps, amounts = (
            np.frombuffer(plain, "<u4", count=m),
            np.frombuffer(plain, "<i8", offset=4 * m),
        )
        return cls(np.cumsum(steps, dtype=np.int64), amounts.astype(np.int64))


@dataclass
class Accounts:
    """The replayed private table: who is enrolled, and what each has spent in each slot.

    A record is known by its id and, in here, by its serial: the place at which it was enrolled. Serials are for ever: a record
    that is removed stays enrolled (a tombstone: id and what it spent), so that adding it again does not refill it.
    """

    position: int = 0  # of the last row taken from the table
    ids: np.ndarray = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False
    )  # int64 [enrolled], by serial
    spent: dict[int, np.ndarray] = field(
        default_factory=dict, repr=False
    )  # slot -> int64 [enrolled] units
    batches: dict[int, int] = field(default_factory=dict)  # slot -> batches paid
    # slot -> token -> of a batch that is being drawn, or whose process died
    reserved: dict[int, dict[bytes, Payments]] = field(default_factory=dict, repr=False)
    since_snapshot: dict[int, int] = field(
        default_factory=dict
    )  # slot -> payment rows a replay has to read

    def left(self, slot: int, serials: np.ndarray) -> np.ndarray:
        """What records may still pay: int64 [m] units, never negative. An open reservation counts as paid.

        Raises LedgerMismatch where one of ``serials`` (int64 [m]) is not enrolled.
        """
        _require(int(serials.max(initial=-1)) < len(self.ids))
        return FULL - self._spent(slot)[serials]

    def new(self, ids: np.ndarray) -> np.ndarray:
        """Those of ``ids`` (int64 [n], distinct) that are not enrolled: int64 [m], ascending."""
        return np.setdiff1d(ids, self.ids)

    def serials(self, ids: np.ndarray) -> np.ndarray:
        """Serials of enrolled ids: int64 [n]. Raises LedgerMismatch where one is not enrolled."""
        order = np.argsort(self.ids, kind="stable")
        at = np.searchsorted(self.ids, ids, sorter=order)
        if len(ids) and (at.max(initial=0) >= len(order) or (self.ids[order[at]] != ids).any()):
            raise LedgerMismatch(DAMAGED)
        return order[at] if len(ids) else np.zeros(0, dtype=np.int64)

    def apply(self, position: int, row: Row) -> None:
        """Take in one row of the table. Raises LedgerMismatch for an unknown kind and for payments that do not fit."""
        kind, slot, batch, body = row
        if kind == ENROL:
            self._enrol(np.frombuffer(_plain(body), "<i8").astype(np.int64))
        elif kind == HOLD:
            self._reserve(slot, *_owned(body))
        elif kind == SETTLE:
            _require(batch - self.batches.get(slot, 0) in (0, 1))
            self._pay(slot, batch, *_owned(body))
        elif kind in (RESERVE, PAY):
            self._apply_without_token(kind, slot, batch, Payments.decode(body))
        elif kind == SNAPSHOT:
            self._snapshot(slot, batch, np.frombuffer(_plain(body), "<i8").astype(np.int64))
        else:
            raise LedgerMismatch(DAMAGED)
        self.position = position

    def snapshot(self, slot: int) -> list[Row]:
        """The rows that make all earlier payment rows of a slot unnecessary: what is paid for good,
        then what is reserved."""
        spent = self._spent(slot).copy()
        held = [one for one in self.reserved.get(slot, {}).items() if one[0] != NOBODY]
        for _, payments in held:
            spent[payments.serials] -= payments.amounts
        body = zlib.compress(spent.astype("<i8").tobytes(), 1)
        paid = SNAPSHOT, slot, self.batches.get(slot, 0), body
        return [paid, *(hold(slot, *one) for one in held)]

    def _spent(self, slot: int) -> np.ndarray:
        """int64 [enrolled], grown with zeros to all that are enrolled by now."""
        spent = self.spent.get(slot, np.zeros(0, dtype=np.int64))
        if len(spent) < len(self.ids):
            spent = np.concatenate([spent, np.zeros(len(self.ids) - len(spent), dtype=np.int64)])
            self.spent[slot] = spent
        return spent

    def _enrol(self, ids: np.ndarray) -> None:
        _require(len(np.unique(ids)) == len(ids) and not np.isin(ids, self.ids).any())
        self.ids = np.concatenate([self.ids, ids])

    def _apply_without_token(self, kind: str, slot: int, batch: int, payments: Payments) -> None:
        """A reservation after one that was never settled: its process died, so the earlier one stays paid."""
        _require(batch == self.batches.get(slot, 0) + 1)
        if kind == RESERVE:
            self.reserved.get(slot, {}).pop(NOBODY, None)
            self._reserve(slot, NOBODY, payments)
        else:
            self._pay(slot, batch, NOBODY, payments)

    def _reserve(self, slot: int, token: bytes, payments: Payments) -> None:
        reserved = self.reserved.setdefault(slot, {})
        _require(token not in reserved)
        self._add(slot, payments, 1)
        reserved[token] = payments

    def _pay(self, slot: int, batch: int, token: bytes, payments: Payments) -> None:
        """Exact payments in place of the token's reservation, which bounds them record by record.

        ``batch``: how many batches of the slot have answers by now, this one included if it has any.
        """
        _require(token in self.reserved.get(slot, {}))
        reserved, spent = self.reserved[slot].pop(token), self._spent(slot)
        before = np.zeros(len(spent), dtype=np.int64)
        before[reserved.serials] = reserved.amounts
        _require(len(payments.serials) == 0 or int(payments.serials[-1]) < len(spent))
        _require(bool((payments.amounts <= before[payments.serials]).all()))
        self._add(slot, reserved, -1)
        self._add(slot, payments, 1)
        self.batches[slot] = batch
        self.since_snapshot[slot] = self.since_snapshot.get(slot, 0) + 1

    def _snapshot(self, slot: int, batch: int, spent: np.ndarray) -> None:
        _require(len(spent) <= len(self.ids) and bool(((spent >= 0) & (spent <= FULL)).all()))
        self.spent[slot], self.batches[slot], self.since_snapshot[slot] = spent.copy(), batch, 0
        self.reserved.pop(slot, None)

    def _add(self, slot: int, payments: Payments, sign: int) -> None:
        spent = self._spent(slot)
        _require(len(payments.serials) == 0 or int(payments.serials[-1]) < len(spent))
        _require(bool((payments.amounts > 0).all() and (np.diff(payments.serials) > 0).all()))
        after = spent[payments.serials] + sign * payments.amounts
        _require(bool(((after >= 0) & (after <= FULL)).all()))
        spent[payments.serials] = after


def new_token() -> bytes:
    """Of a reservation: nobody else comes by it, also where an older database was put back."""
    return secrets.token_bytes(TOKEN_BYTES)


def hold(slot: int, token: bytes, payments: Payments) -> Row:
    """The row of a reservation."""
    return HOLD, slot, 0, token + payments.encode()


def settle(slot: int, batch: int, token: bytes, payments: Payments) -> Row:
    """The row of the payments that take the place of the token's reservation.

    ``batch``: how many batches of the slot have answers by now.
    """
    return SETTLE, slot, batch, token + payments.encode()


def _owned(body: bytes) -> tuple[bytes, Payments]:
    """(token, payments) of a row with a token."""
    return body[:TOKEN_BYTES], Payments.decode(body[TOKEN_BYTES:])


def encode_ids(ids: np.ndarray) -> bytes:
    """int64 [n] as the body of an enrolment."""
    return zlib.compress(ids.astype("<i8").tobytes(), 1)


def _plain(body: bytes) -> bytes:
    try:
        return zlib.decompress(body)
    except (zlib.error, TypeError) as error:
        raise LedgerMismatch(DAMAGED) from error


def _require(rule: bool) -> None:
    if not rule:
        raise LedgerMismatch(DAMAGED)
