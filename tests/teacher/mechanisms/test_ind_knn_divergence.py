"""What a record's presence shows: exact laws of conversations, and of the sampler's real draws."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.audits.harness import lower_bound
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.kernels import GRID, Similar
from tests.teacher.mechanisms.test_ind_knn import plan


def gaussian(sigma: float, reach: int) -> np.ndarray:
    support = np.arange(-reach, reach + 1)
    mass = np.exp(-(support**2) / (2 * sigma**2))
    return mass / mass.sum()


def two_class_law(weight: int, scale: int) -> np.ndarray:
    """P(label) for one vote of ``weight`` for class 1, ties to class 0: float64 [2], exact sums."""
    reach = 12 * scale
    mass = gaussian(scale, reach)
    below = np.concatenate([[0.0], np.cumsum(mass)])  # P(Z < z) at z = -reach + index
    z = np.arange(-reach, reach + 1) + weight
    win = float(mass @ below[np.clip(z + reach, 0, len(mass))])  # P(weight + Z1 > Z0)
    return np.array([1 - win, win])


@pytest.mark.parametrize("queries", [1, 3])
def test_the_exact_divergence_of_whole_conversations_is_below_the_claim(
    queries: int,
) -> None:
    """All conversations with a record that every query selects, against an empty data set.

    In both directions. Three queries exceed its budget: it can not pay for the third. The law after
    a count depends on the count, so the sum runs over histories.
    """
    rho, sigma_count, reach = Fraction(1, 2), 1.2, 14
    mechanism = IndKnn(threshold=0.5, sigma_label=0.1, sigma_count=sigma_count, rho=float(rho))
    counts, price = gaussian(sigma_count, reach), mechanism._count_units()
    # counts -reach .. reach + 1, without and with the record
    shifted = {
        0: np.pad(counts, (0, 1)),
        1: np.pad(counts, (1, 0)),
    }
    orders = np.array([1.5, 2.0, 4.0, 8.0])

    def moments(left: int, depth: int) -> np.ndarray:
        """Expected power of the likelihood ratio over the remaining queries, [direction, order]."""
        if depth == 0:
            return np.ones((2, len(orders)))
        able, total = left >= price, np.zeros((2, len(orders)))
        for place in range(2 * reach + 2):
            scale = mechanism._noise(place - reach)
            prices = mechanism._prices(scale)
            after = left - price if able else left
            weight = min(GRID, int(np.searchsorted(prices, after, side="right")) - 1) if able else 0
            left_over = after - int(prices[weight])
            with_it, without = two_class_law(weight, scale), two_class_law(0, scale)
            p = shifted[int(able)][place] * with_it  # [label]
            r = shifted[0][place] * without
            if not p.any() or not r.any():
                continue  # beyond the reach: 1e-30
            rest = memo(left_over, depth - 1)
            total[0] += (p[:, None] ** orders * r[:, None] ** (1 - orders)).sum(axis=0) * rest[0]
            total[1] += (r[:, None] ** orders * p[:, None] ** (1 - orders)).sum(axis=0) * rest[1]
        return total

    known: dict[tuple[int, int], np.ndarray] = {}

    def memo(left: int, depth: int) -> np.ndarray:
        if (left, depth) not in known:
            known[left, depth] = moments(left, depth)
        return known[left, depth]

    divergence = np.log(memo(FULL, queries)) / (orders - 1)
    assert (divergence <= float(rho) * orders * (1 + 1e-9)).all()
    assert (
        divergence >= 0.55 * float(rho) * orders
    ).all()  # and not by a wide margin: the bound is used


class HalfNoise(SystemEntropy):
    """A planted fault: half of the noise that was paid for."""

    def discrete_gaussian(self, sigma: float, keys, release: str, width: int) -> np.ndarray:
        return super().discrete_gaussian(sigma / 2, keys, release, width)


AUDITED = IndKnn(threshold=0.5, sigma_label=0.15, sigma_count=0.55, rho=2.0)
DELTA = 0.3
TRIALS = 20000
ERROR = 2.5e-8


def audited(entropy: SystemEntropy) -> float:
    """A lower bound of epsilon from the real sampler's counts and labels.

    All trials are one call, each with its own record.
    """
    tables = []
    for n in (0, 1):
        similar = [
            Similar(np.arange(i, i + n, dtype=np.int32), np.full(n, GRID, dtype=np.uint8))
            for i in range(TRIALS)
        ]
        labels, keys = np.ones(TRIALS, dtype=np.int64), [str(i) for i in range(TRIALS)]
        values, _ = AUDITED.answer(similar, np.full(TRIALS, FULL), labels, 2, keys, entropy)
        codes = 2 * np.clip(values[:, 0] + 32, 0, 63) + values[:, 1]
        tables.append(codes[:, None])
    return lower_bound(*tables, delta=DELTA, error=ERROR)


@pytest.mark.parametrize(
    ("entropy", "refuted"),
    [(SystemEntropy(), False), (HalfNoise(), True)],
    ids=["real", "half the noise"],
)
def test_statistical_audit_of_a_record_that_is_always_selected(
    entropy: SystemEntropy, refuted: bool
) -> None:
    """One query that takes the whole budget. Fails by chance with probability below 2e-7.

    A bound is wrong with probability ERROR. In 20,000 simulations of 5,000 trials from the exact
    law the fault's bound was never below 1.12 claims, nor the real one's below 0.204; with the
    20,000 trials here, runs gave 1.45 and more, 0.39 to 0.41. There are two attempts.
    """
    claim = certified_epsilon(plan(AUDITED, DELTA))
    floor, bound = claim if refuted else 0.3 * claim, audited(entropy)
    if bound <= floor:
        bound = max(bound, audited(entropy))
    assert (bound > claim) == refuted
    assert bound > floor
