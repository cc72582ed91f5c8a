"""Ind-KNN against exact fractions, its invariants, its price and its fields."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.conversion import epsilon_from_rdp
from labelwall.teacher.accounting.curves import ORDERS
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.mechanisms.base import Priced
from labelwall.teacher.mechanisms.calibration import calibrate
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.kernels import GRID, STEPS, cosine, rbf
from tests.seeded_noise import SeededNoise
from tests.teacher.mechanisms import algorithm3

CLASSES, D = 3, 5
# a record can pay for 6 counts at most
SPENDTHRIFT = IndKnn(threshold=0.3, sigma_label=0.2, sigma_count=2.0, rho=0.75)


def features(n: int, seed: int) -> np.ndarray:
    """int8 [n, D], with duplicates, a zero vector and entries at the ends of the range."""
    x = np.random.default_rng(seed).integers(-63, 64, (n, D)).astype(np.int8)
    x[1::7] = x[0]
    x[2] = 0
    x[3] = 63
    return x


def settle(
    mechanism: IndKnn,
    x: np.ndarray,
    labels: np.ndarray,
    q: np.ndarray,
    entropy: object,
    left: np.ndarray | None = None,
):
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
def test_every_decision_is_that_of_algorithm_3_in_fractions(mechanism: IndKnn, seed: int) -> None:
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
def test_integers_stay_exact_at_the_ends_of_their_range(dimensions: int) -> None:
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


def test_selection_does_not_know_its_company() -> None:
    x, q = features(300, 1), features(20, 2)
    ids = np.random.default_rng(3).permutation(300)
    for select in (cosine(0.4), rbf(0.2, 1.0, 40.0)):
        alone = [
            ExactIndex(x[[i]], np.zeros(1, dtype=np.int64), threads=1).similar(q, select)
            for i in range(300)
        ]
        together = ExactIndex(x, ids, threads=2).similar(q, select)
        for j in range(20):
            expected = {
                i: int(found[j].weights[0]) for i, found in enumerate(alone) if len(found[j].rows)
            }
            assert (
                dict(zip(together[j].rows.tolist(), together[j].weights.tolist(), strict=True))
                == expected
            )
            assert 0 < len(expected) < 300 or j in (2,)


records = st.integers(0, 10**6)


@settings(max_examples=40)
@given(
    records,
    st.floats(0.05, 1.0),
    st.floats(0.02, 3.0),
    st.floats(1.0, 30.0),
    st.floats(1e-3, 5.0),
    st.integers(0, FULL),
)
def test_nobody_pays_more_than_it_has_or_than_was_reserved(
    seed: int, tau: float, sigma: float, count: float, rho: float, poor: int
) -> None:
    count = max(count, 1.001 / math.sqrt(2 * rho))
    mechanism = IndKnn(threshold=tau, sigma_label=sigma, sigma_count=count, rho=rho)
    x, q = features(30, seed), features(20, seed + 1)
    left = np.full(30, FULL)
    left[::3], left[1::5] = poor, 0
    similar, values, paid, reserved = settle(
        mechanism, x, np.arange(30) % CLASSES, q, SeededNoise(seed), left
    )
    assert values.shape == (20, 2)
    assert (paid >= 0).all()
    assert (paid <= reserved).all()
    assert (reserved <= left).all()
    chosen = np.bincount(np.concatenate([s.rows for s in similar]), minlength=30)
    assert (paid[(chosen == 0) | (left < mechanism._count_units())] == 0).all()
    # whoever is chosen and can pay for a count, does
    assert (
        paid[(chosen > 0) & (left >= mechanism._count_units())] >= mechanism._count_units()
    ).all()


class Fixed:
    """A constant as noise on every count, so that two data sets have the same released counts."""

    unsafe = True

    def __init__(self, counts: list[int]) -> None:
        self.counts, self.sums = counts, []

    def discrete_gaussian(
        self, sigma: float, keys: list[str], release: str, width: int
    ) -> np.ndarray:
        if release == "count":
            return np.array(self.counts, dtype=np.int64)[:, None]
        return np.zeros((len(keys), width), dtype=np.int64)


@pytest.mark.parametrize("seed", range(20))
def test_a_record_moves_the_count_by_one_and_one_class_by_what_it_pays_for(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the released counts, the others select, weigh and pay as if it were not there."""
    x, q = features(25, seed), features(30, seed + 50)
    labels, seen = np.random.default_rng(seed).integers(0, CLASSES, 25), []
    plain = np.bincount

    def watch(
        labels_of: np.ndarray, weights: np.ndarray | None = None, minlength: int = 0
    ) -> np.ndarray:
        if weights is None:  # the search counts, too
            return plain(labels_of, minlength=minlength)
        seen.append(plain(labels_of, weights=weights, minlength=minlength))
        return seen[-1]

    monkeypatch.setattr(np, "bincount", watch)
    released = np.random.default_rng(seed).integers(5, 60, 30)  # what both data sets release
    runs = []
    for n in (25, 24):
        rows = slice(0, n)
        similar = ExactIndex(x[rows], np.arange(n), threads=1).similar(q, SPENDTHRIFT.select(1.0))
        seen.clear()
        left, price, selected, paid = np.full(n, FULL), SPENDTHRIFT._count_units(), [], []
        for j in range(30):
            able = similar[j].rows[left[similar[j].rows] >= price]
            selected.append(set(able.tolist()))
            _, cost = SPENDTHRIFT.answer(
                [similar[j]],
                left,
                labels[rows],
                CLASSES,
                ["k"],
                Fixed([int(released[j]) - len(able)]),
            )
            left = left - cost
            paid.append(cost)
        runs.append((selected, paid, [s.copy() for s in seen]))
    (with_it, paid_with, sums_with), (without, paid_without, sums_without) = runs
    moved = 0
    for j in range(30):
        assert with_it[j] - without[j] <= {24}
        assert without[j] <= with_it[j]
        np.testing.assert_array_equal(paid_with[j][:24], paid_without[j])
        difference = sums_with[j] - sums_without[j]
        others = np.delete(difference, labels[24])
        assert (others == 0).all()
        w = Fraction(int(difference[labels[24]]), GRID)
        s = Fraction(SPENDTHRIFT._noise(int(released[j])), GRID)
        assert 0 <= w <= 1
        owed = (1 / (2 * Fraction(2) ** 2) + w * w / (2 * s * s)) if 24 in with_it[j] else 0
        assert owed * FULL / Fraction(0.75) <= int(paid_with[j][24])
        moved += w > 0
    assert sum(int(p[24]) for p in paid_with) <= FULL
    assert moved or seed  # the first one does vote


