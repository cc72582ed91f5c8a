"""Noisy sums: what a record adds, by brute force; prices by exact laws; one charge a matrix."""

import math

import numpy as np
import pytest

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.sums import PrivateLinear, ReverseKnn
from labelwall.teacher.records.private_records import Records
from labelwall.wall.errors import InvalidInput
from labelwall.wall.matrices import (
    CLIP,
    COUNT,
    SENSITIVITY,
    Cells,
    Matrix,
    Weights,
    bias,
    residual_unit,
)
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.make import LEDGER, ZeroNoise, plan_of, teach
from tests.teacher.shards import tiny

DIMENSIONS, CLASSES = 4, 3
HISTOGRAM, SUM = (
    ReverseKnn(centroids=5, neighbours=2, sigma=3.0),
    PrivateLinear(noise_multiplier=2.0),
)
WIDTH = (DIMENSIONS + 1) * CLASSES + 1


def test_a_multiple_of_noise_is_within_the_fields_range() -> None:
    for mechanism in (HISTOGRAM, SUM):
        assert mechanism.noisier(2.0).noise == pytest.approx(2 * mechanism.noise)
        assert mechanism.noisier(1.0) == mechanism
    assert PrivateLinear(noise_multiplier=800.0).noisier(3.0).noise_multiplier == 900


def weights(seed):
    shape = DIMENSIONS + 1, CLASSES
    return np.random.default_rng(seed).integers(-500, 501, shape).astype(np.int16)


@pytest.mark.parametrize("length", [0.5, 63.0, 240.0, 4000.0])
def test_units_and_bias_are_in_range_for_any_extractor(length):
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
def test_the_longest_residual_of_a_label_space_reaches_the_limit(labels, clip, first, later):
    for w, longest in ((np.zeros((5, 3), np.int16), first), (weights(1), later)):
        reached = residual_unit(w, clip, 63.0, labels) * longest * math.hypot(63, bias(63.0))
        assert reached <= CLIP
        assert reached == pytest.approx(CLIP, rel=1e-3)


def teacher(folder, mechanism, entropy):
    """Of 36 records with finite features, for two matrices."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, DIMENSIONS)).astype(np.float32)
    x[:4] = np.nan
    records = Records(x, rng.integers(0, CLASSES, 40), rng.permutation(40))
    return teach(folder, plan_of(mechanism, 2), records, ExtractorSpec("raw", (4,), 3), entropy)


@pytest.mark.parametrize(
    ("mechanism", "scale", "width", "total"),
    [(HISTOGRAM, 3.0, 5 * CLASSES, 36 * 2), (SUM, 2.0 * SENSITIVITY, WIDTH, 36 * COUNT)],
    ids=["reverse_knn", "private_linear"],
)
def test_one_charge_a_matrix_and_none_past_the_cap(tmp_path, mechanism, scale, width, total):
    """``total``: votes of the finite records, or what counts them in a sum's last entry."""
    (stage,) = mechanism.stages
    first, second, third = (tiny.matrix(mechanism, DIMENSIONS, CLASSES, seed) for seed in (1, 2, 3))
    tape = ZeroNoise()
    answering = teacher(tmp_path, mechanism, tape)
    counts = answering.count(first).counts
    assert (counts.sum() if mechanism == HISTOGRAM else counts[0, -1]) == total
    assert tape.drawn == [("gaussian", scale, stage, 1, width)]
    assert answering.count(second).receipt.left == {stage: 0}
    refused = answering.count(third)
    assert (refused.counts, refused.receipt.charged) == (None, {stage: 0})
    assert len(tape.drawn) == 2
    assert np.array_equal(answering.count(first).counts, counts)


CENTERS = np.zeros((5, DIMENSIONS), dtype=np.int8)
WEIGHTS = np.zeros((DIMENSIONS + 1, CLASSES), dtype=np.int16)
ROWS = Queries(np.zeros((2, DIMENSIONS), dtype=np.float32))
FOREIGN: list[tuple[Mechanism, str, Matrix | Queries]] = [
    (HISTOGRAM, "another number", Cells(CENTERS[:4])),
    (HISTOGRAM, "other dimensions", Cells(CENTERS[:, :3])),
    (HISTOGRAM, "an unknown slot", Cells(CENTERS, slot=1)),
    (HISTOGRAM, "weights", Weights(WEIGHTS)),
    (HISTOGRAM, "rows", ROWS),
    (SUM, "transposed", Weights(WEIGHTS.T.copy())),
    (SUM, "a value's", Weights(WEIGHTS[:, :1].copy())),
    (SUM, "no bias", Weights(WEIGHTS[:-1])),
    (SUM, "an unknown slot", Weights(WEIGHTS, slot=1)),
    (SUM, "cells", Cells(CENTERS)),
    (SUM, "rows", ROWS),
]


@pytest.mark.parametrize(("mechanism", "_name", "asked"), FOREIGN, ids=lambda v: str(v)[:30])
def test_what_does_not_fit_is_refused_before_anything_is_charged(tmp_path, mechanism, _name, asked):
    answering = teacher(tmp_path, mechanism, ZeroNoise())
    with pytest.raises(InvalidInput):
        answering.answer(asked) if isinstance(asked, Queries) else answering.count(asked)
    assert Ledger(tmp_path / LEDGER).state.spent == {}
