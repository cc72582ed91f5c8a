"""The temperature finds what was planted; the calibration error is torchmetrics'."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import (
    binary_calibration_error,
    multiclass_calibration_error,
)

from labelwall.student.calibrate import (
    BINS,
    FEWEST,
    calibration_error,
    most_likely,
    reliability,
    temperature,
)
from labelwall.student.config import StudentConfig
from labelwall.student.data import Pool
from labelwall.student.module import AttributeStudent, Student
from labelwall.wall.labels.attributes import AttributeLabels
from labelwall.wall.labels.classes import ClassLabels
from labelwall.wall.labels.values import ValueLabels
from tests.experiment import tiny

CONFIG = StudentConfig(
    backbone="mlp", objective="supervised", augment="none", steps=40, batch_labelled=32
)


@pytest.mark.parametrize("planted", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("kind", [Student, AttributeStudent])
def test_a_planted_temperature_is_found(kind: type[Student], planted: float) -> None:
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(20_000, 3)) * 2
    noise = rng.gumbel(size=(2, *logits.shape))
    if kind is Student:  # the largest of logits with Gumbel noise has the softmax's law
        labels = (logits / planted + noise[0]).argmax(axis=1)
    else:
        labels = (logits / planted + noise[0] - noise[1] > 0).astype(np.int64)
        labels[:5000, 1] = -1
    best = most_likely(kind, torch.from_numpy(logits), torch.from_numpy(labels))
    assert best == pytest.approx(planted, rel=0.05)


def test_the_calibration_error_is_torchmetrics() -> None:
    rng = np.random.default_rng(5)
    outputs, truth = rng.normal(size=(500, 4)) * 2, rng.integers(0, 4, 500)
    space = ClassLabels.of(4)
    shares = space.probabilities(outputs, 1.3)
    bins = reliability(space.certainty(shares), space.predict(outputs) == truth)
    expected = multiclass_calibration_error(
        torch.from_numpy(shares), torch.from_numpy(truth), num_classes=4, n_bins=BINS
    )
    assert calibration_error(bins) == pytest.approx(float(expected), abs=1e-5)
    assert sum(count for count, _, _ in bins) == 500


def test_that_of_attributes_counts_each_answer() -> None:
    rng = np.random.default_rng(6)
    outputs, truth = rng.normal(size=(300, 2)) * 2, rng.integers(0, 2, (300, 2))
    space = AttributeLabels.of(2)
    certainty = space.certainty(space.probabilities(outputs))
    right = space.predict(outputs) == truth
    expected = binary_calibration_error(
        torch.from_numpy(certainty).flatten(), torch.from_numpy(right).flatten(), n_bins=BINS
    )
    error = calibration_error(reliability(certainty, right))
    assert error == pytest.approx(float(expected), abs=1e-5)


def test_a_certainty_of_one_has_a_bin_and_no_answers_have_no_error() -> None:
    assert reliability(np.array([1.0, 0.0]), np.array([True, False]))[-1] == [1, 1.0, 1.0]
    assert calibration_error([]) is None


def chosen(labels: np.ndarray, config: StudentConfig = CONFIG) -> float:
    x, _ = tiny.rows(len(labels), 5)
    return temperature(config, Pool(x, ClassLabels.of(tiny.CLASSES)), labels, seed=2)


def test_a_student_that_learns_noise_becomes_less_sure() -> None:
    """Labels without meaning: what the second student did not see, it gets wrong."""
    _, truth = tiny.rows(300, 5)
    guesses = np.random.default_rng(0).permutation(truth)
    long = replace(CONFIG, steps=120, learning_rate=1e-2)
    sure, unsure = (chosen(labels, long) for labels in (truth, guesses))
    assert unsure > 2 * sure


@pytest.mark.parametrize("why", ["few labels", "not wanted", "values"])
def test_without_enough_to_choose_by_it_is_one(why: str) -> None:
    x, truth = tiny.rows(5 * FEWEST + 30, 5)
    pool, labels, config = Pool(x, ClassLabels.of(tiny.CLASSES)), truth.copy(), CONFIG
    if why == "few labels":
        labels[4 * FEWEST :] = -1
    if why == "not wanted":
        config = replace(CONFIG, calibration_folds=0)
    if why == "values":
        pool = Pool(x, ValueLabels(0.0, 1.0))
    assert temperature(config, pool, labels, seed=2) == 1.0
    assert temperature(CONFIG, Pool(x, ClassLabels.of(tiny.CLASSES)), truth, seed=2) != 1.0
