"""Reverse kNN: sensitivity by property and brute force, price against the exact law, one charge."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from labelwall.teacher.accounting.accountant import certificates, certified_epsilon
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.registry import from_slot
from labelwall.teacher.mechanisms.reverse_knn import HISTOGRAM, ReverseKnn
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput, LedgerMismatch, TeacherFailed
from labelwall.wall.matrices import Cells
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.make import teach

DIMENSIONS, CLASSES = 4, 3
SPEC = ExtractorSpec("raw", (DIMENSIONS,), CLASSES)
MECHANISM = ReverseKnn(cells=5, neighbours=2, sigma=3.0)
few = st.sampled_from([-63, -1, 0, 1, 63])  # ties and duplicates


class ZeroNoise:
    """No noise; counts what was drawn. Unsafe, so its ledger certifies nothing."""

    unsafe = True

    def __init__(self) -> None:
        self.drawn: list[tuple[str, int, int]] = []

    def inclusion(
        self, probability: float, keys: Sequence[str], release: str, ids: np.ndarray
    ) -> np.ndarray:
        raise AssertionError("reverse kNN samples nobody")

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        self.drawn.append((release, len(keys), width))
        return np.zeros((len(keys), width), dtype=np.int64)


def plan(mechanism: ReverseKnn, histograms: int, delta: float = 1e-5) -> Plan:
    return Plan(1e9, delta, (Slot(mechanism.fields(), mechanism.releases(histograms, histograms)),))


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, DIMENSIONS)).astype(np.float32), rng.integers(0, CLASSES, n)


def centers(seed: int, m: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(-30, 31, (m, DIMENSIONS)).astype(np.int8)


def teacher(
    folder: Path,
    entropy: Entropy,
    *,
    histograms: int = 2,
    n: int = 40,
    mechanism: ReverseKnn = MECHANISM,
) -> Teacher:
    # not ascending: the index keeps them in another order
    records = Records(*rows(n, 0), np.random.default_rng(9).permutation(n))
    return teach(folder, plan(mechanism, histograms), records, SPEC, entropy)


def votes(
    features: np.ndarray, labels: np.ndarray, cells: np.ndarray, neighbours: int
) -> np.ndarray:
    n = len(labels)
    voters = Voters(ExactIndex(features, np.arange(n)[::-1].copy()), labels, CLASSES, cells[None])
    return voters.cell_votes(neighbours)[0]


@settings(max_examples=80)
@given(st.data())
def test_a_record_adds_one_vote_in_each_of_its_cells_and_changes_nothing_else(
    data: st.DataObject,
) -> None:
    d, m, n = (data.draw(st.integers(1, most)) for most in (3, 6, 8))
    neighbours = data.draw(st.integers(1, m))
    features = data.draw(arrays(np.int8, (n, d), elements=few))
    labels = data.draw(arrays(np.int64, n, elements=st.integers(0, CLASSES - 1)))
    cells = data.draw(arrays(np.int8, (m, d), elements=few))
    left_out = data.draw(st.integers(0, n - 1))
    with_it = votes(features, labels, cells, neighbours)
    without = votes(
        np.delete(features, left_out, 0), np.delete(labels, left_out), cells, neighbours
    )
    difference = (with_it - without).reshape(m, CLASSES)
    assert ((difference == 0) | (difference == 1)).all()
    assert difference.sum() == neighbours  # L2: sqrt(neighbours)
    assert difference[:, labels[left_out]].sum() == neighbours
    assert with_it.sum() == n * neighbours


def test_votes_are_those_of_a_loop(tmp_path: Path) -> None:
    x, y = rows(40, 0)
    cells, silent = centers(1), ZeroNoise()
    counted = teacher(tmp_path, silent).count(Cells(cells)).counts
    normed = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    quantised = np.clip(np.rint(63 * normed), -63, 63).astype(int)
    expected = np.zeros((5, CLASSES), dtype=int)
    for row, label in zip(quantised, y, strict=True):
        order = sorted(
            range(5), key=lambda c, row=row: (((row - cells[c].astype(int)) ** 2).sum(), c)
        )
        for cell in order[:2]:
            expected[cell, label] += 1
    np.testing.assert_array_equal(counted, expected)
    assert silent.drawn == [(HISTOGRAM, 1, 5 * CLASSES)]  # every entry gets noise, empty cells too


def test_one_charge_a_set_of_cells_and_the_same_counts_when_asked_again(tmp_path: Path) -> None:
    made = teacher(tmp_path, SystemEntropy())
    first = made.count(Cells(centers(1)))
    assert first.receipt.charged == {HISTOGRAM: 1}
    again = teacher(tmp_path, SystemEntropy()).count(Cells(centers(1)))  # also after a restart
    np.testing.assert_array_equal(first.counts, again.counts)
    assert (again.receipt.charged, again.receipt.served, again.receipt.left) == (
        {HISTOGRAM: 0},
        1,
        {HISTOGRAM: 1},
    )
    other = made.count(Cells(centers(2)))
    assert other.receipt.left == {HISTOGRAM: 0}


def test_past_the_cap_there_are_no_counts_and_nothing_is_drawn(tmp_path: Path) -> None:
    silent = ZeroNoise()
    made = teacher(tmp_path, silent, histograms=1)
    assert made.count(Cells(centers(1))).counts is not None
    for _ in range(2):
        refused = made.count(Cells(centers(2)))
        assert refused.counts is None
        assert refused.receipt.charged == {HISTOGRAM: 0}
    assert len(silent.drawn) == 1
    assert made.count(Cells(centers(1))).counts is not None


def test_an_empty_data_set_and_empty_cells_get_noise_like_all_others(tmp_path: Path) -> None:
    counted = (
        teacher(tmp_path, SystemEntropy(), n=0, mechanism=ReverseKnn(cells=5, sigma=30.0))
        .count(Cells(centers(1)))
        .counts
    )
    assert counted is not None
    assert (
        counted != 0
    ).mean() > 0.5  # a noise of 0 has probability 0.0133; eight of 15 such, 7e-12


@pytest.mark.parametrize("bad", ["wrong number", "wrong dimensions", "unknown slot", "queries"])
def test_what_does_not_fit_is_refused_before_anything_is_charged(tmp_path: Path, bad: str) -> None:
    made = teacher(tmp_path, ZeroNoise())
    wrong = {"wrong number": centers(1, m=4), "wrong dimensions": centers(1)[:, :3]}.get(
        bad, centers(1)
    )
    cells = Cells(wrong, slot=int(bad == "unknown slot"))
    with pytest.raises(InvalidInput):
        made.answer(Queries(rows(2, 1)[0])) if bad == "queries" else made.count(cells)
    assert Ledger(tmp_path / "ledger.sqlite").state.spent == {}


def test_a_failure_after_the_charge_is_the_constant_and_stays_charged(tmp_path: Path) -> None:
    class Broken(ZeroNoise):
        def discrete_gaussian(self, *args: object) -> np.ndarray:
            raise MemoryError("how much a private row needs")

    with pytest.raises(TeacherFailed) as caught:
        teacher(tmp_path, Broken()).count(Cells(centers(1)))
    assert "private row" not in str(caught.value)
    assert Ledger(tmp_path / "ledger.sqlite").state.spent == {(0, HISTOGRAM): 1}


def exact_delta(epsilon: float, sigma: float) -> float:
    """Canonne-Kamath-Steinke 2020, Theorem 7.

    P[Z > epsilon sigma^2 - 1/2] - e^epsilon P[Z > epsilon sigma^2 + 1/2].
    """
    z = np.arange(-4000, 4001)
    mass = np.exp(-(z**2) / (2 * sigma**2))
    mass /= mass.sum()
    tails = [float(mass[z > epsilon * sigma**2 + shift].sum()) for shift in (-0.5, 0.5)]
    return tails[0] - math.exp(epsilon) * tails[1]


@pytest.mark.parametrize(("sigma", "delta"), [(31.0, 1e-5), (4.0, 1e-5), (44.0, 1e-6)])
def test_one_vote_is_priced_by_the_exact_law(sigma: float, delta: float) -> None:
    epsilon = certified_epsilon(plan(ReverseKnn(cells=9, neighbours=1, sigma=sigma), 1, delta))
    assert exact_delta(epsilon, sigma) <= delta  # sound
    assert exact_delta(epsilon * 0.985, sigma) > delta  # and within 1.5% of the smallest


@pytest.mark.parametrize("neighbours", [1, 2, 3])
def test_the_price_depends_on_sigma_over_the_root_of_neighbours_alone(neighbours: int) -> None:
    scaled = ReverseKnn(cells=7, neighbours=neighbours, sigma=40.0 * math.sqrt(neighbours))
    one = certificates(plan(ReverseKnn(cells=900, neighbours=1, sigma=40.0), 2))
    many = certificates(plan(scaled, 2))
    assert many["tight"].epsilon == pytest.approx(one["tight"].epsilon, rel=1e-9)
    assert many["pld_discrete"].epsilon == pytest.approx(one["pld_discrete"].epsilon, rel=0.01)


def test_brute_force_over_a_tiny_histogram_stays_below_the_certificate() -> None:
    """The exact hockey-stick divergence at the certificate.

    Over all outcomes of three entries, two of which a record moves.
    """
    sigma, delta, reach = 1.5, 1e-3, 14
    epsilon = certified_epsilon(plan(ReverseKnn(cells=3, neighbours=2, sigma=sigma), 1, delta))
    z = np.arange(-reach, reach + 1)
    mass = (
        np.exp(-(z**2) / (2 * sigma**2)) / np.exp(-(np.arange(-60, 61) ** 2) / (2 * sigma**2)).sum()
    )
    law = dict(zip(z.tolist(), mass, strict=True))
    for shift in ((1, 1, 0), (-1, -1, 0)):
        excess = 0.0
        for outcome in itertools.product(range(-reach + 1, reach), repeat=3):
            p = math.prod(law[o] for o in outcome)
            q = math.prod(law[o - s] for o, s in zip(outcome, shift, strict=True))
            excess += max(0.0, p - math.exp(epsilon) * q)
        assert excess <= delta
        assert excess > delta / 30  # the certificate is near what is there


@pytest.mark.parametrize(
    "wrong", [{"cells": 0}, {"cells": 4097}, {"neighbours": 0}, {"neighbours": 6}, {"sigma": 0.0}]
)
@pytest.mark.parametrize("field", ["cells", "neighbours", "sigma", "margin"])
def test_bad_fields_are_refused(field: str, wrong: dict) -> None:
    with pytest.raises(InvalidInput, match=r"mechanism\."):
        ReverseKnn(**{"cells": 5, field: math.nan if field in ("sigma", "margin") else -1} | wrong)


def test_a_ledger_that_accounts_for_less_than_the_histogram_is_refused() -> None:
    slot = plan(ReverseKnn(cells=5, neighbours=3, sigma=3.0), 1).slots[0]
    assert from_slot(slot) == ReverseKnn(cells=5, neighbours=3, sigma=3.0)
    with pytest.raises(LedgerMismatch):
        from_slot(Slot({**slot.mechanism, "neighbours": 4}, slot.releases))
