"""The statistical audit: nobody, and one record of the last class, which answers every query."""

from __future__ import annotations

import numpy as np

from labelwall.teacher.mechanisms.nearest_record.mechanism import RESPONSE, NearestRecord
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.statistical_audit import (
    EmpiricalFinding,
    Pair,
    ReleaseFinding,
    bound_pair,
    certified,
    check_audit,
    expected_bound,
    fresh_keys,
)

CLASSES = 2


def audit(
    mechanism: NearestRecord, *, delta: float, trials: int, confidence: float = 0.95
) -> EmpiricalFinding:
    """Audit one answer. ``trials``: queries drawn on each of the two data sets."""
    check_audit(delta, trials, confidence, 1)
    pair, error = Pair(0, 0, CLASSES), 1 - confidence

    def outcomes(at: Pair, added: bool, n: int) -> np.ndarray:
        return run(mechanism, added, n)

    bound = bound_pair(outcomes, pair, queries=1, trials=trials, delta=delta, error=error)
    likely = np.exp(mechanism.number("epsilon"))
    likely = likely / (likely + CLASSES - 1)
    without = np.array([likely, 1 - likely])  # an empty data set answers 0
    expected = expected_bound(without, without[::-1], trials, delta, error)
    claim = certified(mechanism, mechanism.releases(1, 1), delta)
    finding = ReleaseFinding(RESPONSE, 1, trials, pair, bound, expected, claim)
    return EmpiricalFinding(mechanism.fields(), delta, confidence, (finding,))


def run(mechanism: NearestRecord, added: bool, n: int) -> np.ndarray:
    """Answers to ``n`` independent queries through the mechanism's own draw: int64 [n]."""
    place = np.zeros((int(added), 1), dtype=np.int8)
    labels = np.full(int(added), CLASSES - 1)
    index = ExactIndex(place, np.arange(int(added)))
    answers = []
    for keys in fresh_keys(n, 1000):
        voters = Voters(index, labels, CLASSES, np.zeros((len(keys), 1), dtype=np.int8))
        answers.append(mechanism.draw(RESPONSE, voters, keys, SystemEntropy()))
    return np.concatenate(answers)
