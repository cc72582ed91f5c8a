"""The calibration error is torchmetrics', balanced accuracy scikit-learn's."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score
from torchmetrics.functional.classification import (
    binary_calibration_error,
    multiclass_calibration_error,
)

from labelwall.experiment.run import metrics
from labelwall.wall.guarantee import POOLED
from labelwall.wall.label_kinds import AttributeLabels, ClassLabels


@pytest.mark.parametrize("space", [ClassLabels.of(4), AttributeLabels.of(2)])
def test_the_calibration_error_is_torchmetrics(space: ClassLabels | AttributeLabels) -> None:
    """That of attributes counts each answer."""
    rng, count = np.random.default_rng(5), space.outputs
    outputs, classes = rng.normal(size=(500, count)) * 2, space.kind == "class"
    truth = rng.integers(0, 4, 500) if classes else rng.integers(0, 2, (500, count))
    shares = space.probabilities(outputs / 1.3)
    certainty, right = space.certainty(shares), space.predict(outputs) == truth
    oracle = torch.from_numpy
    if classes:
        asked = oracle(shares), oracle(truth)
        expected = multiclass_calibration_error(*asked, num_classes=4, n_bins=metrics.BINS)
    else:
        asked = oracle(certainty).flatten(), oracle(right).flatten()
        expected = binary_calibration_error(*asked, n_bins=metrics.BINS)
    assert metrics.calibration_error(certainty, right) == pytest.approx(float(expected), abs=1e-5)


def test_a_certainty_of_one_has_a_bin_and_no_answers_have_no_error() -> None:
    assert metrics.calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == 0.0
    assert metrics.calibration_error(np.zeros(0), np.zeros(0)) is None


@pytest.mark.parametrize(
    ("right", "rows", "named"),
    [([90, 80], [100, 100], False), ([90, 1], [100, 10], True), ([95, 40], [100, 100], True)],
)
def test_a_class_that_accuracy_hides_is_named(
    right: list[int], rows: list[int], named: bool
) -> None:
    confusion = [[right[0], rows[0] - right[0], 0], [rows[1] - right[1], right[1], 0], [0, 0, 0]]
    truth = np.repeat([0, 1], rows)
    predicted = np.repeat([0, 1, 0, 1], [*confusion[0][:2], *confusion[1][:2]])
    scores = metrics.by_class({"confusion": confusion})
    assert scores["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, predicted))
    assert scores["worst_class"] == min(r / n for r, n in zip(right, rows, strict=True))
    accuracy = {"test_accuracy": sum(right) / sum(rows)}
    assert bool(metrics.uneven(accuracy | scores)) == named
    guarantee = {"epsilon": 1.0, "delta": 1e-5, "adversary": POOLED}
    assert ("worst class" in metrics.result_line(accuracy | scores | guarantee, Path())) == named


def test_values_have_no_classes() -> None:
    assert metrics.by_class({"confusion": [[1, 0], [0, 1]], "student_errors": {}}) == {}
    assert metrics.by_class({"confusion": [[[1, 0], [0, 1]]]}) == {}
    assert metrics.uneven({"test_accuracy": 0.5}) == ""
