"""The statistical audit: nobody, and one record of the last class, which answers every query."""

from __future__ import annotations

import numpy as np

from labelwall.teacher.audits.harness import (
    EmpiricalFinding,
    Pair,
    Part,
    audit_parts,
    fresh_keys,
)
from labelwall.teacher.mechanisms.nearest_record import RESPONSE, NearestRecord
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex

CLASSES = 2


def audit(
    mechanism: NearestRecord, *, delta: float, trials: int, confidence: float = 0.95
) -> EmpiricalFinding:
    """Audit one answer. ``trials``: queries drawn on each of the two data sets."""
    likely = np.exp(mechanism.require("epsilon"))
    likely = likely / (likely + CLASSES - 1)
    without = np.array([likely, 1 - likely])  # an empty data set answers 0

    def drawn(added: bool, n: int) -> np.ndarray:
        return run(mechanism, added, n)

    part = Part(RESPONSE, Pair(0, 0, CLASSES), drawn, (without, without[::-1]))
    return audit_parts(mechanism, [part], delta=delta, trials=trials, confidence=confidence)


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
