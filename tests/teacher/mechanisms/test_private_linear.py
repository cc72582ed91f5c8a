"""private_linear: residuals and units that use the whole limit, and the price."""

from __future__ import annotations

import math

import numpy as np
import pytest

from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.matrices import (
    CLIP,
    COUNT,
    bias,
    residual_unit,
)

DIMENSIONS, CLASSES = 4, 3


def weights(seed: int) -> np.ndarray:
    shape = DIMENSIONS + 1, CLASSES
    return np.random.default_rng(seed).integers(-500, 501, shape).astype(np.int16)


def test_at_weights_of_zero_the_sum_is_the_mean_of_each_class() -> None:
    """And its residuals, of length sqrt(2/3), are in units that use the whole limit."""
    rng, length = np.random.default_rng(0), 63.0
    x, labels = rng.normal(size=(40, DIMENSIONS)), rng.integers(0, CLASSES, 40)
    features = np.rint(63 * x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.int8)
    zero = np.zeros((1, DIMENSIONS + 1, CLASSES), dtype=np.int16)
    index = ExactIndex(features, rng.permutation(40))
    sums = Voters(index, labels, CLASSES, zero, length).gradients(1.0)[0]
    unit = residual_unit(zero[0], 1.0, length)
    inputs = np.pad(features.astype(np.int64), ((0, 0), (0, 1)), constant_values=bias(length))
    share = (2 * unit + CLASSES) // (2 * CLASSES)
    expected = inputs.T @ (share - unit * np.eye(CLASSES, dtype=np.int64)[labels])
    gap = np.abs(sums[:-1].reshape(-1, CLASSES) - expected).max()
    assert gap <= 0.05 * CLIP  # rounded features may be a little longer than 63: shrunk
    assert unit * math.sqrt(2 / 3) * math.hypot(length, bias(length)) == pytest.approx(CLIP, 1e-3)
    assert sums[-1] == 40 * COUNT


@pytest.mark.parametrize("length", [0.5, 63.0, 240.0, 4000.0])
def test_units_and_bias_are_in_range_for_any_extractor(length: float) -> None:
    for clip in (0.01, 1.0, 1.5):
        for w in (np.zeros((3, 2), np.int16), weights(1)):
            assert 1 <= residual_unit(w, clip, length) <= 2**18
    assert 1 <= bias(length) <= 63


@pytest.mark.parametrize(
    ("labels", "clip", "first", "later"),
    [
        ("class", 1.0, math.sqrt(2 / 3), 1.0),  # three outputs
        ("class", 0.5, 0.5, 0.5),
        ("attributes", 0.5, math.sqrt(3) / 2, math.sqrt(3) / 2),
        ("attributes", 1.0, math.sqrt(3) / 2, math.sqrt(3)),
        ("attributes", 0.25, math.sqrt(3) / 4, math.sqrt(3) / 4),
        ("value", 0.25, 1.0, 0.25),
    ],
)
def test_the_longest_residual_of_a_label_space_reaches_the_limit(
    labels: str, clip: float, first: float, later: float
) -> None:
    for w, longest in ((np.zeros((5, 3), np.int16), first), (weights(1), later)):
        reached = residual_unit(w, clip, 63.0, labels) * longest * math.hypot(63, bias(63.0))
        assert reached <= CLIP
        assert reached == pytest.approx(CLIP, rel=1e-3)
