"""The statistical audit of noisy gradients: an empty data set against one with a single record.

Every entry has noise of the same law, and a record adds the same vector whatever the other records
are, so no other pair shows more than the longest such vector. Its features here are so long that
clipping must shorten it, in all columns together. The projection of a noisy sum on that vector is a
sufficient statistic of faithful code; two more outcomes are seen where an entry shows no noise: it
is exactly what an empty data set or the record adds. Validity: harness.py.
"""

from __future__ import annotations

import numpy as np

from ...wall.labels.values import STEPS
from ...wall.matrices import SENSITIVITY
from ..mechanisms.private_linear import SUM, LinearSums
from ..mechanisms.voters import Voters
from ..noise.entropy import Entropy, SystemEntropy
from ..search.cpu import ExactIndex
from .harness import (
    OUTCOMES,
    EmpiricalFinding,
    Pair,
    Part,
    audit_parts,
    fresh_keys,
    normal_law,
    sum_codes,
)

_QUERIES_PER_CALL = 2048
# (outputs, the record's label) by label space: the last class, all attributes, the upper bound.
RECORD = {"class": (2, 1), "attributes": (8, (1 << 8) - 1), "value": (1, STEPS)}
FEATURES = np.full((1, 8), 63, dtype=np.int8)  # of the record: almost three times as long
LENGTH = 63.0  # as a unit vector is
WITHOUT_NOISE = OUTCOMES + 1, OUTCOMES + 2  # codes: an entry is as of no record, or as of this one


def audit_sums(
    mechanism: LinearSums, *, delta: float, trials: int, confidence: float = 0.95
) -> EmpiricalFinding:
    """Audit one sum. ``trials``: sums drawn on each of the two data sets.

    Raises InvalidInput for fewer than 8 trials, or delta or confidence outside (0, 1).
    """
    assert mechanism.sigma is not None
    shift = float(np.linalg.norm(of_record(mechanism))) / (mechanism.sigma * SENSITIVITY)
    without, added = normal_law(np.array([0.0, shift]))

    def run(record: bool, n: int) -> np.ndarray:
        return run_sums(mechanism, record, n, SystemEntropy())

    part = Part(SUM, Pair(0, 0, RECORD[mechanism.label_space][0]), run, (without, added))
    return audit_parts(mechanism, [part], delta=delta, trials=trials, confidence=confidence)


def run_sums(mechanism: LinearSums, added: bool, n: int, entropy: Entropy) -> np.ndarray:
    """Codes 0..OUTCOMES + 2 of ``n`` independent sums by the mechanism's own draw: int64 [n]."""
    vector = of_record(mechanism)
    assert mechanism.sigma is not None
    deviation = mechanism.sigma * SENSITIVITY * float(np.linalg.norm(vector))
    codes = []
    for keys in fresh_keys(n, _QUERIES_PER_CALL):
        drawn = mechanism.draw(SUM, voters(mechanism, len(keys), added), keys, entropy)
        found = sum_codes(drawn @ vector, deviation)
        for code, noiseless in zip(WITHOUT_NOISE, (0, vector), strict=True):
            found[(drawn == noiseless).any(axis=1)] = code
        codes.append(found)
    return np.concatenate(codes)


def voters(mechanism: LinearSums, queries: int, added: bool) -> Voters:
    """The record, if it is there, before so many queries of weights that are 0."""
    outputs, label = RECORD[mechanism.label_space]
    ids = np.arange(int(added))
    labels = np.full(len(ids), label)
    weights = np.zeros((queries, FEATURES.shape[1] + 1, outputs), dtype=np.int16)
    return Voters(ExactIndex(FEATURES[: len(ids)], ids), labels, outputs, weights, LENGTH)


def of_record(mechanism: LinearSums) -> np.ndarray:
    """What the record adds: int64 [(d + 1) * c + 1], about SENSITIVITY long, no entry 0."""
    how = mechanism.clip, mechanism.label_space, mechanism.gain or 1
    found: np.ndarray = voters(mechanism, 1, True).gradients(*how)
    return found[0]
