"""Small batches of radius and batch k-NN mechanisms, on a line or in a plane, for their tests."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.batch import BatchMechanism
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.teacher import Teacher
from labelwall.wall.messages import ExtractorSpec
from tests import make

CLASSES = 3
LEDGER = "ledger.sqlite"


class ZeroNoise:
    """No noise, and the best of every choice; records the draws. Unsafe: nothing is certified."""

    unsafe = True

    def __init__(self) -> None:
        self.scales: list[tuple[str, float, int, int]] = []
        self.rates: list[tuple[str, Fraction]] = []

    def discrete_laplace(
        self, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        self.scales.append((release, scale, len(keys), width))
        return np.zeros((len(keys), width), dtype=np.int64)

    def choose(
        self, losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str], release: str
    ) -> np.ndarray:
        self.rates += [(release, rate) for rate in rates]
        return losses.argmin(axis=1)


def voters(records: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> Voters:
    """Integer rows [n, d] and [q, d]; ids descend, so the index stores them in another order."""
    index = ExactIndex(records.astype(np.int8), np.arange(len(records))[::-1].copy())
    return Voters(index, labels, CLASSES, queries.astype(np.int8))


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors in the unit square and labels."""
    rng = np.random.default_rng(seed)
    return rng.random((n, 2)).astype(np.float32), rng.integers(0, CLASSES, n)


def plan(mechanism: BatchMechanism, batches: int) -> Plan:
    return Plan(1e6, 1e-5, (Slot(mechanism.fields(), mechanism.releases(batches, batches)),))


def teach(
    folder: Path,
    mechanism: BatchMechanism,
    entropy: Entropy,
    batches: int = 2,
    batch_size: int = 256,
) -> Teacher:
    """A teacher of 60 records in the unit square, on a new or existing ledger."""
    spec = ExtractorSpec("box", (2,), CLASSES, mean=(0.5, 0.5), std=(0.5, 0.5))
    records = Records(*rows(60, 0), np.arange(60))
    return make.teach(folder, plan(mechanism, batches), records, spec, entropy, batch_size)


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
