"""Errors of noisy means and medians as their planner expects them, against draws."""

from __future__ import annotations

import numpy as np
import pytest

from labelwall.experiment.plan.goal import Goal, PublicRows
from labelwall.experiment.plan.values import explained, squared_errors
from labelwall.experiment.plan.votes import neighbours
from labelwall.teacher.mechanisms.values import PrivateKnnMean, PrivateKnnMedian
from labelwall.wall.label_kinds import STEPS
from tests.experiment.plan.planning import planned

DRAWS = 20_000


def test_a_noisy_mean_is_as_wrong_as_its_draws() -> None:
    rng = np.random.default_rng(0)
    near, truth = rng.integers(1000, 3000, (1, 40)), np.array([1500])
    mechanism = PrivateKnnMean(k=100, sigma_mean=7.0)
    drawn = near.mean() / STEPS + rng.normal(0, 7.0, DRAWS) / 100
    expected = ((drawn - truth / STEPS) ** 2).mean()
    assert squared_errors(mechanism, near, truth)[0] == pytest.approx(expected, rel=0.05)


def test_a_noisy_median_is_as_wrong_as_its_draws() -> None:
    """The Gumbel trick draws from the exponential mechanism by another way."""
    rng = np.random.default_rng(0)
    near, truth = rng.integers(1000, 3000, (1, 40)), np.array([1500])
    mechanism = PrivateKnnMedian(k=40, epsilon=0.4, cells=16)
    cells = near[0] * 16 // (STEPS + 1)
    losses = np.array([max((cells < c).sum(), (cells > c).sum()) for c in range(16)])
    drawn = (rng.gumbel(size=(DRAWS, 16)) - 0.2 * losses).argmax(axis=1)
    expected = (((2 * drawn + 1) / 32 - truth / STEPS) ** 2).mean()
    assert squared_errors(mechanism, near, truth)[0] == pytest.approx(expected, rel=0.05)


def test_no_row_is_its_own_neighbour() -> None:
    features = np.array([[0], [10], [11], [60]], dtype=np.int8)
    found = neighbours(features, np.array([5, 6, 7, 8]))
    assert found.tolist() == [[6, 7, 8], [7, 5, 8], [6, 5, 8], [7, 6, 5]]


def test_the_labels_own_mean_explains_nothing() -> None:
    labels = np.random.default_rng(0).integers(0, STEPS, 400)
    errors = ((labels - labels.mean()) / STEPS) ** 2
    assert explained(errors, labels)[0] == pytest.approx(0.0, abs=1e-9)
    assert explained(0 * errors, labels) == (1.0, 0.0)


def test_more_budget_is_better_and_queries_stay_as_given() -> None:
    rng = np.random.default_rng(0)
    features = rng.integers(-60, 60, (300, 2)).astype(np.int8)
    labels = np.rint((features[:, 0] + 63) / 126 * STEPS).astype(np.int64)
    public = PublicRows(1, lambda: (features, labels, 63.0))
    accuracies = []
    for epsilon in (0.125, 0.5, 1.0):
        goal = Goal(epsilon, 1e-5, 20_000, 500, 1, asked=120)
        best = planned(PrivateKnnMean(), goal, public)
        assert {choice.asked for choice in best.tried} == {120}
        accuracies.append(best.chosen.accuracy)
    assert accuracies == sorted(accuracies)
