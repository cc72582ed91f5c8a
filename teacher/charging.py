"""How answers are paid for: charge or reserve, draw, record; then reply.

Nothing is drawn before its charge is committed, and nothing is sent before it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np

from ..wall.labels.base import LabelSpace
from ..wall.messages import Answers, Outcome, Receipt, Value
from .ledger.charges import Charge, Reservation, UpperBound
from .ledger.individual_budgets import Payments
from .ledger.ledger import Ledger
from .ledger.state import LedgerState
from .mechanisms.base import Charging, Mechanism, Prepaid
from .mechanisms.earlier_answers import EarlierAnswers, Reused
from .mechanisms.voters import Voters
from .noise.entropy import Entropy

Failures = Callable[[], AbstractContextManager[None]]


@dataclass
class Charged:
    """What one call of a teacher was charged. ``reused``: its queries on which answers voted."""

    entries: list[tuple[str, Charge | Reservation]] = field(default_factory=list)
    reused: int = 0

    def granted(self, stage: str) -> set[str]:
        """Identities that charges of ``stage`` pay for."""
        return {i for entered, charge in self.entries if entered == stage for i in charge.granted}

    def by_stage(self, stages: Sequence[str]) -> dict[str, int]:
        """How many releases of each stage were charged."""
        counts = dict.fromkeys(stages, 0)
        for stage, charge in self.entries:
            counts[stage] += charge.count
        return counts


@dataclass(frozen=True, eq=False)
class Batch:
    """Distinct queries of one slot that are settled together, in the order of ``keys``.

    ``serials``: int64 [n_records], the voters' places among the enrolled; of a prepaid mechanism.
    ``memory``: answers that vote on later queries, where the mechanism uses them.
    """

    slot: int
    mechanism: Mechanism
    keys: Sequence[str]
    voters: Voters
    serials: np.ndarray = field(repr=False)
    memory: EarlierAnswers | None = None


def is_settled(state: LedgerState, mechanism: Mechanism, identity: str) -> bool:
    """Whether a query needs no further release: it was answered, abstained on or refused."""
    refused = identity in state.refused
    return refused or mechanism.next_stage(state.results.get(identity, {})) is None


def settle(
    batch: Batch, ledger: Ledger, entropy: Entropy, charged: Charged, failures: Failures
) -> None:
    """Take a batch through the mechanism's releases. ``failures``: what surrounds private work.

    Raises LedgerMismatch where the ledger refuses, and what ``failures`` makes of the rest.
    """
    mechanism = batch.mechanism
    if not isinstance(mechanism, Prepaid):
        _settle_by_stage(batch, ledger, entropy, charged, failures)
        return
    with failures():
        _settle_prepaid(batch, mechanism, ledger, entropy, charged)


def _settle_by_stage(
    batch: Batch, ledger: Ledger, entropy: Entropy, charged: Charged, failures: Failures
) -> None:
    """Charge, draw and record each stage in turn, for the queries that need it.

    A stage's results and the next stage's charge are one commit.
    """
    mechanism, stages = batch.mechanism, batch.mechanism.stages
    row = {identity: position for position, identity in enumerate(batch.keys)}

    def due(stage: str) -> list[str]:
        results, refused = ledger.state.results, ledger.state.refused
        waiting = [i for i in batch.keys if i not in refused]
        return [i for i in waiting if mechanism.next_stage(results.get(i, {})) == stage]

    charge: Charge | None = None
    for stage, following in zip(stages, [*stages[1:], None], strict=True):
        if charge is None:
            charge = ledger.charge(batch.slot, stage, due(stage))
        charged.entries.append((stage, charge))
        if not charge.granted:
            charge = None
            continue
        with failures():
            voters = batch.voters.select([row[i] for i in charge.granted])
            drawn = mechanism.draw(stage, voters, charge.granted, entropy)
            results = dict(zip(charge.granted, drawn.tolist(), strict=True))
            if following is None:
                ledger.record(charge, results)
            else:
                charge = ledger.record_and_charge(
                    charge, results, following, partial(due, following)
                )


def _settle_prepaid(
    batch: Batch, prepaid: Prepaid, ledger: Ledger, entropy: Entropy, charged: Charged
) -> None:
    """Reserve, draw, pay and answer; earlier answers vote where the mechanism reuses them."""
    voters, memory, reused = batch.voters, batch.memory, None
    if memory is not None:
        select = prepaid.select(voters.length)
        reused = memory.votes(ledger.state.results, select, voters.queries, voters.num_classes)
    serials, keys = batch.serials, batch.keys
    mine, reservation = answer_prepaid(
        ledger, batch.slot, prepaid, voters, serials, keys, entropy, reused
    )
    charged.entries.append((prepaid.stages[0], reservation))
    if memory is not None and reused is not None:
        memory.add(keys, voters.queries)
        charged.reused += int((reused.counts[mine] > 0).sum())


class PrepaidLedger(Protocol):
    """What a prepaid batch needs of a ledger."""

    def charge_prepaid(
        self,
        slot: int,
        release: str,
        identities: Sequence[str],
        serials: np.ndarray,
        upper_bound: UpperBound,
    ) -> Reservation: ...

    def record_prepaid(
        self, reservation: Reservation, results: dict[str, Value], payments: Payments
    ) -> tuple[str, ...]: ...


def answer_prepaid(
    ledger: PrepaidLedger,
    slot: int,
    mechanism: Prepaid,
    voters: Voters,
    serials: np.ndarray,
    keys: Sequence[str],
    entropy: Entropy,
    reused: Reused | None = None,
) -> tuple[list[int], Reservation]:
    """Answer distinct queries and commit; what they cost each record is private.

    1. Committed: the most that this batch can cost each record is reserved, and the slot is charged
       if it is not yet.
    2. Drawn in memory: one query after the other, each with the budgets that the last one left.
    3. Committed together: the answers, and the exact payments in place of the reservation.

    A crash before 1 leaves nothing behind. A crash between 1 and 3 leaves the reservation paid: no
    answer was seen, and the same queries pay again. Other processes may reserve and pay in between:
    no step fails for it, and which queries are drawn and recorded follows from public entries.

    Args:
        serials: int64 [n_records], places of the voters' records among the enrolled.
        keys: the queries' identities.
        reused: what earlier answers say on them.

    Returns the places of the keys whose answers were drawn and recorded here, ascending (the others
    have another process's answer), and the reservation. Raises LedgerMismatch.
    """
    similar = voters.similar(mechanism.select(voters.length), mechanism.hashing())
    place = {key: j for j, key in enumerate(keys)}

    def most(granted: tuple[str, ...], remaining: np.ndarray) -> Payments:
        nearby = [similar[place[key]] for key in granted]
        return Payments.of(serials, mechanism.reserve(nearby, remaining))

    reservation = ledger.charge_prepaid(slot, mechanism.stages[0], keys, serials, most)
    granted = reservation.granted
    if not granted:
        return [], reservation
    rows = [place[key] for key in granted]
    values, paid = mechanism.answer(
        [similar[j] for j in rows],
        reservation.remaining,
        voters.labels,
        voters.num_classes,
        granted,
        entropy,
        None if reused is None else Reused(reused.sums[rows], reused.counts[rows]),
    )
    results = dict(zip(granted, values.tolist(), strict=True))
    stored = ledger.record_prepaid(reservation, results, Payments.of(serials, paid))
    return [place[key] for key in stored], reservation


def replies(
    state: LedgerState,
    slot: int,
    mechanism: Mechanism,
    space: LabelSpace,
    calls: Sequence[Sequence[str]],
    todo: Sequence[str],
    charged: Charged,
) -> list[Answers]:
    """Each call's answers. ``calls``: identities of its rows; ``todo``: those that were new.

    A new query is charged to the first call that asks it and served to the others. A charge for a
    batch, or for all answers, is that of the first call with a new query. Receipts state what this
    process entered for these calls, so those of several processes over one ledger add up as well.
    """
    unclaimed, answers = set(todo), []
    once = charged.by_stage(mechanism.stages)
    by_query = mechanism.charging is Charging.PER_QUERY
    granted = {stage: charged.granted(stage) for stage in mechanism.stages}
    for own in calls:
        new = unclaimed.intersection(own)
        unclaimed -= new
        if by_query:
            paid = {stage: len(new & queries) for stage, queries in granted.items()}
        else:
            paid = once if new else dict.fromkeys(once, 0)
            once = dict.fromkeys(once, 0) if new else once
        distinct = list(dict.fromkeys(own))
        known = receipt(
            state, slot, mechanism, len(own), len(distinct) - len(new), paid, charged.reused
        )
        details = mechanism.receipt([state.results.get(i, {}) for i in distinct])
        answers.append(_answers(state, mechanism, space, own, replace(known, cliques=details)))
    return answers


def _answers(
    state: LedgerState,
    mechanism: Mechanism,
    space: LabelSpace,
    own: Sequence[str],
    of_call: Receipt,
) -> Answers:
    labels = space.no_labels(len(own))
    outcomes = np.full(len(own), Outcome.CAP_REACHED, dtype=np.uint8)
    for row, identity in enumerate(own):
        if identity not in state.refused:
            outcomes[row], labels[row] = mechanism.outcome(state.results[identity])
    return Answers(labels, outcomes, of_call)


def receipt(
    state: LedgerState,
    slot: int,
    mechanism: Mechanism,
    asked: int,
    served: int,
    charged: dict[str, int],
    reused: int,
) -> Receipt:
    """What a call cost, and where the ledger stands. ``served``: queries answered for nothing."""
    return Receipt(
        asked=asked,
        served=served,
        charged=charged,
        left={stage: state.remaining(slot, stage) for stage in mechanism.stages},
        ledger_position=state.seq,
        ledger_head=state.head,
        reused=reused,
        adversary=state.adversary,
        unit="row" if state.plan is None else state.plan.unit,
    )
