"""Axes that follow from a first count of the records."""

from dataclasses import replace

import numpy as np
import pytest

from labelwall.student.asking.counted_axes import plan_by_count
from labelwall.student.public_settings import CountedPlan, PublicSide
from labelwall.teacher.mechanisms.sums import PrivateLinear, PrivateLinearValue
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.matrices import COUNT, Matrix, NoisyCounts
from labelwall.wall.messages import ExtractorSpec
from tests.experiment import tiny
from tests.student.asking.rounds import RECEIPT, planned


class Counted:
    """A first sum of so many records, of ``width`` numbers, and what was sent for it."""

    def __init__(self, records: int, width: int) -> None:
        self._sums, self.sent = np.zeros((1, width + 1), dtype=np.int64), list[np.ndarray]()
        self._sums[0, -1] = records * COUNT

    def __call__(self, matrix: Matrix) -> NoisyCounts:
        self.sent.append(matrix.entries)
        return NoisyCounts(self._sums, RECEIPT)


def settings_of(features: str) -> PublicSide:
    return PublicSide(data=DataConfig("arrays", path="-"), features=features)


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
    count = Counted(records, (kept + 1) * tiny.CLASSES)
    form = PrivateLinear(steps=20, noise_multiplier=noise, axes=kept).query_form
    on_axes = {"center": (0.0,) * 500, "axes": bytes(2 * 500 * kept)}
    spec = ExtractorSpec(features, (500,), tiny.CLASSES, **on_axes)
    plain, settings = np.zeros((256, 500)), settings_of(features)  # whose guess is 1,000
    found = plan_by_count(count, planned(form), spec, plain, settings)
    assert (found and found.axes) == (axes and min(axes, most))
    assert found is None or found.features == features
    assert not np.any(count.sent)
    few = replace(form, steps=9)
    assert plan_by_count(count, planned(few), spec, plain, settings) is None  # too few to spare one
    assert len(count.sent) == 1


@pytest.mark.parametrize(
    ("records", "noise", "expected"),
    [
        (1_900, 20.0, None),  # not twice as many
        (3_000, 20.0, ("bins", 20)),
        (7_000, 20.0, ("bins", 20)),
        (9_000, 20.0, ("fourier", 60)),  # nearer in the logarithm
        (10**6, 20.0, ("fourier", 60)),
        (200, 20.0, ("raw", 11)),  # nothing was rehearsed for fewer: other axes
        (3_000, 900.0, None),  # hidden by the noise
    ],
)
def test_plans_that_were_rehearsed_for_more_records_are_taken(records, noise, expected) -> None:
    count = Counted(records, 41 * tiny.CLASSES)
    form = PrivateLinear(steps=20, noise_multiplier=noise, axes=40).query_form
    spec = ExtractorSpec("raw", (500,), tiny.CLASSES, center=(0.0,) * 500, axes=bytes(40_000))
    more = [("bins", 20, 4_000), ("fourier", 60, 16_000)]
    plans = [CountedPlan(features=f, axes=axes, records=n) for f, axes, n in more]
    settings = replace(settings_of("raw"), by_count=plans)
    found = plan_by_count(count, planned(form), spec, np.zeros((256, 500)), settings)
    assert (found and (found.features, found.axes)) == expected
    as_asked = replace(settings, by_count=[CountedPlan(features="raw", axes=40, records=4_000)])
    if expected == ("bins", 20):  # no sum is spared for what the round asks with
        assert plan_by_count(count, planned(form), spec, np.zeros((256, 500)), as_asked) is None


@pytest.mark.parametrize(
    ("records", "steps", "expected"),
    [
        (3_000, 5, ("fourier", 16)),
        (3_000, 3, None),  # too few steps to spare one
        (1_900, 5, None),  # not twice as many
        (200, 5, None),  # no rule says how many axes fewer records carry
    ],
)
def test_values_take_plans_that_were_rehearsed_for_more_records(records, steps, expected) -> None:
    count = Counted(records, 5)
    form = PrivateLinearValue(steps=steps, noise_multiplier=20.0, axes=4).query_form
    spec = ExtractorSpec("raw", (500,), 1, center=(0.0,) * 500, axes=bytes(4_000))
    plans = [CountedPlan(features="fourier", axes=16, records=4_000)]
    settings = replace(settings_of("raw"), by_count=plans)
    found = plan_by_count(count, planned(form), spec, np.zeros((256, 500)), settings)
    assert (found and (found.features, found.axes)) == expected
