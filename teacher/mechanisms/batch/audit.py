"""The statistical audit of batches: their own draws on an empty data set and on one with a single record.

All queries stand at one point, a clique, and the record lies in every ball: it moves every answer, so the composition over the
clique is on trial; a batch of one query shows the scale of the noise best. For k-NN the record stands a little off, so that the
radii depend on it. What is told apart: how many answers are the record's class, and how many radii are short.
Validity and the rest: teacher/mechanisms/vote_audit.py.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

import numpy as np

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.batch.base import BATCH
from labelwall.teacher.mechanisms.batch.knn import BatchKnn
from labelwall.teacher.mechanisms.batch.radius import RadiusNeighbours
from labelwall.teacher.mechanisms.vote_audit import (
    EXPLORED,
    EmpiricalFinding,
    ReleaseFinding,
    bound_pair,
    check_audit,
    expected_bound,
)
from labelwall.teacher.mechanisms.vote_laws import Pair
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex

HEAPS = (1, 4)  # queries of a batch
CLASSES = 2
AWAY = 10  # of the record from the queries of a k-NN batch, in integer units
SHORT = {
    "grid": 100,
    "interactive": AWAY,
    "none": AWAY,
}  # below it a radius is short: it holds a quarter of the box; the record
Batch = RadiusNeighbours | BatchKnn


def probe_batch(mechanism: Batch) -> Batch:
    """The same code with an epsilon at which faults show in seconds."""
    if isinstance(mechanism, BatchKnn):
        return replace(mechanism, epsilon=2.0, k=1, records=12)
    return replace(mechanism, epsilon=2.0)


def audit_batch(
    mechanism: Batch, *, delta: float, trials: int, confidence: float = 0.95
) -> EmpiricalFinding:
    """Audit one batch of each size in HEAPS. ``trials``: batches of each size drawn on each of the two data sets.

    ``expected`` of the finding comes from the frequencies drawn: the laws of radii have no short form.
    Raises InvalidInput for fewer than 8 trials, or delta or confidence outside (0, 1).
    """
    check_audit(delta, trials, confidence, 1)
    pair, error = Pair(0, 0, CLASSES), (1 - confidence) / len(HEAPS)
    claim = certified_epsilon(
        Plan(1.0, delta, (Slot(mechanism.fields(), mechanism.releases(1, 1)),))
    )
    found = []
    for queries in HEAPS:
        drawn = {added: run_batches(mechanism, queries, added, trials) for added in (False, True)}
        bound = bound_pair(
            lambda at, added, n, d=drawn: d[added],  # type: ignore[misc]
            pair,
            queries=1,
            trials=trials,
            delta=delta,
            error=error,
        )
        laws = [
            np.bincount(drawn[added], minlength=(queries + 1) ** 2) / trials
            for added in (False, True)
        ]
        expected = expected_bound(laws[0], laws[1], trials - trials // EXPLORED, delta, error)
        found.append(
            ReleaseFinding(f"{BATCH} of {queries}", 1, trials, pair, bound, expected, claim)
        )
    return EmpiricalFinding(mechanism.fields(), delta, confidence, tuple(found))


def run_batches(mechanism: Batch, queries: int, added: bool, trials: int) -> np.ndarray:
    """Codes of independent batches through the mechanism's own draw: int64 [trials] below (queries + 1)^2."""
    away, short = (AWAY, SHORT[mechanism.conversion]) if isinstance(mechanism, BatchKnn) else (0, 0)
    place, labels = (
        np.array([[away, 0]] * added, dtype=np.int8).reshape(-1, 2),
        np.full(int(added), CLASSES - 1),
    )
    voters = Voters(
        ExactIndex(place, np.arange(len(labels))),
        labels,
        CLASSES,
        np.zeros((queries, 2), dtype=np.int8),
    )
    codes = np.empty(trials, dtype=np.int64)
    for trial in range(trials):
        call = secrets.token_hex(8)  # identities are never used twice, as a teacher's are not
        drawn = mechanism.draw(
            BATCH, voters, [f"{call}-{row}" for row in range(queries)], SystemEntropy()
        )
        codes[trial] = (drawn[:, 0] == CLASSES - 1).sum() * (queries + 1) + (
            drawn[:, 3] < short**2
        ).sum()
    return codes
