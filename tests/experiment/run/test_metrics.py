"""The calibration error is torchmetrics'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import (
    binary_calibration_error,
    multiclass_calibration_error,
)

from labelwall.experiment.run.metrics import BINS, calibration_error, reliability
from labelwall.wall.labels.attributes import AttributeLabels
from labelwall.wall.labels.classes import ClassLabels


@pytest.mark.parametrize("space", [ClassLabels.of(4), AttributeLabels.of(2)])
def test_the_calibration_error_is_torchmetrics(space: ClassLabels | AttributeLabels) -> None:
    """That of attributes counts each answer."""
    rng, count = np.random.default_rng(5), space.outputs
    outputs, classes = rng.normal(size=(500, count)) * 2, space.kind == "class"
    truth = rng.integers(0, 4, 500) if classes else rng.integers(0, 2, (500, count))
    shares = space.probabilities(outputs, 1.3)
    certainty, right = space.certainty(shares), space.predict(outputs) == truth
    bins = reliability(certainty, right)
    oracle = torch.from_numpy
    expected = (
        multiclass_calibration_error(oracle(shares), oracle(truth), num_classes=4, n_bins=BINS)
        if classes
        else binary_calibration_error(
            oracle(certainty).flatten(), oracle(right).flatten(), n_bins=BINS
        )
    )
    assert calibration_error(bins) == pytest.approx(float(expected), abs=1e-5)
    assert sum(count for count, _, _ in bins) == right.size


def test_a_certainty_of_one_has_a_bin_and_no_answers_have_no_error() -> None:
    assert reliability(np.array([1.0, 0.0]), np.array([True, False]))[-1] == [1, 1.0, 1.0]
    assert calibration_error([]) is None
