"""One batch of a mechanism with individual budgets, in the order that a crash must find: reserve, draw, pay and answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from teacher.mechanisms.electorate import Electorate
from teacher.mechanisms.ind_knn import ANSWER, IndKnn, Reused
from teacher.privacy.accounts import Accounts, Payments
from teacher.privacy.ledger import Charge
from teacher.privacy.noise import Entropy
from wall.messages import Value


class Books(Protocol):
    """What a batch needs of a ledger."""

    @property
    def accounts(self) -> Accounts: ...

    def charge_prepaid(self, slot: int, release: str, identities: Sequence[str], reservation: Payments) -> Charge: ...

    def record_prepaid(self, charge: Charge, results: dict[str, Value], payments: Payments) -> None: ...


def answer_individually(
    ledger: Books,
    slot: int,
    mechanism: IndKnn,
    voters: Electorate,
    serials: np.ndarray,
    keys: Sequence[str],
    entropy: Entropy,
    reused: Reused | None = None,
) -> Charge:
    """Answer distinct queries, none of them answered before, and commit; what they cost each record is private.

    Returns the slot's charge.

    ``serials``: int64 [n_records], places of the voters' records among the enrolled. ``keys``: the queries' identities.
    ``reused``: what earlier answers say on them.

    1. Committed: the most that this batch can cost each record is reserved, and the slot's rho is charged if it is not yet.
    2. Drawn in memory: the queries one after the other, each with the budgets that the last one left.
    3. Committed together: the answers, and the exact payments in place of the reservation.

    A crash before 1 leaves nothing behind. A crash between 1 and 3 leaves the reservation paid: no answer was seen, and the
    same queries pay again. Raises LedgerMismatch where the ledger refuses.
    """
    left = ledger.accounts.left(slot, serials)
    similar = voters.similar(mechanism.select(voters.length), mechanism.hashing())
    reservation = Payments.of(serials, mechanism.reserve(similar, left))
    charge = ledger.charge_prepaid(slot, ANSWER, keys, reservation)
    values, paid = mechanism.answer(similar, left, voters.labels, voters.num_classes, keys, entropy, reused)
    results = dict(zip(keys, values.tolist(), strict=True))
    ledger.record_prepaid(charge, results, Payments.of(serials, paid))
    return charge
