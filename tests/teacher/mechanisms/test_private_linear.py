"""private_linear: one charge a step, what a caller may ask, the price, and fields out of range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.base import Priced
from labelwall.teacher.mechanisms.calibration import calibrate
from labelwall.teacher.mechanisms.private_linear import (
    SUM,
    PrivateLinear,
    PrivateLinearAttributes,
    PrivateLinearValue,
)
from labelwall.teacher.mechanisms.registry import from_slot
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput, LedgerMismatch, TeacherFailed
from labelwall.wall.matrices import (
    CLIP,
    COUNT,
    MAX_CLASSES,
    MAX_DIMENSIONS,
    MAX_WEIGHT,
    SENSITIVITY,
    Cells,
    Weights,
    bias,
    residual_unit,
)
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.make import teach

DIMENSIONS, CLASSES = 4, 3
WIDTH = (DIMENSIONS + 1) * CLASSES + 1
SPEC = ExtractorSpec("raw", (DIMENSIONS,), CLASSES)
MECHANISM = PrivateLinear(sigma=2.0)


class ZeroNoise:
    """No noise; notes what was drawn. Unsafe, so its ledger certifies nothing."""

    unsafe = True

    def __init__(self) -> None:
        self.drawn: list[tuple[float, str, int, int]] = []

    def inclusion(
        self, probability: float, keys: Sequence[str], release: str, ids: np.ndarray
    ) -> np.ndarray:
        raise AssertionError("private_linear samples nobody")

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        self.drawn.append((sigma, release, len(keys), width))
        return np.zeros((len(keys), width), dtype=np.int64)


def plan(mechanism: PrivateLinear, steps: int, delta: float = 1e-5) -> Plan:
    return Plan(1e9, delta, (Slot(mechanism.fields(), mechanism.releases(steps, steps)),))


def teacher(folder: Path, entropy: Entropy, *, steps: int = 2, n: int = 40) -> Teacher:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, DIMENSIONS)).astype(np.float32)
    x[: n // 10] = np.nan  # dropped before
    records = Records(x, rng.integers(0, CLASSES, n), rng.permutation(n))
    return teach(folder, plan(MECHANISM, steps), records, SPEC, entropy)


def weights(seed: int) -> np.ndarray:
    shape = DIMENSIONS + 1, CLASSES
    return np.random.default_rng(seed).integers(-500, 501, shape).astype(np.int16)


def test_every_entry_gets_noise_and_records_that_are_not_finite_add_nothing(tmp_path: Path) -> None:
    silent = ZeroNoise()
    found = teacher(tmp_path, silent).count(Weights(weights(1))).counts
    assert found is not None
    assert found.shape == (1, WIDTH)
    assert found[0, -1] == 36 * COUNT
    assert silent.drawn == [(2.0 * SENSITIVITY, SUM, 1, WIDTH)]


def test_at_weights_of_zero_the_sum_is_the_mean_of_each_class(tmp_path: Path) -> None:
    """And its residuals, of length sqrt(2/3), are in units that use the whole limit."""
    made = teacher(tmp_path, ZeroNoise())
    zero = np.zeros((DIMENSIONS + 1, CLASSES), dtype=np.int16)
    found = made.count(Weights(zero)).counts
    assert found is not None
    features, labels = made._index.features, made._prepared.labels
    length = 63.0
    unit = residual_unit(zero, 1.0, length)
    inputs = np.pad(features.astype(np.int64), ((0, 0), (0, 1)), constant_values=bias(length))
    share = (2 * unit + CLASSES) // (2 * CLASSES)
    expected = inputs.T @ (share - unit * np.eye(CLASSES, dtype=np.int64)[labels])
    gap = np.abs(found[0, :-1].reshape(-1, CLASSES) - expected).max()
    assert gap <= 0.05 * CLIP  # rounded features may be a little longer than 63: shrunk
    assert unit * math.sqrt(2 / 3) * math.hypot(length, bias(length)) == pytest.approx(CLIP, 1e-3)


def test_one_charge_a_step_and_the_same_sum_when_asked_again(tmp_path: Path) -> None:
    made = teacher(tmp_path, SystemEntropy())
    first = made.count(Weights(weights(1)))
    assert first.receipt.charged == {SUM: 1}
    again = teacher(tmp_path, SystemEntropy()).count(Weights(weights(1)))  # also after a restart
    assert np.array_equal(first.counts, again.counts)
    assert (again.receipt.charged, again.receipt.served) == ({SUM: 0}, 1)
    assert made.count(Weights(weights(2))).receipt.left == {SUM: 0}
    refused = made.count(Weights(weights(3)))
    assert refused.counts is None
    assert refused.receipt.charged == {SUM: 0}


def test_no_records_get_noise_like_all_others(tmp_path: Path) -> None:
    found = teacher(tmp_path, SystemEntropy(), n=0).count(Weights(weights(1))).counts
    assert found is not None
    assert (found != 0).all()  # one of 16 is 0 with probability 3e-6


FOREIGN: dict[str, Weights | Cells | Queries] = {
    "transposed": Weights(weights(1).T.copy()),
    "a value's": Weights(weights(1)[:, :1].copy()),
    "no bias": Weights(weights(1)[:-1]),
    "slot": Weights(weights(1), slot=1),
    "cells": Cells(np.zeros((5, DIMENSIONS), dtype=np.int8)),
    "queries": Queries(np.zeros((2, DIMENSIONS), dtype=np.float32)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_does_not_fit_is_refused_before_anything_is_charged(tmp_path: Path, name: str) -> None:
    made, asked = teacher(tmp_path, ZeroNoise()), FOREIGN[name]
    with pytest.raises(InvalidInput):
        made.answer(asked) if isinstance(asked, Queries) else made.count(asked)
    assert Ledger(tmp_path / "ledger.sqlite").state.spent == {}


REFUSED = {
    "floats": weights(1).astype(np.float32),
    "NaN": np.full((3, 2), np.nan),
    "wider integers": weights(1).astype(np.int32),
    "one axis": weights(1)[0],
    "no features": weights(1)[:1],
    "no output": weights(1)[:, :0],
    "too small": np.full((3, 2), -MAX_WEIGHT - 1, dtype=np.int16),
    "too many features": np.zeros((MAX_DIMENSIONS + 2, 2), dtype=np.int16),
    "too many classes": np.zeros((2, MAX_CLASSES + 1), dtype=np.int16),
    "too many entries": np.zeros((1025, 1024), dtype=np.int16),
}


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_weights_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"weights\.weights"):
        Weights(REFUSED[name])
    with pytest.raises(InvalidInput, match=r"weights\.slot"):
        Weights(weights(1), slot=-1)


def test_an_identity_tells_entries_shape_kind_extractor_and_mechanism_apart() -> None:
    plain = Weights(weights(1))
    same = Weights(np.asfortranarray(weights(1).astype(">i2").astype(np.int16)), slot=1)
    assert plain.identity("e", {"s": 1}) == same.identity("e", {"s": 1})
    others = [
        Weights(weights(1).reshape(3, 5)).identity("e", {"s": 1}),
        Weights(weights(2)).identity("e", {"s": 1}),
        plain.identity("f", {"s": 1}),
        plain.identity("e", {"s": 2}),
        Cells(np.zeros((5, 3), dtype=np.int8)).identity("e", {"s": 1}),
        Weights(np.zeros((5, 3), dtype=np.int16)).identity("e", {"s": 1}),
    ]
    assert len({*others, plain.identity("e", {"s": 1})}) == 7


def test_a_failure_after_the_charge_is_the_constant_and_stays_charged(tmp_path: Path) -> None:
    class Broken(ZeroNoise):
        def discrete_gaussian(self, *args: object) -> np.ndarray:
            raise MemoryError("how much a private row needs")

    with pytest.raises(TeacherFailed) as caught:
        teacher(tmp_path, Broken()).count(Weights(weights(1)))
    assert "private row" not in str(caught.value)
    assert Ledger(tmp_path / "ledger.sqlite").state.spent == {(0, SUM): 1}


@pytest.mark.parametrize(("epsilon", "steps"), [(1.0, 1), (1.0, 4), (0.1, 2), (8.0, 3)])
def test_sigma_is_solved_from_the_budget(epsilon: float, steps: int) -> None:
    (made,) = calibrate([Priced(PrivateLinear(), steps, steps)], epsilon, 1e-5)
    cost = certified_epsilon(plan(made, steps))
    assert 0.99 * epsilon < cost <= epsilon
    assert calibrate([Priced(made, steps, steps)], epsilon, 1e-5) == [made]


def test_the_price_depends_on_the_noise_multiplier_alone() -> None:
    """As four steps of one vote with the same multiplier in reverse kNN."""
    (release,) = PrivateLinear(sigma=3.0, clip=0.5, margin=0.2).releases(4, 4)
    ratio = release.parameters["sigma"] / release.parameters["sensitivity"]
    assert ratio == pytest.approx(3.0, rel=1e-15)
    assert release.cap == 4
    assert math.isqrt(CLIP**2 + COUNT**2) < SENSITIVITY
    assert SENSITIVITY**2 >= CLIP**2 + COUNT**2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("steps", value) for value in (0, 101)),
        *(("sigma", value) for value in (0.0, -1.0, math.nan, math.inf, 1e3)),
        *(("clip", value) for value in (0.0, 2.0, math.nan)),
        *(("margin", value) for value in (-0.1, 1.0, math.nan)),
    ],
)
def test_bad_fields_are_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=rf"mechanism\.{field}"):
        PrivateLinear(**{field: value})


def test_a_price_without_noise_and_a_ledger_that_accounts_for_less_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"mechanism\.sigma"):
        PrivateLinear().releases(1, 1)
    slot = plan(MECHANISM, 1).slots[0]
    assert from_slot(slot) == MECHANISM
    with pytest.raises(LedgerMismatch):
        from_slot(Slot({**slot.mechanism, "sigma": 1.0}, slot.releases))


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


def test_all_label_spaces_cost_the_same_and_refuse_a_clip_that_nothing_reaches() -> None:
    kinds = (PrivateLinear, PrivateLinearAttributes, PrivateLinearValue)
    prices = [made(sigma=3.0).releases(4, 4) for made in kinds]
    assert prices == prices[:1] * 3
    for made, most in zip(kinds, (1.5, 1.0, 1.0), strict=True):
        with pytest.raises(InvalidInput, match=r"mechanism\.clip"):
            made(clip=most + 0.1)
    with pytest.raises(InvalidInput, match=r"mechanism\.margin"):
        PrivateLinearAttributes(margin=1.0)
