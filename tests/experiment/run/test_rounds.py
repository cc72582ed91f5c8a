"""Rounds that can not be worth their price are foreseen; others are not talked down."""

import pytest

from labelwall.experiment.run.entry import foresee
from labelwall.teacher.mechanisms.sums import ReverseKnn
from labelwall.teacher.mechanisms.votes import PrivateKnn


@pytest.mark.parametrize(
    ("mechanism", "records", "mentioned"),
    [
        (PrivateKnn(sigma_screen=75.0), 300, "mechanism.threshold to 45 or less"),
        (PrivateKnn(sigma_screen=75.0), 6000, None),
        (ReverseKnn(centroids=150, sigma=44.0), 3000, "mechanism.centroids to 22 or fewer"),
        (ReverseKnn(centroids=22, sigma=44.0), 3000, None),
    ],
)
def test_a_useless_round_is_foreseen(mechanism, records, mentioned) -> None:
    reason = foresee(mechanism, records)
    assert reason is None if mentioned is None else mentioned in str(reason)
