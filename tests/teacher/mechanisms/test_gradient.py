"""Gradient sums against big integers, for inputs and weights as bad as a caller can choose them."""

import math
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from labelwall.teacher.mechanisms import gradient
from labelwall.teacher.mechanisms.gradient import ceil_sqrt, gradient_sums
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.matrices import (
    CLIP,
    COUNT,
    MAX_BIAS,
    MAX_CLASSES,
    MAX_DIMENSIONS,
    MAX_UNIT,
    MAX_WEIGHT,
    SENSITIVITY,
    max_unit,
)

extremes = st.sampled_from([-63, -1, 0, 1, 63]) | st.integers(-63, 63)
weight = st.sampled_from([-MAX_WEIGHT, -1, 0, 1, MAX_WEIGHT]) | st.integers(-MAX_WEIGHT, MAX_WEIGHT)
unit = st.sampled_from([1, 2, 1024, MAX_UNIT]) | st.integers(1, MAX_UNIT)


def softmax(logits, unit):
    """Shares of ``unit`` by rationals and decimals."""
    getcontext().prec = 50
    powers = []
    for logit in logits:
        # behind the largest logit, to the nearest 1/256, halves upwards
        steps = math.floor(Fraction(max(logits) - logit, 256) + Fraction(1, 2))
        exact = (Decimal(-steps) / 256).exp() if steps < 16 * 256 else Decimal(0)
        powers.append(math.floor(exact * 2**24))
    return [math.floor(Fraction(unit * p, sum(powers)) + Fraction(1, 2)) for p in powers]


def residuals(logits, label, unit, space):
    """Prediction minus truth in units, of any label space."""
    if space == "class":
        return [p - unit * (j == label) for j, p in enumerate(softmax(logits, unit))]
    if space == "attributes":
        shares = [softmax([0, logit], unit)[1] for logit in logits]
        return [p - unit * ((label >> j) % 2) for j, p in enumerate(shares)]
    predicted = math.floor(Fraction(unit * logits[0], 2**16) + Fraction(1, 2))
    value = math.floor(Fraction(2 * unit * label, 4096)) - unit
    return [max(-unit, min(unit, predicted)) - value]


def oracle(x, label, weights, unit, bias, space="class"):
    """One record's part by Python's integers, rationals and decimals, entry after entry."""
    inputs = [*x, bias]
    columns = range(len(weights[0]))
    logits = [sum(a * row[j] for a, row in zip(inputs, weights, strict=True)) for j in columns]
    found = residuals(logits, label, unit, space)
    square = sum(r * r for r in found) * sum(a * a for a in inputs)
    if square > CLIP**2:
        length = math.isqrt(square - 1) + 1
        found = [int(math.copysign(abs(r) * CLIP // length, r)) for r in found]
    return [r * a for a in inputs for r in found] + [COUNT]


def total(x, labels, weights, unit, bias, space="class"):
    """int64 [(d + 1) * c + 1] by the teacher's code."""
    index = ExactIndex(x, np.arange(len(x)))
    return gradient_sums(weights[np.newaxis], (unit,), bias, space, 1, index, labels)[0]


@st.composite
def problems(draw):
    space = draw(st.sampled_from(["class", "attributes", "value"]))
    n, d, c = draw(st.integers(0, 6)), draw(st.integers(1, 4)), draw(st.integers(2, 4))
    if space == "value":
        c = 1
    codes = {"class": c - 1, "attributes": 2**c - 1, "value": 4096}[space]
    x = draw(arrays(np.int8, (n, d), elements=extremes))
    labels = draw(arrays(np.int64, n, elements=st.integers(0, codes)))
    scale = draw(st.sampled_from([1, 50, 1000]))  # so that not all probabilities are 0 or 1
    weights = draw(arrays(np.int16, (d + 1, c), elements=weight)) // scale
    one = min(draw(unit), max_unit(space, c))
    return x, labels, weights.astype(np.int16), one, draw(st.integers(1, MAX_BIAS)), space


@settings(max_examples=150, deadline=None)
@given(problems())
def test_a_sum_is_that_of_big_integers(problem):
    x, labels, weights, *rest = problem
    parts = [
        oracle(row, label, weights.tolist(), *rest)
        for row, label in zip(x.tolist(), labels.tolist(), strict=True)
    ]
    expected = [sum(column) for column in zip(*parts, strict=True)] or [0] * (weights.size + 1)
    assert total(*problem).tolist() == expected
    for part in parts:
        assert sum(entry * entry for entry in part) <= SENSITIVITY**2


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(1, 3), st.randoms(use_true_random=False))
def test_a_record_adds_the_same_whatever_and_wherever_the_others_are(problem, cut, random):
    """Any sharding adds up, and blocks of any size in any order give the same."""
    x, labels, *rest = problem
    order = random.sample(range(len(x)), len(x))
    assert np.array_equal(total(x, labels, *rest), total(x[order], labels[order], *rest))
    shards = [total(x[k::cut], labels[k::cut], *rest) for k in range(cut)]
    assert np.array_equal(total(x, labels, *rest), np.sum(shards, axis=0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient, "ROWS", cut)
        assert np.array_equal(total(x[order], labels[order], *rest), np.sum(shards, axis=0))


@settings(max_examples=300)
@given(st.integers(1, 2**62) | st.sampled_from([2**62, 2**62 - 1, (2**31 - 1) ** 2 + 1, 1, 2]))
def test_a_root_is_rounded_up_exactly(square):
    for near in {max(1, square - 1), square}:
        assert ceil_sqrt(np.array([near])).tolist() == [math.isqrt(near - 1) + 1]


@pytest.mark.parametrize(
    ("space", "c"),
    [*(("class", c) for c in (2, 262)), *(("attributes", c) for c in (2, 5, 62)), ("value", 1)],
)
def test_the_widest_problem_neither_overflows_nor_exceeds_the_limit(space, c):
    """All features, weights, outputs and units at their largest, wrong in every output."""
    rng = np.random.default_rng(0)
    x = np.array([[63] * MAX_DIMENSIONS, [-63] * MAX_DIMENSIONS, [0] * MAX_DIMENSIONS], np.int8)
    weights = np.full((MAX_DIMENSIONS + 1, c), MAX_WEIGHT)
    if space == "class":
        weights[:, 1:] *= np.where(rng.random((MAX_DIMENSIONS + 1, c - 1)) < 0.5, -1, 1)
        weights[:, 1] = -MAX_WEIGHT
    most = {"class": c - 1, "attributes": 2**c - 1, "value": 4096}[space]
    for labels in ([0, most, most], [most, 0, 0]):
        asked = max_unit(space, c), MAX_BIAS, space
        drawn = total(x, np.array(labels), weights.astype(np.int16), *asked)
        parts = [
            oracle(row, y, weights.tolist(), *asked)
            for row, y in zip(x.tolist(), labels, strict=True)
        ]
        assert drawn.tolist() == [sum(column) for column in zip(*parts, strict=True)]
        assert all(sum(entry**2 for entry in part) <= SENSITIVITY**2 for part in parts)


def test_many_classes_that_tie_are_within_the_bound_of_the_squares():
    """Rounding up every probability adds most where all are just above a half."""
    c = MAX_CLASSES
    x, weights = np.zeros((1, 1), dtype=np.int8), np.zeros((2, c), dtype=np.int16)
    for unit in (c // 2, c // 2 + 1, 3 * c // 2, MAX_UNIT):
        found = total(x, np.array([c - 1]), weights, unit, 1)
        assert found.tolist() == oracle([0], c - 1, weights.tolist(), unit, 1)
