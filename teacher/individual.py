"""One batch of a mechanism with individual budgets, in the order that a crash must find: reserve, draw, pay and answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from labelwall.teacher.ledger.individual_budgets import Payments
from labelwall.teacher.ledger.ledger import Reservation, UpperBound
from labelwall.teacher.mechanisms.ind_knn.mechanism import ANSWER, IndKnn, Reused
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import Entropy
from labelwall.wall.messages import Value


class Books(Protocol):
    """What a batch needs of a ledger."""

    def charge_prepaid(
        self,
        slot: int,
        release: str,
        identities: Sequence[str],
        serials: np.ndarray,
        upper_bound: UpperBound,
    ) -> Reservation: ...

    def record_prepaid(
        self,
        reservation: Reservation,
        results: dict[str, Value],
        payments: Payments,
    ) -> tuple[str, ...]: ...


def answer_individually(
    ledger: Books,
    slot: int,
    mechanism: IndKnn,
    voters: Voters,
    serials: np.ndarray,
    keys: Sequence[str],
    entropy: Entropy,
    reused: Reused | None = None,
) -> tuple[list[int], Reservation]:
    """Answer distinct queries and commit; what they cost each record is private.

    ``serials``: int64 [n_records], places of the voters' records among the enrolled. ``keys``: the queries' identities.
    ``reused``: what earlier answers say on them. Returns the places of the keys whose answers were
    drawn and recorded here, in ascending order (the others have another process's), and what was
    reserved for them.

    1. Committed: the most that this batch can cost each record is reserved, and the slot's rho is charged if it is not yet.
    2. Drawn in memory: the queries one after the other, each with the budgets that the last one left.
    3. Committed together: the answers, and the exact payments in place of the reservation.

    A crash before 1 leaves nothing behind. A crash between 1 and 3 leaves the reservation paid: no answer was seen, and the
    same queries pay again. Other processes may reserve and pay in between: none of the steps fails
    for it, and which of the queries are drawn and recorded follows from public entries.
    Raises LedgerMismatch where the ledger refuses.
    """
    similar = voters.similar(mechanism.select(voters.length), mechanism.hashing())
    place = {key: j for j, key in enumerate(keys)}

    def most(granted: tuple[str, ...], left: np.ndarray) -> Payments:
        nearby = [similar[place[key]] for key in granted]
        return Payments.of(serials, mechanism.reserve(nearby, left))

    held = ledger.charge_prepaid(slot, ANSWER, keys, serials, most)
    if not held.granted:
        return [], held
    rows = [place[key] for key in held.granted]
    nearby = [similar[j] for j in rows]
    public = None if reused is None else Reused(reused.sums[rows], reused.counts[rows])
    values, paid = mechanism.answer(
        nearby,
        held.remaining,
        voters.labels,
        voters.num_classes,
        held.granted,
        entropy,
        public,
    )
    results = dict(zip(held.granted, values.tolist(), strict=True))
    stored = ledger.record_prepaid(held, results, Payments.of(serials, paid))
    return [place[key] for key in stored], held
