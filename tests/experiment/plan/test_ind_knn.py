"""The search for Ind-KNN: forecasts come true, configurations load and fit, no private data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.experiment.config.settings import load_config
from labelwall.experiment.plan.ind_knn import SimulatedRecords, best_level, optimise, threshold_at
from labelwall.experiment.plan.planner import Goal, View
from labelwall.experiment.plan.search import planned_config
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.features.embedder import unit_length
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.kernels import GRID, STEPS
from labelwall.wall.errors import BudgetRefused, InvalidInput
from tests.experiment.plan import planning
from tests.experiment.plan.planning import (
    CLASSES,
    DIMENSIONS,
    PRIVATE,
    PUBLIC,
    TEST,
    embedded,
)
from tests.seeded_noise import SeededNoise

LENGTH = unit_length(planning.EMBEDDER.spec, DIMENSIONS)
GOAL = Goal(1.0, 1e-5, PRIVATE, PUBLIC, 2)
VIEW = View("raw", 0, DIMENSIONS, DIMENSIONS, TEST, CLASSES, PRIVATE)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return planning.write(
        tmp_path, "mechanism: {kind: ind_knn, threshold: 0.4}\nbudget: {epsilon: 1.0}"
    )


def simulated(kernel: IndKnn) -> SimulatedRecords:
    return SimulatedRecords.of(*embedded(3, TEST), PRIVATE, CLASSES, kernel, LENGTH)


def asked_for_real(mechanism: IndKnn, asked: int) -> float:
    """Share of right answers of the mechanism, with a repeatable tape, on records of no search.

    400 queries here and 400 rows in the search: a deviation of 0.034 between the two shares.
    """
    (records, labels), (queries, truth) = embedded(1, PRIVATE), embedded(2, asked)
    similar = ExactIndex(records, np.arange(PRIVATE), threads=1).similar(
        queries, mechanism.select(LENGTH)
    )
    keys = [str(q) for q in range(asked)]
    values, _ = mechanism.answer(
        similar, np.full(PRIVATE, FULL), labels, CLASSES, keys, SeededNoise(5)
    )
    return float((values[:, 1] == truth).mean())


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param({}, id="cosine"),
        pytest.param(
            {"kernel": "rbf", "bandwidth": 0.8, "near": 0.3}, id="rbf", marks=pytest.mark.slow
        ),
    ],
)
def test_the_forecast_comes_true_and_no_neighbour_is_better(
    config_file: Path, small_grids, kernel: dict
) -> None:
    config = load_config(config_file)
    config = replace(config, mechanism=replace(config.mechanism, **kernel))
    records = simulated(config.mechanism)
    found = optimise(config.mechanism, records, VIEW, GOAL)
    planned = planned_config(config, found.chosen)
    plan, best, mechanism = planned.plan(), found.chosen, found.chosen.mechanism
    assert 0.99 < found.chosen.epsilon == certified_epsilon(plan) <= 1
    assert mechanism.rho == pytest.approx(0.0305527, abs=1e-7)  # all that the budget buys
    assert best.answered == best.cap == best.asked
    assert [r.queries for r in planned.rounds] == [best.asked // 2, best.asked // 2]
    assert best.accuracy == pytest.approx(asked_for_real(mechanism, best.asked), abs=0.08)
    less = optimise(config.mechanism, records, VIEW, replace(GOAL, epsilon=0.25)).chosen
    assert less.right < best.right
    for name, factor in (
        ("threshold", 0.5),
        ("threshold", 1.3),
        ("sigma_label", 0.4),
        ("sigma_label", 2.5),
        ("sigma_count", 0.2),
    ):
        other = replace(mechanism, **{name: factor * getattr(mechanism, name)})
        (right,) = records.ind_knn([other], best.asked, 9, np.random.default_rng(9))
        assert right <= best.accuracy + 0.02, name


def test_the_first_round_finds_the_best_threshold_without_noise() -> None:
    for kernel in (IndKnn(), IndKnn(kernel="rbf", bandwidth=0.6)):
        records = simulated(kernel)
        level, share = best_level(records, kernel)
        tried = [
            records.without_noise(max(1 / STEPS, threshold_at(kernel, step / 20)))
            for step in range(1, 20)
        ]
        assert share == max(tried)
        assert share == pytest.approx(records.without_noise(threshold_at(kernel, level)), abs=0.01)
        assert share > 1.1 / CLASSES


def test_a_floor_of_the_accuracy_buys_fewer_and_better_labels(
    small_grids,
) -> None:
    kernel, goal = IndKnn(threshold=0.4), replace(GOAL, epsilon=0.2)
    records = simulated(kernel)
    free = optimise(kernel, records, VIEW, goal).chosen
    floor = free.accuracy + 0.06
    better = optimise(kernel, records, VIEW, replace(goal, min_accuracy=floor)).chosen
    assert better.accuracy > free.accuracy + 0.02
    assert better.asked < free.asked
    with pytest.raises(BudgetRefused, match=r"budget\.epsilon"):
        optimise(kernel, records, VIEW, replace(goal, min_accuracy=0.999))
    with pytest.raises(InvalidInput, match="expected_records"):
        optimise(kernel, records, VIEW, replace(goal, expected_records=1))


UNIT = 40.0
COSINE, RBF = IndKnn(threshold=0.3), IndKnn(kernel="rbf", bandwidth=0.6, near=0.7, threshold=0.1)


def rows(n: int, seed: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """int8 [n, 16] around ten centres, labels int64 [n]."""
    centres = np.random.default_rng(0).normal(size=(10, 16))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, n)
    x = centres[labels] + noise * rng.normal(size=(n, 16))
    return np.clip(np.rint(UNIT * x / np.linalg.norm(x, axis=1, keepdims=True)), -63, 63).astype(
        np.int8
    ), labels


@pytest.mark.parametrize("mechanism", [COSINE, RBF], ids=["cosine", "rbf"])
def test_neighbours_and_weights_are_those_of_the_mechanism(mechanism: IndKnn) -> None:
    """The teacher's integer kernels; only rows on the edge of a step may differ."""
    x, y = rows(150, 1)
    records = SimulatedRecords.of(x, y, 450, 10, mechanism, UNIT)
    found = ExactIndex(x, np.arange(150), threads=1).similar(x, mechanism.select(UNIT))
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
    records = SimulatedRecords.of(*rows(120, 1), 600, 10, COSINE, UNIT)
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
    records = SimulatedRecords.of(*rows(120, 1), 600, 10, COSINE, UNIT)
    full = replace(COSINE, rho=0.08, sigma_label=0.3, sigma_count=20.0)
    half = replace(full, rho=0.04)
    (twice,) = records.ind_knn([full], 240, 1, np.random.default_rng(4))
    (once,) = records.ind_knn([half], 120, 1, np.random.default_rng(4))
    (rich,) = records.ind_knn([full], 120, 1, np.random.default_rng(4))
    assert twice == once < rich


def test_no_more_rows_stand_in_than_there_are_records() -> None:
    records = SimulatedRecords.of(*rows(120, 1), 50, 10, COSINE, UNIT)
    assert (len(records.labels), records.copies) == (50, 1)
