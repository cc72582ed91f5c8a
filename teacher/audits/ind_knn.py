"""The statistical audit of individual budgets: conversations with a record in every neighbourhood.

The record equals the queries, so its kernel value is 1 and it pays the highest price; queries are
asked until all budgets should long be exhausted. The audit runs ``answer_prepaid`` with the
kernel, the noise and the budgets of real answers, the budgets in memory. The proof
(docs/privacy.md, section 12) bounds a conversation by what the record pays. So noise too small for
its price, a missing payment, a late payment and a refilled budget all show as a loss above rho. A
trial is one conversation with new budgets. Validity: harness.py.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import rel_entr
from scipy.stats import norm

from ...wall.messages import Value
from ..accounting.curves.discrete_gaussian import log_pmf
from ..charging import answer_prepaid
from ..ledger.individual_budgets import (
    ENROL,
    IndividualBudgets,
    Payments,
    Row,
    encode_integers,
    new_token,
    payment_row,
    reservation_row,
)
from ..ledger.transaction import Reservation, UpperBound
from ..mechanisms.ind_knn import MIN_NEIGHBOURS, IndKnn
from ..mechanisms.voters import Voters
from ..noise.entropy import Entropy, SystemEntropy
from ..search.cpu import ExactIndex
from ..search.int8_matmul import float32_product
from .as_persons import peopled
from .harness import (
    EmpiricalFinding,
    Pair,
    ReleaseFinding,
    bound_pair,
    certified,
    check_audit,
    expected_bound,
)

COUNT, ANSWERED, ALONE, CROWDED = "count", "answer", "conversation", "conversation in a crowd"
PARTS = (COUNT, ANSWERED, ALONE, CROWDED)
CLASSES = 20  # one vote shows most among many classes without votes
CROWD = 960  # records of the added one's class, and as many of another
MAX_QUERIES = 64  # of a conversation
OVERSPENDING = 16  # queries of ALONE, as a multiple of those that a record can pay for
COUNT_STEPS = 4  # counts are told apart up to a quarter of their noise's standard deviation,
MAX_COUNT_CODE = 16  # within four standard deviations
ENTRY = 63  # of the one-dimensional features of all records and queries
PREFETCHED = 256  # draws of one scale in a call


def probes_individual(mechanism: IndKnn) -> tuple[tuple[IndKnn, tuple[str, ...]], ...]:
    """(mechanism, parts to audit): the same code with noise and budgets so small that faults show.

    A record can pay for one query: mostly for its count in the first probe, for its label in the
    second. In the third, where a crowd makes labels cheap, it can pay for four.
    """
    root = math.sqrt(MIN_NEIGHBOURS)
    counts = _probe(mechanism, sigma_count=1.25, sigma_label=8 / root, rho=0.35)
    labels = _probe(mechanism, sigma_count=8.0, sigma_label=1.5 / root, rho=0.25)
    crowd = _probe(mechanism, sigma_count=10.0, sigma_label=0.5 / root, rho=0.15)
    return (counts, (COUNT, ALONE)), (labels, (ANSWERED,)), (crowd, (CROWDED,))


def _probe(mechanism: IndKnn, *, sigma_count: float, sigma_label: float, rho: float) -> IndKnn:
    return replace(mechanism, sigma_count=sigma_count, sigma_label=sigma_label, rho=rho)


def audit_individual(
    mechanism: IndKnn,
    *,
    delta: float,
    trials: int,
    confidence: float = 0.95,
    releases: Sequence[str] = PARTS,
) -> EmpiricalFinding:
    """Audit a count, an answer, and conversations with the record alone and in a divided crowd.

    ``releases``: those of PARTS to audit; ``trials``: queries drawn for each part on each of the
    two data sets; a conversation takes up to MAX_QUERIES of them. With practical parameters a
    record lasts for hundreds of queries, and few conversations show little. About 0.5 ms a query.
    Raises InvalidInput for fewer than 8 conversations, or delta or confidence outside (0, 1).
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
        claim = claimed(mechanism, queries, delta, label)
        found.append(ReleaseFinding(part, queries, n, pair, bound, expected, claim))
    return EmpiricalFinding(mechanism.fields(), delta, confidence, tuple(found))