def plan(mechanism: IndKnn, delta: float = 1e-5) -> Plan:
    return Plan(1e6, delta, (Slot(mechanism.fields(), mechanism.releases(1, 1)),))


def test_the_budget_buys_what_the_reference_says() -> None:
    for epsilon, delta in ((0.5, 1e-5), (1.0, 1e-5), (2.0, 1e-6), (8.0, 1e-7)):
        (mechanism,) = calibrate([Priced(IndKnn(), 1000, 1000)], epsilon, delta)
        rho = mechanism.require("rho")
        assert (rho == pytest.approx(0.0305527, abs=1e-7)) == (epsilon == 1.0)
        assert certified_epsilon(plan(mechanism, delta)) <= epsilon
        assert (
            certified_epsilon(plan(replace(mechanism, rho=rho + 1e-6, sigma_count=1e4), delta))
            > epsilon
        )
        assert epsilon_from_rdp(ORDERS, ORDERS * rho, delta, "classic")[0] > epsilon
        assert mechanism.sigma_count == pytest.approx(math.sqrt(1000 / (6 * rho)), rel=1e-3)
        assert mechanism.sigma_count >= math.sqrt(1000 / (6 * rho))


def test_noise_is_rounded_up_and_never_for_fewer_than_thirty() -> None:
    for sigma, count in itertools.product((0.05, 0.5, 1 / 3, 7.0), (-100, 0, 30, 31, 1000, 10**6)):
        steps = IndKnn(sigma_label=sigma)._noise(count)
        exact = sigma * math.sqrt(max(count, 30)) * GRID
        assert exact <= steps * (1 + 1e-12)
        assert steps < exact + 1 + 1e-6
