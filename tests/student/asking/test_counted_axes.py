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
    ("records", "noise", "kept", "axes"),
    [
        (1_000, 20.0, 5, None),  # as the guess says
        (1_900, 20.0, 5, None),  # not twice as many
        (200, 20.0, 40, 11),  # 0.75 times a class's records in deviations of one step's noise
        (200, 20.0, 5, None),  # fewer records than guessed never carry more axes
        (100_000, 20.0, 5, 192),  # three quarters of the public rows
        (200, 500.0, 40, None),  # hidden by the noise
        (0, 20.0, 5, None),  # two a class are hardly more than there are
    ],
)
@pytest.mark.parametrize(("features", "most"), [("raw", 192), ("fourier", 64), ("bins", 64)])
def test_axes_follow_from_the_count_of_a_first_sum(
    records, noise, kept, axes, features, most
) -> None:
    sent = []

    def count(matrix: Matrix) -> NoisyCounts:
        sent.append(matrix.entries)
        sums = np.zeros((1, (kept + 1) * tiny.CLASSES + 1), dtype=np.int64)
        sums[0, -1] = records * COUNT
        return NoisyCounts(sums, RECEIPT)

    form = PrivateLinear(steps=20, noise_multiplier=noise, axes=kept).query_form
    on_axes = {"center": (0.0,) * 500, "axes": bytes(2 * 500 * kept)}
    spec = ExtractorSpec(features, (500,), tiny.CLASSES, **on_axes)
    plain = np.zeros((256, 500))
    found = axes_by_count(count, planned(form), spec, 1_000, plain)
    assert found == (axes and min(axes, most))
    assert not np.any(sent)
    few = replace(form, steps=9)
    assert axes_by_count(count, planned(few), spec, 1_000, plain) is None  # too few to spare one
    assert len(sent) == 1
