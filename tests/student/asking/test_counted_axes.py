"""Axes that follow from a first count of the records."""

from dataclasses import replace

import numpy as np
import pytest

from labelwall.student.asking.counted_axes import axes_by_count
from labelwall.teacher.mechanisms.sums import PrivateLinear
from labelwall.wall.matrices import COUNT, Matrix, NoisyCounts
from labelwall.wall.messages import ExtractorSpec
from tests.experiment import tiny
from tests.student.asking.rounds import RECEIPT, planned


@pytest.mark.parametrize(
    ("records", "noise", "axes"),
    [
        (1_000, 20.0, None),  # as the guess says
        (1_900, 20.0, None),  # not twice as many
        (200, 20.0, 11),  # 0.75 times a class's records in deviations of one step's noise
        (100_000, 20.0, 192),  # three quarters of the public rows
        (200, 500.0, None),  # hidden by the noise
        (0, 20.0, None),  # two a class are hardly more than there are
    ],
)
def test_axes_follow_from_the_count_of_a_first_sum(records, noise, axes) -> None:
    sent = []

    def count(matrix: Matrix) -> NoisyCounts:
        sent.append(matrix.entries)
        sums = np.zeros((1, 6 * tiny.CLASSES + 1), dtype=np.int64)
        sums[0, -1] = records * COUNT
        return NoisyCounts(sums, RECEIPT)

    form = PrivateLinear(steps=20, noise_multiplier=noise, axes=5).query_form
    spec = ExtractorSpec("raw", (500,), tiny.CLASSES, center=(0.0,) * 500, axes=bytes(2 * 500 * 5))
    plain = np.zeros((256, 500))
    assert axes_by_count(count, planned(form), spec, 1_000, plain) == axes
    assert not np.any(sent)
    few = replace(form, steps=9)
    assert axes_by_count(count, planned(few), spec, 1_000, plain) is None  # too few to spare one
    assert len(sent) == 1
