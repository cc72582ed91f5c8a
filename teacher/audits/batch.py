"""The statistical audit of batches: an empty data set against one with a single record.

All queries stand at one point, so they form a clique and the record lies in every ball: it moves
every answer, which tests the composition over the clique; a batch of one query shows the scale of
the noise best. For k-NN the record stands a little off, so that the radii depend on it. The
statistic is the number of answers of the record's class and the number of short radii. Validity:
harness.py.
"""

from __future__ import annotations

import numpy as np

from ..mechanisms.batch import BATCH, BatchMechanism
from ..mechanisms.batch_knn import BatchKnn
from ..mechanisms.voters import Voters
from ..noise.entropy import SystemEntropy
from ..search.cpu import ExactIndex
from .harness import (
    EmpiricalFinding,
    Pair,
    ReleaseFinding,
    bound_pair,
    certified,
    check_audit,
    expected_bound,
    fresh_keys,
)

BATCH_SIZES = (1, 4)  # queries
CLASSES = 2
DISTANCE = 10  # of k-NN's record from the queries


def audit_batch(
    mechanism: BatchMechanism, *, delta: float, trials: int, confidence: float = 0.95
) -> EmpiricalFinding:
    """Audit one batch of each size in BATCH_SIZES.

    ``trials``: batches of each size drawn on each of the two data sets. ``expected`` of the finding
    comes from the frequencies drawn, as the laws of the radii have no closed form. Raises
    InvalidInput for fewer than 8 trials, or delta or confidence outside (0, 1).
    """
    check_audit(delta, trials, confidence, 1)
    pair = Pair(0, 0, CLASSES)
    error = (1 - confidence) / len(BATCH_SIZES)
    claim = certified(mechanism, mechanism.releases(1, 1), delta)
    found = []
    for queries in BATCH_SIZES:
        drawn = [run_batches(mechanism, queries, added, trials) for added in (False, True)]

        def outcomes(at: Pair, added: bool, n: int, sides: list = drawn) -> np.ndarray:
            return sides[added]

        bound = bound_pair(outcomes, pair, queries=1, trials=trials, delta=delta, error=error)
        without, added = (
            np.bincount(codes, minlength=(queries + 1) ** 2) / trials for codes in drawn
        )
        expected = expected_bound(without, added, trials, delta, error)
        found.append(
            ReleaseFinding(f"{BATCH} of {queries}", 1, trials, pair, bound, expected, claim)
        )
    return EmpiricalFinding(mechanism.fields(), delta, confidence, tuple(found))


def audited_record(mechanism: BatchMechanism) -> tuple[int, int]:
    """(distance of the record from the queries, radius below which one is short).

    For k-NN a little off, in integer units, so that the radii depend on it; a short radius is
    below that distance, or on a grid below 100 units.
    """
    if not isinstance(mechanism, BatchKnn):
        return 0, 0
    return DISTANCE, 100 if mechanism.conversion == "grid" else DISTANCE


def run_batches(mechanism: BatchMechanism, queries: int, added: bool, trials: int) -> np.ndarray:
    """Codes of independent batches through the mechanism's own draw.

    int64 [trials], below (queries + 1)^2.
    """
    distance, short = audited_record(mechanism)
    features = np.array([[distance, 0]] * added, dtype=np.int8).reshape(-1, 2)
    index = ExactIndex(features, np.arange(len(features)))
    labels = np.full(len(features), CLASSES - 1)
    voters = Voters(index, labels, CLASSES, np.zeros((queries, 2), dtype=np.int8))
    codes = np.empty(trials, dtype=np.int64)
    for trial, keys in enumerate(fresh_keys(trials * queries, queries)):
        drawn = mechanism.draw(BATCH, voters, keys, SystemEntropy())
        winners, shorter = drawn[:, 0] == CLASSES - 1, drawn[:, 3] < short**2
        codes[trial] = winners.sum() * (queries + 1) + shorter.sum()
    return codes
