"""Small batches on a line or in a plane, and exact laws of their answers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.search.cpu import ExactIndex

CLASSES = 3


def voters(records: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> Voters:
    """Integer rows [n, d] and [q, d]; ids descend, so the index stores them in another order."""
    index = ExactIndex(records.astype(np.int8), np.arange(len(records))[::-1].copy())
    return Voters(index, labels, CLASSES, queries.astype(np.int8))


def laplace_wins(votes: np.ndarray, scale: float) -> np.ndarray:
    """Law of argmax(votes + discrete Laplace noise), ties to the lowest: float64 [classes]."""
    reach = int(45 * scale) + int(votes.max()) + 2
    z = np.arange(-reach, reach + 1)
    mass = np.exp(-np.abs(z) / scale) * np.expm1(1 / scale) / (np.exp(1 / scale) + 1)
    # of vote + noise at the places z
    laws = [np.interp(z - vote, z, mass, left=0, right=0) for vote in votes]
    below = [np.concatenate([[0], np.cumsum(law)[:-1]]) for law in laws]
    wins = []
    for a, law in enumerate(laws):
        others = [below[b] + (laws[b] if b > a else 0) for b in range(len(votes)) if b != a]
        wins.append(float((law * np.prod(others, axis=0)).sum()))
    return np.array(wins)


def choice_law(losses: np.ndarray, rate: Fraction) -> np.ndarray:
    mass = np.exp(-float(rate) * (losses - losses.min()))
    return mass / mass.sum()
