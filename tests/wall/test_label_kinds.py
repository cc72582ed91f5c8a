"""Values: the lattice between declared bounds, and errors by their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelwall.wall.errors import InvalidInput
from labelwall.wall.label_kinds import CELLS, STEPS, ValueLabels, errors, format_errors

FLOATS = st.floats(-1e6, 1e6)


@given(
    FLOATS,
    st.floats(1e-3, 1e6),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=8),
)
def test_a_label_is_the_nearest_step_of_the_clipped_value(
    low: float, width: float, values: list[float]
) -> None:
    space = ValueLabels(low, low + width)
    labels = space.steps(np.array(values, dtype=np.float64))
    back = space.decode(labels)
    for value, label, found in zip(values, labels.tolist(), back.tolist(), strict=True):
        if not np.isfinite(value):
            assert label == -1
            assert np.isnan(found)
            continue
        assert 0 <= label <= STEPS
        clipped = min(max(value, space.low), space.high)
        assert abs(found - clipped) <= (space.high - space.low) / STEPS * 0.5 * (
            1 + 1e-6
        ) + 1e-9 * (abs(low) + width)


def test_what_is_outside_the_bounds_is_at_the_edge() -> None:
    labels = ValueLabels(-1.0, 2.0).steps(np.array([-7.0, -1.0, 0.5, 2.0, 9.0]))
    assert labels.tolist() == [0, 0, STEPS // 2, STEPS, STEPS]
    counts = ValueLabels(-10, 30).confusion(
        np.array([-99.0, 30.0, 10.0]), np.array([-10.0, 99.0, 10.0])
    )
    assert counts.shape == (CELLS, CELLS)
    assert counts[0, 0] == counts[-1, -1] == counts[CELLS // 2, CELLS // 2] == 1


@pytest.mark.parametrize(
    "bounds", [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (np.nan, 1.0), (-1e308, 1e308)]
)
def test_bounds_are_finite_and_ascend(bounds: tuple[float, float]) -> None:
    with pytest.raises(InvalidInput, match=r"data\.bounds"):
        ValueLabels(*bounds)


def test_errors_are_their_definitions() -> None:
    truth, predicted = np.array([1.0, 2.0, 6.0]), np.array([2.0, 2.0, 4.0])
    scores = errors(predicted, truth)
    assert scores is not None
    assert scores["r2"] == pytest.approx(1 - 5 / 14)
    assert errors(predicted[:1], truth[:1]) is None
    assert format_errors(scores) == "RMSE 1.291, R2 0.643"
    assert format_errors(None) == "unknown"


def test_a_true_value_stands_beside_the_released_one() -> None:
    space = ValueLabels(0.0, 4096.0)
    label = np.array(7)
    assert space.example(label, np.float64(9.5)) == ("7 (true 9.5)", None)
    assert space.example(label, None) == ("7", None)
    assert space.example(np.array(-1), np.float64(9.5)) == (None, "9.5")
