"""The statistical audit of reverse kNN: an empty data set against one with a single record.

Every entry has noise of the same law, and a record adds 1 to ``neighbours`` of them whatever the
other records are, so no other pair shows more. The sum over those entries is a sufficient statistic
of faithful code; it also shows noise that is too small, or missing where nobody votes. Validity:
harness.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..accounting.curves.discrete_gaussian import log_pmf
from ..mechanisms.reverse_knn import HISTOGRAM, ReverseKnn
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
CLASSES = 2


def probe_cells(mechanism: ReverseKnn) -> ReverseKnn:
    """The same code with noise so small that faults show in seconds."""
    neighbours = mechanism.neighbours
    return replace(mechanism, cells=max(3, neighbours), sigma=2.0 * math.sqrt(neighbours))


def audit_cells(
    mechanism: ReverseKnn, *, delta: float, trials: int, confidence: float = 0.95
) -> EmpiricalFinding:
    """Audit one histogram. ``trials``: histograms drawn on each of the two data sets.

    Raises InvalidInput for fewer than 8 trials, or delta or confidence outside (0, 1).
    """

    def run(added: bool, n: int) -> np.ndarray:
        return run_cells(mechanism, added, n, SystemEntropy())

    part = Part(HISTOGRAM, Pair(0, 0, CLASSES), run, _laws(mechanism))
    return audit_parts(mechanism, [part], delta=delta, trials=trials, confidence=confidence)


def run_cells(mechanism: ReverseKnn, added: bool, n: int, entropy: Entropy) -> np.ndarray:
    """Codes 0..OUTCOMES of ``n`` independent histograms by the mechanism's own draw: int64 [n]."""
    ids = np.arange(int(added))
    index = ExactIndex(np.zeros((len(ids), 1), dtype=np.int8), ids)
    labels = np.full(len(ids), CLASSES - 1)
    # the record is at 0: the first cells have its votes
    centers = np.minimum(np.arange(mechanism.neighbours + 1), 63).astype(np.int8)[:, None]
    codes = []
    for keys in fresh_keys(n, _QUERIES_PER_CALL):
        queries = np.broadcast_to(centers, (len(keys), *centers.shape))
        drawn = mechanism.draw(HISTOGRAM, Voters(index, labels, CLASSES, queries), keys, entropy)
        votes = drawn.reshape(len(keys), len(centers), CLASSES)[:, : mechanism.neighbours, -1]
        codes.append(sum_codes(votes.sum(axis=1), _deviation(mechanism)))
    return np.concatenate(codes)


def _deviation(mechanism: ReverseKnn) -> float:
    return mechanism.vote * mechanism.require("sigma") * math.sqrt(mechanism.neighbours)


def _laws(mechanism: ReverseKnn) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the codes without and with the record, float64 [OUTCOMES + 1] each."""
    if mechanism.vote > 1:  # noise of many steps is as good as continuous
        shift = math.sqrt(mechanism.neighbours) / mechanism.require("sigma")
        without, added = normal_law(np.array([0.0, shift]))
        return without, added
    reach = math.ceil(12 * mechanism.require("sigma")) + 1
    single = np.exp(log_pmf(np.arange(-reach, reach + 1), mechanism.require("sigma")))
    law = single
    for _ in range(mechanism.neighbours - 1):
        law = np.convolve(law, single)
    sums = np.arange(len(law)) - len(law) // 2
    moved = [sum_codes(sums + shift, _deviation(mechanism)) for shift in (0, mechanism.neighbours)]
    without, added = (np.bincount(codes, law, minlength=OUTCOMES + 1) for codes in moved)
    return without, added