def pair_of(part: str) -> Pair:
    """The other records: none, or equally many of two classes."""
    if part == CROWDED:
        return Pair(CROWD, CROWD, 2)
    return Pair(0, 0, CLASSES if part == ANSWERED else 2)


def claimed(mechanism: IndKnn, queries: int, delta: float, label: bool) -> float:
    """The certified epsilon of ``queries`` answers, or of their counts where ``label`` is False.

    Payments are at most ``rho``, and at most the sum of all prices.
    """
    assert mechanism.rho is not None
    rho = min(mechanism.rho, queries * sum(_prices(mechanism, MIN_NEIGHBOURS)[: 1 + label]))
    (whole,) = mechanism.releases(1, 1)
    release = replace(whole, parameters={**whole.parameters, "rho": rho})
    return certified(mechanism, (release,), delta)


def converse(
    mechanism: IndKnn, pair: Pair, added: bool, n: int, queries: int, entropy: Entropy
) -> np.ndarray:
    """Codes of ``n`` conversations of ``queries`` equal queries each: int64 [n * queries].

    A code combines the half of the conversation, the rounded difference between the count and the
    number of other records, and whether the label is the record's. A conversation is asked in two
    batches, as a teacher's are, and starts with full budgets.
    """
    labels = pair.labels(added)
    rows = np.arange(len(labels))
    features = np.full((len(labels), 1), ENTRY, dtype=np.int8)
    index = ExactIndex(features, rows, product=float32_product, threads=1)
    halves = [
        np.full((size, 1), ENTRY, dtype=np.int8)
        for size in (queries // 2, queries - queries // 2)
        if size
    ]
    voters = [Voters(index, labels, pair.num_classes, asked, float(ENTRY)) for asked in halves]
    if getattr(mechanism, "audited_unit", "row") == "person":
        voters = [peopled(asked) for asked in voters]
    values = np.empty((n, queries, 2), dtype=np.int64)
    call, prefetched = secrets.token_hex(8), _PrefetchedEntropy(entropy)
    for trial in range(n):
        ledger = _MemoryLedger(index.ids)
        for half, batch in enumerate(voters):
            keys = [f"{call}-{trial}-{half}-{row}" for row in range(len(batch.queries))]
            answer_prepaid(ledger, 0, mechanism, batch, rows, keys, prefetched)
        values[trial] = list(ledger.values.values())
    # [queries]: the halves have codes of their own, as a query shows less once budgets are spent
    offset = (np.arange(queries) >= queries // 2) * (2 * MAX_COUNT_CODE + 1)
    counts = _count_codes(mechanism, values[:, :, 0] - pair.allies - pair.rivals)
    codes = (offset + counts) * 2  # [n, queries]
    return (codes + (values[:, :, 1] == pair.num_classes - 1)).reshape(-1)


def _count_codes(mechanism: IndKnn, difference: np.ndarray) -> np.ndarray:
    """Differences of counts (int64, any shape) as codes 0..2 MAX_COUNT_CODE."""
    assert mechanism.sigma_count is not None
    steps = np.rint(COUNT_STEPS * difference / mechanism.sigma_count)
    return np.clip(steps, -MAX_COUNT_CODE, MAX_COUNT_CODE).astype(np.int64) + MAX_COUNT_CODE


@dataclass
class _MemoryLedger:
    """The individual budgets of a ledger, in memory."""

    ids: np.ndarray
    accounts: IndividualBudgets = field(default_factory=IndividualBudgets)
    values: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._append((ENROL, -1, 0, encode_integers(self.ids)))

    def charge_prepaid(
        self,
        slot: int,
        release: str,
        identities: Sequence[str],
        serials: np.ndarray,
        upper_bound: UpperBound,
    ) -> Reservation:
        remaining = self.accounts.remaining(slot, serials)
        reservation = Reservation(0, tuple(identities), 1, remaining, new_token())
        bounds = upper_bound(reservation.granted, reservation.remaining)
        self._append(reservation_row(slot, reservation.token, bounds))
        return reservation

    def record_prepaid(
        self, reservation: Reservation, results: dict[str, Value], payments: Payments
    ) -> tuple[str, ...]:
        batch = self.accounts.batches.get(0, 0) + 1
        self._append(payment_row(0, batch, reservation.token, payments))
        self.values.update(results)
        return tuple(results)

    def _append(self, row: Row) -> None:
        self.accounts.apply(self.accounts.position + 1, row)


class _PrefetchedEntropy:
    """Draws of the same source and law, many in a call, as a call costs as much as ten draws.

    Each draw is returned once.
    """

    def __init__(self, entropy: Entropy) -> None:
        self.unsafe, self.inclusion, self.choose = entropy.unsafe, entropy.inclusion, entropy.choose
        self.discrete_laplace = entropy.discrete_laplace
        self._entropy, self._buffers = entropy, dict[float, np.ndarray]()

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        buffer, size = self._buffers.get(sigma, np.zeros(0, dtype=np.int64)), len(keys) * width
        if len(buffer) < size:
            drawn = self._entropy.discrete_gaussian(sigma, keys[:1], release, size + PREFETCHED)
            buffer = drawn[0]
        self._buffers[sigma] = buffer[size:]
        return buffer[:size].reshape(len(keys), width)


def _prices(mechanism: IndKnn, neighbours: int) -> tuple[float, float]:
    """zCDP that a record at kernel 1 pays for a count, and for a label among ``neighbours``."""
    assert mechanism.sigma_count is not None
    scale = mechanism.sigma_label * math.sqrt(max(neighbours, MIN_NEIGHBOURS))
    return 1 / (2 * mechanism.sigma_count**2), 1 / (2 * scale**2)


def _length(mechanism: IndKnn, part: str) -> int:
    """Queries of a trial.

    ALONE has far more than a record can pay for, so that an exhausted record that still votes
    shows.
    """
    if part in (COUNT, ANSWERED):
        return 1
    affordable = max(1, round(_affordable(mechanism, pair_of(part))))
    return min(MAX_QUERIES, (OVERSPENDING if part == ALONE else 1) * affordable)


def _affordable(mechanism: IndKnn, pair: Pair) -> float:
    """Number of queries that a record at kernel 1 can pay for."""
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
    """Approximate lower bound of faithful code.

    One query has an exact law; many have a normal law with the summed divergence of those paid for.
    """
    without, added = (_law(mechanism, pair, there, label) for there in (False, True))
    if queries > 1:
        divergence = float(rel_entr(added, without).sum())
        paid = min(queries, _affordable(mechanism, pair))
        means = (0.0, math.sqrt(2 * divergence * paid))
        z = np.linspace(-8, 8, 321)
        without, added = (norm.pdf(z, loc=mean) / norm.pdf(z).sum() for mean in means)
    return expected_bound(without, added, trials, delta, error)


def _law(mechanism: IndKnn, pair: Pair, added: bool, label: bool) -> np.ndarray:
    """Probabilities of one query's codes, float64 [2 MAX_COUNT_CODE + 1, times 2 with ``label``].

    The label's noise is taken as continuous.
    """
    assert mechanism.sigma_count is not None
    reach = math.ceil((MAX_COUNT_CODE / COUNT_STEPS + 8) * mechanism.sigma_count)
    drawn = np.arange(-reach, reach + 1)
    mass = np.exp(log_pmf(drawn, mechanism.sigma_count))
    counts = np.bincount(_count_codes(mechanism, drawn + added), mass, 2 * MAX_COUNT_CODE + 1)
    scale = mechanism.sigma_label * math.sqrt(max(pair.allies + pair.rivals, MIN_NEIGHBOURS))
    z = np.linspace(-8, 8, 2001)
    noisy = (pair.allies + added) / scale + z
    best = norm.cdf(noisy - pair.rivals / scale) * norm.cdf(noisy) ** (pair.num_classes - 2)
    wins = float((norm.pdf(z) * best).sum() / norm.pdf(z).sum())
    return np.outer(counts, [1 - wins, wins]).ravel() if label else counts
