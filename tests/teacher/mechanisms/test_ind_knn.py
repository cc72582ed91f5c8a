"""Ind-KNN against exact fractions, its invariants, its price and its fields."""

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.kernels import GRID, STEPS, cosine
from tests.seeded_noise import SeededNoise
from tests.teacher.laws import gaussian
from tests.teacher.mechanisms import algorithm3

CLASSES, D = 3, 5
# a record can pay for 6 counts at most
SPENDTHRIFT = IndKnn(threshold=0.3, sigma_label=0.2, sigma_count=2.0, rho=0.75)


def features(n, seed):
    """int8 [n, D], with duplicates, a zero vector and entries at the ends of the range."""
    x = np.random.default_rng(seed).integers(-63, 64, (n, D)).astype(np.int8)
    x[1::7] = x[0]
    x[2] = 0
    x[3] = 63
    return x


def settle(mechanism, x, labels, q, entropy, left=None):
    similar = ExactIndex(x, np.arange(len(x)), threads=1).similar(q, mechanism.select(40.0))
    left = np.full(len(x), FULL) if left is None else left
    keys = [f"query {i}" for i in range(len(q))]
    values, paid = mechanism.answer(similar, left, labels, CLASSES, keys, entropy)
    return similar, values, paid, mechanism.reserve(similar, left)


RBF = replace(SPENDTHRIFT, kernel="rbf", bandwidth=1.3)


@pytest.mark.parametrize(
    "mechanism",
    [SPENDTHRIFT, RBF, replace(RBF, bandwidth=1.0, near=0.9)],
    ids=["cosine", "rbf", "near"],
)
@pytest.mark.parametrize("seed", range(3))
def test_every_decision_is_that_of_algorithm_3_in_fractions(mechanism, seed):
    x, q, tape = features(40, seed), features(25, 100 + seed), SeededNoise(seed)
    labels = np.random.default_rng(seed).integers(0, CLASSES, 40)
    similar, values, paid, _ = settle(mechanism, x, labels, q, tape)
    rho = Fraction(mechanism.rho)
    records = [
        algorithm3.Record(tuple(row.tolist()), int(y), rho)
        for row, y in zip(x, labels, strict=True)
    ]
    by_distance = algorithm3.rbf_at_least(40.0 * mechanism.bandwidth, 40.0 * mechanism.near)
    kernel = algorithm3.cosine_at_least if mechanism.kernel == "cosine" else by_distance
    for j, row in enumerate(q.tolist()):
        key = f"query {j}"
        expected = algorithm3.query(
            records,
            row,
            kernel,
            tau=Fraction(round(mechanism.threshold * STEPS), STEPS),
            sigma_count=Fraction(mechanism.sigma_count),
            sigma_label=Fraction(mechanism.sigma_label),
            rho=rho,
            classes=CLASSES,
            count_noise=int(tape.discrete_gaussian(2.0, [key], "count", 1)[0, 0]),
            label_noise=lambda scale, key=key: tape.discrete_gaussian(
                float(scale), [key], "label", CLASSES
            )[0],
        )
        assert values[j].tolist() == list(expected), j
    assert [(rho - r.left) / rho * FULL for r in records] == paid.tolist()
    assert (FULL - paid < mechanism._count_units()).sum() >= 3  # some run out on the way
    assert len({len(s.rows) for s in similar}) > 3


@pytest.mark.parametrize("dimensions", [1, 4000])
def test_integers_stay_exact_at_the_ends_of_their_range(dimensions):
    """The largest products there are, one entry off the threshold on either side."""
    q = np.full((1, dimensions), 63, dtype=np.int8)
    x = np.full((4, dimensions), 63, dtype=np.int8)
    x[1, 0], x[2], x[3, : (dimensions + 1) // 2] = 62, -63, 0
    for tau in (1 / STEPS, 0.25, 0.5, 0.70703125, 0.70727, 1.0):
        found = ExactIndex(x, np.arange(4), threads=1).similar(q, cosine(tau))[0]
        t = Fraction(max(1, round(tau * STEPS)), STEPS)
        rows = [i for i in range(4) if algorithm3.cosine_at_least(x[i].tolist(), q[0].tolist(), t)]
        assert found.rows.tolist() == rows
        for row, weight in zip(rows, found.weights.tolist(), strict=True):
            at_least = [
                algorithm3.cosine_at_least(
                    x[row].tolist(), q[0].tolist(), Fraction(weight + s, GRID)
                )
                for s in (0, 1)
            ]
            assert at_least == [True, False] or weight == GRID


@settings(max_examples=40)
@given(
    st.integers(0, 10**6),
    st.floats(0.05, 1.0),
    st.floats(0.02, 3.0),
    st.floats(1.0, 30.0),
    st.floats(1e-3, 5.0),
    st.integers(0, FULL),
)
def test_nobody_pays_more_than_it_has_or_than_was_reserved(seed, tau, sigma, count, rho, poor):
    count = max(count, 1.001 / math.sqrt(2 * rho))
    mechanism = IndKnn(threshold=tau, sigma_label=sigma, sigma_count=count, rho=rho)
    x, q, price = features(30, seed), features(20, seed + 1), mechanism._count_units()
    left, labels = np.full(30, FULL), np.arange(30) % CLASSES
    left[::3], left[1::5] = poor, 0
    similar, _, paid, reserved = settle(mechanism, x, labels, q, SeededNoise(seed), left)
    assert (paid >= 0).all()
    assert (paid <= reserved).all()
    assert (reserved <= left).all()
    chosen = np.bincount(np.concatenate([s.rows for s in similar]), minlength=30)
    able = (chosen > 0) & (left >= price)
    assert (paid[~able] == 0).all()
    assert (paid[able] >= price).all()


def two_class_law(weight, scale):
    """P(label) for one vote of ``weight`` for class 1, ties to class 0: float64 [2], exact sums."""
    reach = 12 * scale
    mass = gaussian(scale, reach)
    below = np.concatenate([[0.0], np.cumsum(mass)])  # P(Z < z) at z = -reach + index
    z = np.arange(-reach, reach + 1) + weight
    win = float(mass @ below[np.clip(z + reach, 0, len(mass))])  # P(weight + Z1 > Z0)
    return np.array([1 - win, win])


@pytest.mark.parametrize("queries", [1, 3])
def test_the_exact_divergence_of_whole_conversations_is_below_the_claim(queries):
    """With a record that every query selects, against an empty data set; it can not pay for the
    third query. The law after a count depends on the count, so the sum runs over histories."""
    rho, sigma_count, reach = Fraction(1, 2), 1.2, 14
    mechanism = IndKnn(threshold=0.5, sigma_label=0.1, sigma_count=sigma_count, rho=float(rho))
    counts, price = gaussian(sigma_count, reach), mechanism._count_units()
    # counts -reach .. reach + 1, without and with the record
    shifted = {0: np.pad(counts, (0, 1)), 1: np.pad(counts, (1, 0))}
    orders = np.array([1.5, 2.0, 4.0, 8.0])

    @cache
    def moments(left, depth):
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
            rest = moments(left_over, depth - 1)
            total[0] += (p[:, None] ** orders * r[:, None] ** (1 - orders)).sum(axis=0) * rest[0]
            total[1] += (r[:, None] ** orders * p[:, None] ** (1 - orders)).sum(axis=0) * rest[1]
        return total

    divergence = np.log(moments(FULL, queries)) / (orders - 1)
    assert (divergence <= float(rho) * orders * (1 + 1e-9)).all()
    assert (divergence >= 0.55 * float(rho) * orders).all()  # the bound is used
