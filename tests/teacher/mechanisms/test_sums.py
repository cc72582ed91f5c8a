"""Noisy sums: what a record adds, by brute force; prices by exact laws; one charge a matrix."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from labelwall.teacher.accounting.accountant import certificates, certified_epsilon
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.sums import PrivateLinear, ReverseKnn
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput
from labelwall.wall.matrices import (
    CLIP,
    COUNT,
    SENSITIVITY,
    Cells,
    Matrix,
    Weights,
    bias,
    residual_unit,
)
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.make import LEDGER, ZeroNoise, plan_of, teach
from tests.teacher.shards import tiny

DIMENSIONS, CLASSES = 4, 3
HISTOGRAM, SUM = ReverseKnn(centroids=5, neighbours=2, sigma=3.0), PrivateLinear(sigma=2.0)
WIDTH = (DIMENSIONS + 1) * CLASSES + 1

both = pytest.mark.parametrize("mechanism", [HISTOGRAM, SUM], ids=lambda m: m.kind)
few = st.sampled_from([-63, -1, 0, 1, 63])  # ties and duplicates


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


def test_votes_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(1)
    features, cells = (rng.integers(-30, 31, (n, DIMENSIONS)).astype(np.int8) for n in (40, 5))
    labels, expected = rng.integers(0, CLASSES, 40), np.zeros((5, CLASSES), dtype=int)
    for row, label in zip(features.astype(int), labels, strict=True):
        apart = ((row - cells) ** 2).sum(axis=1).tolist()
        for cell in sorted(range(5), key=lambda c, apart=apart: (apart[c], c))[:2]:
            expected[cell, label] += 1
    assert votes(features, labels, cells, 2).tolist() == expected.ravel().tolist()


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
    epsilon = certified_epsilon(
        plan_of(ReverseKnn(centroids=9, neighbours=1, sigma=sigma), 1, delta=delta)
    )
    assert exact_delta(epsilon, sigma) <= delta  # sound
    assert exact_delta(epsilon * 0.985, sigma) > delta  # and within 1.5% of the smallest


@pytest.mark.parametrize("neighbours", [1, 2, 3])
def test_the_price_depends_on_sigma_over_the_root_of_neighbours_alone(neighbours: int) -> None:
    scaled = ReverseKnn(centroids=7, neighbours=neighbours, sigma=40.0 * math.sqrt(neighbours))
    one = certificates(plan_of(ReverseKnn(centroids=900, neighbours=1, sigma=40.0), 2))
    many = certificates(plan_of(scaled, 2))
    assert many["tight"].epsilon == pytest.approx(one["tight"].epsilon, rel=1e-9)
    assert many["pld"].epsilon == pytest.approx(one["pld"].epsilon, rel=0.01)


def test_brute_force_over_a_tiny_histogram_stays_below_the_certificate() -> None:
    """The exact hockey-stick divergence at the certificate.

    Over all outcomes of three entries, two of which a record moves.
    """
    sigma, delta, reach = 1.5, 1e-3, 14
    epsilon = certified_epsilon(
        plan_of(ReverseKnn(centroids=3, neighbours=2, sigma=sigma), 1, delta=delta)
    )
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


def weights(seed: int) -> np.ndarray:
    shape = DIMENSIONS + 1, CLASSES
    return np.random.default_rng(seed).integers(-500, 501, shape).astype(np.int16)


def test_at_weights_of_zero_the_sum_is_the_mean_of_each_class() -> None:
    """And its residuals, of length sqrt(2/3), are in units that use the whole limit."""
    rng, length = np.random.default_rng(0), 63.0
    x, labels = rng.normal(size=(40, DIMENSIONS)), rng.integers(0, CLASSES, 40)
    features = np.rint(63 * x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.int8)
    zero = np.zeros((1, DIMENSIONS + 1, CLASSES), dtype=np.int16)
    index = ExactIndex(features, rng.permutation(40))
    sums = Voters(index, labels, CLASSES, zero, length).gradients(1.0)[0]
    unit = residual_unit(zero[0], 1.0, length)
    inputs = np.pad(features.astype(np.int64), ((0, 0), (0, 1)), constant_values=bias(length))
    share = (2 * unit + CLASSES) // (2 * CLASSES)
    expected = inputs.T @ (share - unit * np.eye(CLASSES, dtype=np.int64)[labels])
    gap = np.abs(sums[:-1].reshape(-1, CLASSES) - expected).max()
    assert gap <= 0.05 * CLIP  # rounded features may be a little longer than 63: shrunk
    assert unit * math.sqrt(2 / 3) * math.hypot(length, bias(length)) == pytest.approx(CLIP, 1e-3)
    assert sums[-1] == 40 * COUNT


@pytest.mark.parametrize("length", [0.5, 63.0, 240.0, 4000.0])
def test_units_and_bias_are_in_range_for_any_extractor(length: float) -> None:
    for clip in (0.01, 1.0, 1.5):
        for w in (np.zeros((3, 2), np.int16), weights(1)):
            assert 1 <= residual_unit(w, clip, length) <= 2**18
    assert 1 <= bias(length) <= 63


@pytest.mark.parametrize(
    ("labels", "clip", "first", "later"),
    [
        ("class", 1.0, math.sqrt(2 / 3), 1.0),  # three outputs
        ("class", 0.5, 0.5, 0.5),
        ("attributes", 0.5, math.sqrt(3) / 2, math.sqrt(3) / 2),
        ("attributes", 1.0, math.sqrt(3) / 2, math.sqrt(3)),
        ("attributes", 0.25, math.sqrt(3) / 4, math.sqrt(3) / 4),
        ("value", 0.25, 1.0, 0.25),
    ],
)
def test_the_longest_residual_of_a_label_space_reaches_the_limit(
    labels: str, clip: float, first: float, later: float
) -> None:
    for w, longest in ((np.zeros((5, 3), np.int16), first), (weights(1), later)):
        reached = residual_unit(w, clip, 63.0, labels) * longest * math.hypot(63, bias(63.0))
        assert reached <= CLIP
        assert reached == pytest.approx(CLIP, rel=1e-3)


def teacher(folder: Path, mechanism: Mechanism, entropy: Entropy | None = None) -> Teacher:
    """Of 36 records with finite features, for two matrices."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, DIMENSIONS)).astype(np.float32)
    x[:4] = np.nan
    records = Records(x, rng.integers(0, CLASSES, 40), rng.permutation(40))
    spec = ExtractorSpec("raw", (DIMENSIONS,), CLASSES)
    return teach(folder, plan_of(mechanism, 2), records, spec, entropy)


