"""How answers are paid for: tally, charge or reserve, draw, record; then reply.

Nothing is drawn before its charge is committed, and nothing is sent before it is recorded. The
tally of the records, which takes long, comes first, so that a kill hardly ever loses a charge.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from ..wall.labels import LabelSpace
from ..wall.messages import Answers, Outcome, Receipt
from .ledger.ledger import Charge, Ledger, Reservation
from .mechanisms.base import Charging, Mechanism
from .mechanisms.ind_knn import EarlierAnswers, IndKnn, Reused
from .mechanisms.voters import Voters
from .noise.entropy import Entropy
from .private_files import failures_hidden


class Call:
    """One call of a teacher to one slot: settles queries, counts what was charged, replies.

    Receipts state what this process entered for the call, so those of several processes over one
    ledger add up as well. ``directory``: the custodian's, whose log has what failed.
    """

    def __init__(
        self, ledger: Ledger, slot: int, mechanism: Mechanism, entropy: Entropy, directory: Path
    ) -> None:
        self._ledger, self._slot, self._mechanism = ledger, slot, mechanism
        self._entropy, self._directory = entropy, directory
        self._entries: list[tuple[str, Charge]] = []  # (release, what was entered)
        self._reused = 0  # queries on which earlier answers voted

    def next_stage(self, identity: str) -> str | None:
        """The release that a query needs, None if it was answered, abstained on or refused."""
        state = self._ledger.state
        if identity in state.refused:
            return None
        return self._mechanism.next_stage(state.results.get(identity, {}))

    def settle(
        self,
        keys: Sequence[str],
        voters: Voters,
        serials: np.ndarray,
        memory: EarlierAnswers | None,
    ) -> None:
        """Take distinct queries through the mechanism's releases, in the order of ``keys``.

        Each stage is charged, drawn and recorded in turn, for the queries that need it; its results
        and the next stage's charge are one commit. All are tallied before the first charge, unless
        the cap refuses every one. ``serials``: int64 [n_records], the voters' places among the
        enrolled, where prepaid. ``memory``: answers that vote on later queries.
        Raises LedgerMismatch where the ledger refuses, TeacherFailed for any other failure.
        """
        mechanism, ledger, stages = self._mechanism, self._ledger, self._mechanism.stages
        if mechanism.charging is Charging.PREPAID:
            with failures_hidden(self._directory):
                self._settle_prepaid(cast(IndKnn, mechanism), keys, voters, serials, memory)
            return
        if any(ledger.state.remaining(self._slot, s) for s in map(self.next_stage, keys) if s):
            with failures_hidden(self._directory):
                voters = replace(voters, tally=mechanism.tally(voters))
        row = {identity: position for position, identity in enumerate(keys)}

        def due(stage: str | None) -> list[str]:
            return [identity for identity in keys if self.next_stage(identity) == stage]

        charge: Charge | None = None
        for stage, following in zip(stages, [*stages[1:], None], strict=True):
            if charge is None:
                charge = ledger.charge(self._slot, stage, due(stage))
            self._entries.append((stage, charge))
            if not charge.granted:
                charge = None
                continue
            with failures_hidden(self._directory):
                some = voters.select([row[i] for i in charge.granted])
                drawn = mechanism.draw(stage, some, charge.granted, self._entropy)
                results = dict(zip(charge.granted, drawn.tolist(), strict=True))
                charge = ledger.record(charge, results, following, partial(due, following))

    def _settle_prepaid(
        self,
        prepaid: IndKnn,
        keys: Sequence[str],
        voters: Voters,
        serials: np.ndarray,
        memory: EarlierAnswers | None,
    ) -> None:
        reused = None
        if memory is not None:
            select, results = prepaid.select(voters.length), self._ledger.state.results
            reused = memory.votes(results, select, voters.queries, voters.num_classes)
        mine, reservation = answer_prepaid(
            self._ledger, self._slot, prepaid, voters, serials, keys, self._entropy, reused
        )
        self._entries.append((prepaid.stages[0], reservation))
        if memory is not None and reused is not None:
            memory.add(keys, voters.queries)
            self._reused += int((reused.counts[mine] > 0).sum())

    def replies(
        self, space: LabelSpace, rows: Sequence[Sequence[str]], todo: Sequence[str]
    ) -> list[Answers]:
        """Each caller's answers. ``rows``: identities by caller; ``todo``: those that were new.

        A new query is charged to the first caller that asks it and served to the others. A charge
        for a batch, or for all answers, is that of the first caller with a new query.
        """
        mechanism, unclaimed, answers = self._mechanism, set(todo), []
        once = self.charged()
        granted = {
            stage: {
                i for entered, charge in self._entries if entered == stage for i in charge.granted
            }
            for stage in mechanism.stages
        }
        for own in rows:
            new = unclaimed.intersection(own)
            unclaimed -= new
            if mechanism.charging is Charging.PER_QUERY:
                paid = {stage: len(new & queries) for stage, queries in granted.items()}
            else:
                paid = once if new else dict.fromkeys(once, 0)
                once = dict.fromkeys(once, 0) if new else once
            answers.append(self._answers(space, own, len(new), paid))
        return answers

    def _answers(
        self, space: LabelSpace, own: Sequence[str], new: int, paid: dict[str, int]
    ) -> Answers:
        mechanism, state = self._mechanism, self._ledger.state
        labels = space.no_labels(len(own))
        outcomes = np.full(len(own), Outcome.CAP_REACHED, dtype=np.uint8)
        for row, identity in enumerate(own):
            if identity not in state.refused:
                outcomes[row], labels[row] = mechanism.outcome(state.results[identity])
        distinct = list(dict.fromkeys(own))
        receipt = self.receipt(len(own), len(distinct) - new, paid)
        clique = mechanism.clique([state.results.get(i, {}) for i in distinct])
        return Answers(labels, outcomes, replace(receipt, clique=clique))

    def charged(self) -> dict[str, int]:
        counts = dict.fromkeys(self._mechanism.stages, 0)
        for stage, charge in self._entries:
            counts[stage] += charge.count
        return counts

    def receipt(self, asked: int, served: int, charged: dict[str, int]) -> Receipt:
        """Charges of a call, and the ledger's state. ``served``: queries answered for nothing."""
        state = self._ledger.state
        return Receipt(
            asked=asked,
            served=served,
            charged=charged,
            left={stage: state.remaining(self._slot, stage) for stage in self._mechanism.stages},
            ledger_position=state.seq,
            ledger_head=state.head,
            reused=self._reused,
            adversary=state.adversary,
            unit="row" if state.plan is None else state.plan.unit,
        )


def answer_prepaid(
    ledger: Ledger,
    slot: int,
    mechanism: IndKnn,
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
    position = {key: j for j, key in enumerate(keys)}

    def most(granted: tuple[str, ...], remaining: np.ndarray) -> np.ndarray:
        return mechanism.reserve([similar[position[key]] for key in granted], remaining)

    reservation = ledger.charge_prepaid(slot, mechanism.stages[0], keys, serials, most)
    granted = reservation.granted
    if not granted:
        return [], reservation
    rows = [position[key] for key in granted]
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
    stored = ledger.record_prepaid(reservation, results, paid)
    return [position[key] for key in stored], reservation
