"""The statistical audit of individual budgets: whole conversations with a record that every query
selects.

The record equals the queries, so that its kernel is 1 and it pays as much as anyone can; queries
are asked until it, and all around it, should long be silent. What is run is ``answer_prepaid``
with the kernel, the noise and the accounts of real answers, the accounts in memory. The proof
(docs/privacy.md, section 12) bounds a conversation by what the record pays, so that noise too small
for its price, a missing payment, a payment booked too late and a budget that fills up again all
show as a loss above rho. Validity and the rest: teacher/statistical_audit.py; a trial is a
conversation, each with accounts of its own.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import rel_entr
from scipy.stats import norm

from labelwall.teacher.accounting.curves.lattice import log_pmf
from labelwall.teacher.accounting.plan import Release
from labelwall.teacher.charging import answer_prepaid
from labelwall.teacher.ledger.individual_budgets import (
    ENROL,
    IndividualBudgets,
    Payments,
    Row,
    encode_integers,
    new_token,
    payment_row,
    reservation_row,
)
from labelwall.teacher.ledger.ledger import Reservation, UpperBound
from labelwall.teacher.mechanisms.ind_knn.mechanism import ANSWER, FEWEST, IndKnn
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.statistical_audit import (
    EmpiricalFinding,
    Pair,
    ReleaseFinding,
    bound_pair,
    certified,
    check_audit,
    expected_bound,
)
from labelwall.wall.messages import Value

COUNT, ANSWERED, ALONE, CROWDED = "count", "answer", "conversation", "conversation in a crowd"
PARTS = (COUNT, ANSWERED, ALONE, CROWDED)
CLASSES = 20  # among so many noisy zeros one vote tells most
CROWD = 960  # records of the added one's class, and as many of another
LONGEST, TIMES = (
    64,
    16,
)  # queries of a conversation, at most; and, alone, as a multiple of those that a record can pay for
STEPS, REACH = (
    4,
    16,
)  # a count is told apart up to a quarter of its noise's deviation, within four deviations
ENTRY = 63  # of the one-dimensional features of all records and queries
AHEAD = 256  # draws of one scale asked for at once


def probes_individual(mechanism: IndKnn) -> tuple[tuple[IndKnn, tuple[str, ...]], ...]:
    """The same code with so little noise, and budgets so small, that faults show: (mechanism, what
    to audit of it).

    A record can pay for one query: first for its count, then for its label. In a crowd, which makes
    labels cheap, for four.
    """
    few = math.sqrt(FEWEST)
    counts = replace(mechanism, sigma_count=1.25, sigma_label=8 / few, rho=0.35)
    labels = replace(mechanism, sigma_count=8.0, sigma_label=1.5 / few, rho=0.25)
    crowd = replace(mechanism, sigma_count=10.0, sigma_label=0.5 / few, rho=0.15)
    return (counts, (COUNT, ALONE)), (labels, (ANSWERED,)), (crowd, (CROWDED,))


def audit_individual(
    mechanism: IndKnn,
    *,
    delta: float,
    trials: int,
    confidence: float = 0.95,
    releases: Sequence[str] = PARTS,
) -> EmpiricalFinding:
    """Audit a count, an answer, and conversations of a record with nobody else and in a divided
    crowd; or some of these.

    ``trials``: queries drawn for each of them on each of the two data sets; a conversation takes up
    to LONGEST of them. At useful settings a record lasts for hundreds of queries, and few
    conversations show little. About 0.5 ms a query. Raises InvalidInput for fewer than 8
    conversations, or delta or confidence outside (0, 1).
    """
    asked = {part: (pair_of(part), _length(mechanism, part)) for part in releases}
    for _, queries in asked.values():
        check_audit(delta, trials, confidence, queries)
    error, found = (1 - confidence) / len(asked), []
    for part, (pair, queries) in asked.items():
        n, label = trials // queries, part != COUNT

        def outcomes(
            at: Pair, added: bool, total: int, queries: int = queries, label: bool = label
        ) -> np.ndarray:
            codes = converse(mechanism, at, added, total // queries, queries, SystemEntropy())
            return codes if label else codes // 2

        bound = bound_pair(outcomes, pair, queries=queries, trials=n, delta=delta, error=error)
        expected = _expected(mechanism, pair, queries, n, delta, error, label)
        found.append(
            ReleaseFinding(
                part, queries, n, pair, bound, expected, claimed(mechanism, queries, delta, label)
            )
        )
    return EmpiricalFinding(mechanism.fields(), delta, confidence, tuple(found))


def pair_of(part: str) -> Pair:
    """Who is there besides the record: nobody, or two halves that are all but even."""
    return (
        Pair(CROWD, CROWD, 2) if part == CROWDED else Pair(0, 0, CLASSES if part == ANSWERED else 2)
    )


def claimed(mechanism: IndKnn, queries: int, delta: float, label: bool) -> float:
    """The certified epsilon of so many answers, or of their counts alone: at most ``rho``, and at
    most all prices together.
    """
    assert mechanism.rho is not None
    rho = min(mechanism.rho, queries * sum(_prices(mechanism, FEWEST)[: 1 + label]))
    release = Release(ANSWER, "zcdp", {"rho": rho}, 1, prepaid=True)
    return certified(mechanism, (release,), delta)


def converse(
    mechanism: IndKnn, pair: Pair, added: bool, n: int, queries: int, entropy: Entropy
) -> np.ndarray:
    """Codes of ``n`` conversations of so many equal ``queries``, one after the other: int64 [n *
    queries].

    A code is (half of the conversation, rounded distance of the count from the others' number,
    whether the label is the record's). A conversation is asked in two batches, as a teacher's are,
    and starts with full accounts.
    """
    labels = pair.labels(added)
    index = ExactIndex(
        np.full((len(labels), 1), ENTRY, dtype=np.int8),
        np.arange(len(labels)),
        product="float32",
        threads=1,
    )
    halves = [
        np.full((size, 1), ENTRY, dtype=np.int8)
        for size in (queries // 2, queries - queries // 2)
        if size
    ]
    voters = [Voters(index, labels, pair.num_classes, rows, float(ENTRY)) for rows in halves]
    values, call, ahead = (
        np.empty((n, queries, 2), dtype=np.int64),
        secrets.token_hex(8),
        _Ahead(entropy),
    )
    for trial in range(n):
        books = _Books(index.ids)
        for half, asked in enumerate(voters):
            keys = [f"{call}-{trial}-{half}-{row}" for row in range(len(asked.queries))]
            answer_prepaid(books, 0, mechanism, asked, np.arange(len(labels)), keys, ahead)
        values[trial] = list(books.values.values())
    late = (np.arange(queries) >= queries // 2) * (
        2 * REACH + 1
    )  # [queries]: what a query tells changes as budgets go
    codes = (
        late + _distance(mechanism, values[:, :, 0] - pair.allies - pair.rivals)
    ) * 2  # [n, queries]
    return (codes + (values[:, :, 1] == pair.num_classes - 1)).reshape(-1)


def _distance(mechanism: IndKnn, difference: np.ndarray) -> np.ndarray:
    """Released counts less the others' number (int64, any shape) as codes 0..2 REACH."""
    assert mechanism.sigma_count is not None
    return (
        np.clip(np.rint(STEPS * difference / mechanism.sigma_count), -REACH, REACH).astype(np.int64)
        + REACH
    )


@dataclass
class _Books:
    """A ledger's private half, in memory."""

    ids: np.ndarray
    accounts: IndividualBudgets = field(default_factory=IndividualBudgets)
    values: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._keep((ENROL, -1, 0, encode_integers(self.ids)))

    def charge_prepaid(
        self,
        slot: int,
        release: str,
        identities: Sequence[str],
        serials: np.ndarray,
        upper_bound: UpperBound,
    ) -> Reservation:
        held = Reservation(
            0, tuple(identities), 1, self.accounts.remaining(slot, serials), new_token()
        )
        bounds = upper_bound(held.granted, held.remaining)
        self._keep(reservation_row(slot, held.token, bounds))
        return held

    def record_prepaid(
        self, reservation: Reservation, results: dict[str, Value], payments: Payments
    ) -> tuple[str, ...]:
        batch = self.accounts.batches.get(0, 0) + 1
        self._keep(payment_row(0, batch, reservation.token, payments))
        self.values.update(results)
        return tuple(results)

    def _keep(self, row: Row) -> None:
        self.accounts.apply(self.accounts.position + 1, row)


class _Ahead:
    """Draws of the same source and law, many in a call: a call costs as much as ten draws. Each is
    handed out once.
    """

    def __init__(self, entropy: Entropy) -> None:
        self.unsafe, self.inclusion, self.choose = entropy.unsafe, entropy.inclusion, entropy.choose
        self.discrete_laplace = entropy.discrete_laplace
        self._entropy, self._kept = entropy, dict[float, np.ndarray]()

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        kept, wanted = self._kept.get(sigma, np.zeros(0, dtype=np.int64)), len(keys) * width
        if len(kept) < wanted:
            kept = self._entropy.discrete_gaussian(sigma, keys[:1], release, wanted + AHEAD)[0]
        self._kept[sigma] = kept[wanted:]
        return kept[:wanted].reshape(len(keys), width)


def _prices(mechanism: IndKnn, neighbours: int) -> tuple[float, float]:
    """What a record at kernel 1 pays for a count, and for a label among so many, zCDP."""
    assert mechanism.sigma_count is not None
    scale = mechanism.sigma_label * math.sqrt(max(neighbours, FEWEST))
    return 1 / (2 * mechanism.sigma_count**2), 1 / (2 * scale**2)


def _length(mechanism: IndKnn, part: str) -> int:
    """Queries of a trial. Alone there are far more than a record can pay for: one that should be
    silent is heard.
    """
    if part in (COUNT, ANSWERED):
        return 1
    return min(
        LONGEST,
        (TIMES if part == ALONE else 1) * max(1, round(_affordable(mechanism, pair_of(part)))),
    )


def _affordable(mechanism: IndKnn, pair: Pair) -> float:
    """How many queries a record at kernel 1 can pay for."""
    assert mechanism.rho is not None
    return mechanism.rho / sum(_prices(mechanism, pair.allies + pair.rivals))


def _expected(
    mechanism: IndKnn,
    pair: Pair,
    queries: int,
    trials: int,
    delta: float,
    error: float,
    label: bool,
) -> float:
    """About what faithful code reaches: from one query's law, or a normal law with what all that
    are paid for tell.
    """
    without, added = (_law(mechanism, pair, there, label) for there in (False, True))
    if queries > 1:
        told = float(rel_entr(added, without).sum())
        paid = min(queries, _affordable(mechanism, pair))
        z = np.linspace(-8, 8, 321)
        without, added = (
            norm.pdf(z, loc=mean) / norm.pdf(z).sum() for mean in (0.0, math.sqrt(2 * told * paid))
        )
    return expected_bound(without, added, trials, delta, error)


def _law(mechanism: IndKnn, pair: Pair, added: bool, label: bool) -> np.ndarray:
    """Probabilities of one query's codes, the label's noise taken as continuous: float64 [2 REACH +
    1, times 2 with labels].
    """
    assert mechanism.sigma_count is not None
    wide = math.ceil((REACH / STEPS + 8) * mechanism.sigma_count)
    drawn = np.arange(-wide, wide + 1)
    counts = np.bincount(
        _distance(mechanism, drawn + added),
        np.exp(log_pmf(drawn, mechanism.sigma_count)),
        2 * REACH + 1,
    )
    scale = mechanism.sigma_label * math.sqrt(max(pair.allies + pair.rivals, FEWEST))
    z = np.linspace(-8, 8, 2001)
    noisy = (pair.allies + added) / scale + z
    best = norm.cdf(noisy - pair.rivals / scale) * norm.cdf(noisy) ** (pair.num_classes - 2)
    wins = float((norm.pdf(z) * best).sum() / norm.pdf(z).sum())
    return np.outer(counts, [1 - wins, wins]).ravel() if label else counts