def matrix(mechanism: Mechanism, seed: int) -> Matrix:
    asked = tiny.matrix(mechanism, DIMENSIONS, CLASSES, seed)
    assert asked is not None
    return asked


@pytest.mark.parametrize(
    ("mechanism", "scale", "width", "total"),
    [(HISTOGRAM, 3.0, 5 * CLASSES, 36 * 2), (SUM, 2.0 * SENSITIVITY, WIDTH, 36 * COUNT)],
    ids=["reverse_knn", "private_linear"],
)
def test_every_entry_gets_noise_and_records_that_are_not_finite_add_nothing(
    tmp_path: Path, mechanism: Mechanism, scale: float, width: int, total: int
) -> None:
    """``total``: votes of all records, or what counts them in a sum's last entry."""
    tape = ZeroNoise()
    counts = teacher(tmp_path, mechanism, tape).count(matrix(mechanism, 1)).counts
    assert counts is not None
    assert counts.size == width
    assert (counts.sum() if mechanism == HISTOGRAM else counts[0, -1]) == total
    assert tape.drawn == [("gaussian", scale, mechanism.stages[0], 1, width)]


@both
def test_one_charge_a_matrix_and_none_past_the_cap(tmp_path: Path, mechanism: Mechanism) -> None:
    (stage,) = mechanism.stages
    tape = ZeroNoise()
    answering = teacher(tmp_path, mechanism, tape)
    first = answering.count(matrix(mechanism, 1))
    assert first.receipt.charged == {stage: 1}
    again = teacher(tmp_path, mechanism, tape).count(matrix(mechanism, 1))  # also after a restart
    assert np.array_equal(first.counts, again.counts)
    receipt = again.receipt
    assert (receipt.charged, receipt.served, receipt.left) == ({stage: 0}, 1, {stage: 1})
    assert answering.count(matrix(mechanism, 2)).receipt.left == {stage: 0}
    for _ in range(2):
        refused = answering.count(matrix(mechanism, 3))
        assert refused.counts is None
        assert refused.receipt.charged == {stage: 0}
    assert len(tape.drawn) == 2
    assert answering.count(matrix(mechanism, 1)).counts is not None


CENTERS = np.zeros((5, DIMENSIONS), dtype=np.int8)
WEIGHTS = np.zeros((DIMENSIONS + 1, CLASSES), dtype=np.int16)
ROWS = Queries(np.zeros((2, DIMENSIONS), dtype=np.float32))
FOREIGN: list[tuple[Mechanism, str, Matrix | Queries]] = [
    (HISTOGRAM, "another number", Cells(CENTERS[:4])),
    (HISTOGRAM, "other dimensions", Cells(CENTERS[:, :3])),
    (HISTOGRAM, "an unknown slot", Cells(CENTERS, slot=1)),
    (HISTOGRAM, "weights", Weights(WEIGHTS)),
    (HISTOGRAM, "rows", ROWS),
    (SUM, "transposed", Weights(WEIGHTS.T.copy())),
    (SUM, "a value's", Weights(WEIGHTS[:, :1].copy())),
    (SUM, "no bias", Weights(WEIGHTS[:-1])),
    (SUM, "an unknown slot", Weights(WEIGHTS, slot=1)),
    (SUM, "cells", Cells(CENTERS)),
    (SUM, "rows", ROWS),
]


@pytest.mark.parametrize(("mechanism", "_name", "asked"), FOREIGN, ids=lambda v: str(v)[:30])
def test_what_does_not_fit_is_refused_before_anything_is_charged(
    tmp_path: Path, mechanism: Mechanism, _name: str, asked: Matrix | Queries
) -> None:
    answering = teacher(tmp_path, mechanism, ZeroNoise())
    with pytest.raises(InvalidInput):
        answering.answer(asked) if isinstance(asked, Queries) else answering.count(asked)
    assert Ledger(tmp_path / LEDGER).state.spent == {}
