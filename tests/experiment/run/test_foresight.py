"""Rounds that can not be worth their price are foreseen; others are not talked down."""

from __future__ import annotations

import numpy as np
import pytest

from labelwall.experiment.run.foresight import foresee, plurality
from labelwall.teacher.mechanisms.sums import ReverseKnn
from labelwall.teacher.mechanisms.votes import PrivateKnn


def test_the_plurality_of_neighbours() -> None:
    features = np.array([[0, 1], [0, 2], [0, 3], [60, 1], [60, 2], [60, 3]], dtype=np.int8)
    labels = np.array([0, 0, 0, 1, 1, 1])
    assert plurality(features, labels, 2 / 5) == 1.0
    assert plurality(features, labels, 1.0) == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("mechanism", "records", "share", "mentioned"),
    [
        # MNIST's settings where neighbours seldom agree: 900 of 6,000 records, 30% of one class
        (PrivateKnn(sigma_screen=75.0), 6000, 0.3, "mechanism.threshold to 90 or less"),
        (PrivateKnn(sigma_screen=75.0), 300, 1.0, "45 of 300 records"),
        (PrivateKnn(sigma_screen=75.0), 6000, 0.9, None),
        (ReverseKnn(centroids=150, sigma=44.0), 3000, 1.0, "mechanism.centroids to 22 or fewer"),
        (ReverseKnn(centroids=22, sigma=44.0), 3000, 1.0, None),
    ],
)
def test_a_useless_round_is_foreseen(mechanism, records, share, mentioned) -> None:
    reason = foresee(mechanism, records, lambda part: share)
    assert reason is None if mentioned is None else mentioned in str(reason)
