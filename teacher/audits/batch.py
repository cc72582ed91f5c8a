"""Attacks on batches: an empty data set against one with a single record.

All queries stand at one point, so they form a clique and the record lies in every ball: it moves
every answer, which tests the composition over the clique; a batch of one query shows the scale of
the noise best. For k-NN the record stands a little off, so that the radii depend on it. The
statistic is the number of answers of the record's class and the number of short radii.
"""

from __future__ import annotations

import numpy as np

from ...wall.unit import Unit
from ..mechanisms.batch import BATCH, BatchMechanism
from ..mechanisms.batch_knn import BatchKnn
from ..mechanisms.voters import Voters
from ..noise.entropy import Entropy
from ..search.cpu import ExactIndex
from .as_persons import of_unit
from .harness import EMPTY, Case, Pair, drawn

BATCH_SIZES = (1, 4)  # queries
DISTANCE = 10  # of k-NN's record from the queries, in integer units


def batches(mechanism: BatchMechanism, unit: Unit) -> list[Case]:
    """One batch of each size in BATCH_SIZES."""
    distance, short = 0, 0
    if isinstance(mechanism, BatchKnn):  # a radius is short below the record's distance, or a step
        distance, short = DISTANCE, 100 if mechanism.conversion == "grid" else DISTANCE

    def case(size: int) -> Case:
        def run(pair: Pair, added: bool, n: int, entropy: Entropy) -> np.ndarray:
            features = np.array([[distance, 0]] * added, dtype=np.int8).reshape(-1, 2)
            index, query = ExactIndex(features, np.arange(added)), np.zeros((1, 2), dtype=np.int8)
            rows = of_unit(Voters(index, pair.labels(added), pair.num_classes, query), unit)
            codes = []
            for values in drawn(mechanism, BATCH, rows, n * size, entropy, batch=size):
                winners, shorter = values[:, 0] == pair.num_classes - 1, values[:, 3] < short**2
                codes.append(winners.sum() * (size + 1) + shorter.sum())
            return np.array(codes, dtype=np.int64)

        return Case(f"{BATCH} of {size}", [EMPTY], run, mechanism.releases(1, 1))

    return [case(size) for size in BATCH_SIZES]
