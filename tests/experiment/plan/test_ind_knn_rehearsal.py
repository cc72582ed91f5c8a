"""Simulated records: the mechanism's kernels, no votes of a row's copies, separate candidates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labelwall.experiment.plan.ind_knn_rehearsal import SimulatedRecords, threshold_at
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.kernels import GRID

LENGTH = 40.0
COSINE, RBF = IndKnn(threshold=0.3), IndKnn(kernel="rbf", bandwidth=0.6, near=0.7, threshold=0.1)


def rows(n: int, seed: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """int8 [n, 16] around ten centres, labels int64 [n]."""
    centres = np.random.default_rng(0).normal(size=(10, 16))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, n)
    x = centres[labels] + noise * rng.normal(size=(n, 16))
    return np.clip(np.rint(LENGTH * x / np.linalg.norm(x, axis=1, keepdims=True)), -63, 63).astype(
        np.int8
    ), labels


@pytest.mark.parametrize("mechanism", [COSINE, RBF], ids=["cosine", "rbf"])
def test_neighbours_and_weights_are_those_of_the_mechanism(mechanism: IndKnn) -> None:
    """The teacher's integer kernels; only rows on the edge of a step may differ."""
    x, y = rows(150, 1)
    records = SimulatedRecords.of(x, y, 450, 10, mechanism, LENGTH)
    found = ExactIndex(x, np.arange(150), threads=1).similar(x, mechanism.select(LENGTH))
    exact, ours = np.zeros((2, 150, 150))
    for query, similar in enumerate(found):
        exact[query, similar.rows] = similar.weights
    near = records.similarity >= mechanism.threshold
    ours[near] = np.floor(records.similarity[near] * GRID)
    np.fill_diagonal(exact, 0)
    assert 1000 < (exact > 0).sum() < 150 * 149
    assert (exact != ours).mean() < 0.005
    assert np.abs(exact - ours)[exact > 0].max() <= 1
    assert records.copies == 3
    typical = np.sqrt(np.mean((exact[exact > 0] / GRID) ** 2))
    assert records.typical_weight(mechanism.threshold) == pytest.approx(typical, rel=0.01)


def test_a_level_is_the_threshold_at_that_cosine() -> None:
    angle = np.arccos(0.4)
    distance = (1 - np.cos(angle)) ** 2 + np.sin(angle) ** 2
    assert threshold_at(COSINE, 0.4) == 0.4
    assert threshold_at(RBF, 0.4) == pytest.approx(np.exp(-(distance - 0.49) / 0.36))
    assert threshold_at(RBF, 0.99) == 1.0


def test_without_noise_a_row_does_not_vote_for_itself() -> None:
    x = np.clip(np.rint(60 * np.eye(4, 16) + 1), -63, 63).astype(np.int8)
    labels = np.array([1, 2, 3, 4])
    assert SimulatedRecords.of(x, labels, 4, 10, COSINE, 60.0).without_noise(0.9) == 0
    twice = SimulatedRecords.of(np.repeat(x, 2, axis=0), np.repeat(labels, 2), 8, 10, COSINE, 60.0)
    assert twice.without_noise(0.9) == 1


def test_candidates_rehearsed_together_are_as_right_as_alone() -> None:
    records = SimulatedRecords.of(*rows(120, 1), 600, 10, COSINE, LENGTH)
    tried = [
        replace(COSINE, rho=rho, sigma_label=label, sigma_count=9.0)
        for rho in (0.01, 0.5)
        for label in (0.1, 0.6)
    ]
    together = records.ind_knn(tried, 50, 2, np.random.default_rng(4))
    alone = [
        records.ind_knn([mechanism], 50, 2, np.random.default_rng(4))[0] for mechanism in tried
    ]
    assert together.tolist() == alone
    assert len(set(alone)) > 2
    with pytest.raises(ValueError, match="unpack"):
        records.ind_knn(
            [tried[0], replace(tried[0], threshold=0.5)], 50, 1, np.random.default_rng(4)
        )


def test_more_queries_than_rows_spend_budgets_as_fast() -> None:
    records = SimulatedRecords.of(*rows(120, 1), 600, 10, COSINE, LENGTH)
    full = replace(COSINE, rho=0.08, sigma_label=0.3, sigma_count=20.0)
    half = replace(full, rho=0.04)
    (twice,) = records.ind_knn([full], 240, 1, np.random.default_rng(4))
    (once,) = records.ind_knn([half], 120, 1, np.random.default_rng(4))
    (rich,) = records.ind_knn([full], 120, 1, np.random.default_rng(4))
    assert twice == once < rich


def test_no_more_rows_stand_in_than_there_are_records() -> None:
    records = SimulatedRecords.of(*rows(120, 1), 50, 10, COSINE, LENGTH)
    assert (len(records.labels), records.copies) == (50, 1)
