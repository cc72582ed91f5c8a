"""Histograms and sums by public matrices: noise on every entry, one charge a matrix, a cap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.sums import PrivateLinear, ReverseKnn
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput
from labelwall.wall.matrices import COUNT, SENSITIVITY, Cells, Matrix, Weights
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.make import LEDGER, ZeroNoise, plan_of, teach
from tests.teacher.shards import tiny

DIMENSIONS, CLASSES = 4, 3
HISTOGRAM, SUM = ReverseKnn(centroids=5, neighbours=2, sigma=3.0), PrivateLinear(sigma=2.0)
WIDTH = (DIMENSIONS + 1) * CLASSES + 1

both = pytest.mark.parametrize("mechanism", [HISTOGRAM, SUM], ids=lambda m: m.kind)


def teacher(folder: Path, mechanism: Mechanism, entropy: Entropy | None = None) -> Teacher:
    """Of 36 records with finite features, for two matrices."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, DIMENSIONS)).astype(np.float32)
    x[:4] = np.nan
    records = Records(x, rng.integers(0, CLASSES, 40), rng.permutation(40))
    spec = ExtractorSpec("raw", (DIMENSIONS,), CLASSES)
    return teach(folder, plan_of(mechanism, 2), records, spec, entropy)


def matrix(mechanism: Mechanism, seed: int) -> Matrix:
    asked = tiny.matrix(mechanism, DIMENSIONS, CLASSES, seed)
    assert asked is not None
    return asked


@pytest.mark.parametrize(
    ("mechanism", "scale", "width", "total"),
    [(HISTOGRAM, 3.0, 5 * CLASSES, 36 * 2), (SUM, 2.0 * SENSITIVITY, WIDTH, 36 * COUNT)],
    ids=["reverse_knn", "private_linear"],
)
def test_every_entry_gets_noise_and_records_that_are_not_finite_add_nothing(
    tmp_path: Path, mechanism: Mechanism, scale: float, width: int, total: int
) -> None:
    """``total``: votes of all records, or what counts them in a sum's last entry."""
    tape = ZeroNoise()
    counts = teacher(tmp_path, mechanism, tape).count(matrix(mechanism, 1)).counts
    assert counts is not None
    assert counts.size == width
    assert (counts.sum() if mechanism == HISTOGRAM else counts[0, -1]) == total
    assert tape.drawn == [("gaussian", scale, mechanism.stages[0], 1, width)]


@both
def test_one_charge_a_matrix_and_none_past_the_cap(tmp_path: Path, mechanism: Mechanism) -> None:
    (stage,) = mechanism.stages
    tape = ZeroNoise()
    answering = teacher(tmp_path, mechanism, tape)
    first = answering.count(matrix(mechanism, 1))
    assert first.receipt.charged == {stage: 1}
    again = teacher(tmp_path, mechanism, tape).count(matrix(mechanism, 1))  # also after a restart
    assert np.array_equal(first.counts, again.counts)
    receipt = again.receipt
    assert (receipt.charged, receipt.served, receipt.left) == ({stage: 0}, 1, {stage: 1})
    assert answering.count(matrix(mechanism, 2)).receipt.left == {stage: 0}
    for _ in range(2):
        refused = answering.count(matrix(mechanism, 3))
        assert refused.counts is None
        assert refused.receipt.charged == {stage: 0}
    assert len(tape.drawn) == 2
    assert answering.count(matrix(mechanism, 1)).counts is not None


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
def test_what_does_not_fit_is_refused_before_anything_is_charged(
    tmp_path: Path, mechanism: Mechanism, _name: str, asked: Matrix | Queries
) -> None:
    answering = teacher(tmp_path, mechanism, ZeroNoise())
    with pytest.raises(InvalidInput):
        answering.answer(asked) if isinstance(asked, Queries) else answering.count(asked)
    assert Ledger(tmp_path / LEDGER).state.spent == {}
