"""Noisy counts of persons, whose sums are stretched: by how many records gradients are divided."""

import numpy as np
import pytest

from labelwall.student.linear.descent import descend
from labelwall.student.linear.fit_classes import class_weights
from labelwall.student.linear.measure import FitSettings, Measurements, unit_inputs
from labelwall.teacher.mechanisms.gradient import gradient_sums
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.matrices import COUNT, SENSITIVITY, bias, residual_unit
from tests.student.linear.test_shift import EQUAL, rows

LENGTH, STEPS, PERSONS = 63.0, 30, 400


def settings(noise: float, gain: int) -> FitSettings:
    """``noise``: the deviation of a count."""
    return FitSettings("class", 3, LENGTH, noise * COUNT / SENSITIVITY, 0.1, STEPS, gain)


def counted(counts: np.ndarray, how: FitSettings) -> Measurements:
    """Measurements of sums with these counts, which are 0 beside."""
    left = iter(counts)

    def ask(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return weights, np.append(np.zeros(weights.size), next(left) * COUNT).astype(np.int64)

    measure = Measurements(ask, how)
    for _ in counts:
        measure.at(np.zeros((5, 3)))
    return measure


def test_without_a_gain_all_counts_are_of_the_same_records() -> None:
    counts = 400 + 150 * np.random.default_rng(0).normal(size=STEPS)
    np.testing.assert_allclose(
        counted(counts, settings(150.0, 1)).records, counts.mean(), rtol=0.01
    )


def test_counts_that_noise_hardly_moves_are_their_own() -> None:
    """A single row a person: gradients are cut to half of their length at first, later hardly."""
    true = 2_000 * np.linspace(0.5, 0.95, STEPS)
    noisy = true + 5 * np.random.default_rng(0).normal(size=STEPS)
    np.testing.assert_allclose(counted(noisy, settings(5.0, 2)).records, true, rtol=0.02)


def test_counts_that_noise_hides_tell_of_each_other() -> None:
    """Of 40% noise less than half is left, and no number is beyond what a gain allows."""
    true, left = 400 * np.linspace(0.7, 1.0, STEPS), []
    for seed in range(20):
        noisy = true + 160 * np.random.default_rng(seed).normal(size=STEPS)
        found = counted(noisy, settings(160.0, 2)).records
        assert found.min() >= noisy.mean() / 2 - 1
        assert found.max() <= noisy.mean() * 2 + 1
        left.append(found - true)
    assert np.std(left) < 0.45 * 160


def persons(seed: int, how: FitSettings) -> Measurements:
    features, labels = rows(EQUAL, 4 * PERSONS, 1)
    index = ExactIndex(features, np.arange(len(labels)), persons=np.arange(len(labels)) // 4)
    rng = np.random.default_rng(seed)

    def ask(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        unit = residual_unit(weights, how.clip, LENGTH, how.labels)
        asked = weights[np.newaxis], (unit,), bias(LENGTH), how.labels, how.gain
        total = gradient_sums(*asked, index, labels)[0]
        noise = rng.normal(0, how.noise_multiplier * SENSITIVITY, total.shape)
        return weights, total + np.rint(noise).astype(np.int64)

    return Measurements(ask, how)


@pytest.mark.parametrize("seed", range(6))
def test_public_rows_like_those_of_few_persons_are_no_alarm(seed: int) -> None:
    """A gradient divided by its own count alone would be much too long, or too short."""
    how = settings(165.0, 2)
    inputs = unit_inputs(rows(EQUAL, 600, 2)[0], LENGTH)
    fitted = class_weights(persons(seed, how), inputs, how)
    assert fitted is not None
    assert fitted.shares is not None
    assert not fitted.shares.foreign


def test_later_counts_tell_of_earlier_gradients() -> None:
    how = settings(165.0, 2)
    measure = persons(0, how)
    path = descend(measure, unit_inputs(rows(EQUAL, 600, 2)[0], LENGTH), how)
    assert path is not None
    given = [step.records for step in (path.first, *path.asked)]
    np.testing.assert_allclose(given, measure.records[[0, *range(-len(path.asked), 0)]])
