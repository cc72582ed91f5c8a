"""Reverse kNN: sensitivity by property and brute force, price against the exact law."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from labelwall.teacher.accounting.accountant import certificates, certified_epsilon
from labelwall.teacher.mechanisms.sums import ReverseKnn
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.search.cpu import ExactIndex
from tests.make import plan_of

DIMENSIONS, CLASSES = 4, 3
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
