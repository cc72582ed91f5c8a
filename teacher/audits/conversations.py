"""Attacks on individual budgets: conversations with a record in every neighbourhood.

The record equals the queries, so its kernel value is 1 and it pays the highest price; queries are
asked until all budgets should long be exhausted, through ``answer_prepaid``, with budgets in
memory. A conversation is bounded by what the record pays (docs/privacy.md, section 12). So noise
too small for its price, a missing payment, a late payment and a refilled budget all show as a loss
above rho. A trial is one conversation with new budgets.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...wall.guarantee import Unit
from ...wall.messages import Value
from ..accounting.plan import Release
from ..charging import answer_prepaid
from ..ledger.individual_budgets import (
    ENROL,
    HOLD,
    SETTLE,
    TOKEN_BYTES,
    IndividualBudgets,
    Row,
    encode_integers,
    payment_row,
)
from ..ledger.ledger import Ledger, Reservation, UpperBound
from ..mechanisms.ind_knn import MIN_NEIGHBOURS, IndKnn
from ..mechanisms.voters import Voters
from ..noise.entropy import Entropy
from ..search.cpu import ExactIndex
from ..search.int8_matmul import float32_product
from .harness import EMPTY, Case, Pair, of_unit

COUNT, ANSWERED, ALONE, CROWDED = "count", "answer", "conversation", "conversation in a crowd"
CROWD = 960  # records of the added one's class, and as many of another
# One vote shows most among many classes without votes.
PAIRS = {
    COUNT: EMPTY,
    ANSWERED: replace(EMPTY, num_classes=20),
    ALONE: EMPTY,
    CROWDED: Pair(CROWD, CROWD, 2),
}
MAX_QUERIES = 64  # of a conversation
OVERSPENDING = 16  # queries of ALONE, as a multiple of those that a record can pay for
COUNT_STEPS = 4  # counts are told apart up to a quarter of their noise's standard deviation,
MAX_COUNT_CODE = 16  # within four standard deviations
ENTRY = 63  # of the one-dimensional features of all records and queries


def probes(mechanism: IndKnn) -> tuple[tuple[IndKnn, tuple[str, ...]], ...]:
    """(mechanism, releases to audit), with noise and budgets so small that faults show.

    A record can pay for one query: mostly for its count in the first probe, for its label in the
    second. In the third, where a crowd makes labels cheap, it can pay for four.
    """
    root = math.sqrt(MIN_NEIGHBOURS)
    counts = replace(mechanism, sigma_count=1.25, sigma_label=8 / root, rho=0.35)
    labels = replace(mechanism, sigma_count=8.0, sigma_label=1.5 / root, rho=0.25)
    crowd = replace(mechanism, sigma_count=10.0, sigma_label=0.5 / root, rho=0.15)
    return (counts, (COUNT, ALONE)), (labels, (ANSWERED,)), (crowd, (CROWDED,))


def conversations(mechanism: IndKnn, unit: Unit) -> list[Case]:
    """A count, an answer, and conversations with the record alone and in a divided crowd."""
    return [_case(mechanism, release, pair, unit) for release, pair in PAIRS.items()]


def _case(mechanism: IndKnn, release: str, pair: Pair, unit: Unit) -> Case:
    others = pair.same_class + pair.other_class
    prices = _prices(mechanism, max(others, MIN_NEIGHBOURS))
    affordable = max(1, round(mechanism.require("rho") / sum(prices)))
    # ALONE has far more than a record can pay for: an exhausted record that still votes shows.
    queries = {ALONE: OVERSPENDING * affordable, CROWDED: affordable}.get(release, 1)
    queries = min(MAX_QUERIES, queries)

    def run(at: Pair, added: bool, n: int, entropy: Entropy) -> np.ndarray:
        codes = converse(mechanism, at, added, n, queries, entropy, unit)
        return codes // 2 if release == COUNT else codes

    return Case(release, [pair], run, priced(mechanism, queries, release != COUNT), queries)


def priced(mechanism: IndKnn, queries: int, label: bool) -> tuple[Release, ...]:
    """The release of ``queries`` answers, or of their counts where ``label`` is False.

    Payments are at most ``rho``, and at most the sum of all prices.
    """
    most = queries * sum(_prices(mechanism, MIN_NEIGHBOURS)[: 1 + label])
    (whole,) = mechanism.releases(1, 1)
    rho = min(mechanism.require("rho"), most)
    return (replace(whole, parameters={**whole.parameters, "rho": rho}),)


def _prices(mechanism: IndKnn, neighbours: int) -> tuple[float, float]:
    """zCDP that a record at kernel 1 pays for a count, and for a label among ``neighbours``."""
    scale = mechanism.sigma_label * math.sqrt(neighbours)
    return 1 / (2 * mechanism.require("sigma_count") ** 2), 1 / (2 * scale**2)


def converse(
    mechanism: IndKnn,
    pair: Pair,
    added: bool,
    n: int,
    queries: int,
    entropy: Entropy,
    unit: Unit = "row",
) -> np.ndarray:
    """Codes of ``n`` conversations of ``queries`` equal queries each: int64 [n * queries].

    A code combines the half of the conversation, the rounded difference between the count and the
    number of other records, and whether the label is the record's. A conversation is asked in two
    batches, as a teacher's are, and starts with full budgets.
    """
    labels = pair.labels(added)
    rows = np.arange(len(labels))
    features = np.full((len(rows), 1), ENTRY, dtype=np.int8)
    index = ExactIndex(features, rows, product=float32_product, threads=1)
    query = np.full((1, 1), ENTRY, dtype=np.int8)
    people = of_unit(Voters(index, labels, pair.num_classes, query, float(ENTRY)), unit)
    sizes = [size for size in (queries // 2, queries - queries // 2) if size]
    batches = [replace(people, queries=np.repeat(query, size, axis=0)) for size in sizes]
    values = np.empty((n, queries, 2), dtype=np.int64)
    call = secrets.token_hex(8)
    for trial in range(n):
        ledger = _MemoryLedger(index.ids)
        for half, batch in enumerate(batches):
            keys = [f"{call}-{trial}-{half}-{row}" for row in range(len(batch.queries))]
            answer_prepaid(ledger, 0, mechanism, batch, rows, keys, entropy)
        values[trial] = list(ledger.values.values())
    # [queries]: the halves have codes of their own, as a query shows less once budgets are spent
    offset = (np.arange(queries) >= queries // 2) * (2 * MAX_COUNT_CODE + 1)
    difference = values[:, :, 0] - pair.same_class - pair.other_class
    steps = np.rint(COUNT_STEPS * difference / mechanism.require("sigma_count"))
    counts = np.clip(steps, -MAX_COUNT_CODE, MAX_COUNT_CODE).astype(np.int64) + MAX_COUNT_CODE
    codes = (offset + counts) * 2  # [n, queries]
    return (codes + (values[:, :, 1] == pair.num_classes - 1)).reshape(-1)


class _MemoryLedger(Ledger):
    """The individual budgets of a ledger, and nothing else of one, in memory."""

    def __init__(self, ids: np.ndarray) -> None:
        self.individual_budgets, self.values = IndividualBudgets(), dict[str, Value]()
        self._enter((ENROL, -1, 0, encode_integers(ids)))

    def charge_prepaid(
        self,
        slot: int,
        release: str,
        identities: Sequence[str],
        serials: np.ndarray,
        upper_bound: UpperBound,
    ) -> Reservation:
        remaining = self.individual_budgets.remaining(slot, serials)
        token = secrets.token_bytes(TOKEN_BYTES)
        reservation = Reservation(0, tuple(identities), 1, serials, remaining, token)
        bounds = upper_bound(reservation.granted, reservation.remaining)
        self._enter(payment_row(HOLD, slot, 0, token, serials, bounds))
        return reservation

    def record_prepaid(
        self, reservation: Reservation, results: dict[str, Value], payments: np.ndarray
    ) -> tuple[str, ...]:
        batch = self.individual_budgets.batches.get(0, 0) + 1
        self._enter(payment_row(SETTLE, 0, batch, reservation.token, reservation.serials, payments))
        self.values.update(results)
        return tuple(results)

    def _enter(self, row: Row) -> None:
        self.individual_budgets.apply(self.individual_budgets.position + 1, row)
