"""Cells and weights: validation, nearest cells, inherited labels, against loops over integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from labelwall.wall.errors import InvalidInput
from labelwall.wall.matrices import (
    MAX_CELLS,
    MAX_CLASSES,
    MAX_DIMENSIONS,
    MAX_WEIGHT,
    Cells,
    Weights,
    inherit,
    nearest_cells,
    smallest,
)
from labelwall.wall.messages import ABSTAINED, Outcome

CENTERS = np.array([[3, -2], [0, 0], [3, -2]], dtype=np.int8)
WEIGHTS = np.arange(-7, 8, dtype=np.int16).reshape(5, 3)

MALFORMED: dict[str, tuple[type[Cells | Weights], np.ndarray]] = {
    "floats for cells": (Cells, CENTERS.astype(np.float32)),
    "wider integers for cells": (Cells, CENTERS.astype(np.int16)),
    "one axis of cells": (Cells, CENTERS[0]),
    "no cell": (Cells, CENTERS[:0]),
    "no dimension": (Cells, CENTERS[:, :0]),
    "too many cells": (Cells, np.zeros((MAX_CELLS + 1, 1), dtype=np.int8)),
    "too many dimensions": (Cells, np.zeros((1, MAX_DIMENSIONS + 1), dtype=np.int8)),
    "a cell too large": (Cells, np.array([[64]], dtype=np.int8)),
    "a cell too small": (Cells, np.array([[-64]], dtype=np.int8)),
    "floats for weights": (Weights, WEIGHTS.astype(np.float32)),
    "NaN": (Weights, np.full((3, 2), np.nan)),
    "wider integers for weights": (Weights, WEIGHTS.astype(np.int32)),
    "one axis of weights": (Weights, WEIGHTS[0]),
    "no features": (Weights, WEIGHTS[:1]),
    "no output": (Weights, WEIGHTS[:, :0]),
    "a weight too small": (Weights, np.full((3, 2), -MAX_WEIGHT - 1, dtype=np.int16)),
    "too many features": (Weights, np.zeros((MAX_DIMENSIONS + 2, 2), dtype=np.int16)),
    "too many classes": (Weights, np.zeros((2, MAX_CLASSES + 1), dtype=np.int16)),
    "too many entries": (Weights, np.zeros((1025, 1024), dtype=np.int16)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_matrices_are_refused(name):
    kind, entries = MALFORMED[name]
    with pytest.raises(InvalidInput, match=r"cells\.centers|weights\.weights"):
        kind(entries)
    with pytest.raises(InvalidInput, match=r"(cells|weights)\.slot"):
        kind({Cells: CENTERS, Weights: WEIGHTS}[kind], slot=-1)


@pytest.mark.parametrize(("kind", "entries"), [(Cells, CENTERS), (Weights, WEIGHTS)])
def test_an_identity_tells_entries_order_shape_kind_slot_extractor_and_mechanism_apart(
    kind, entries
):
    plain = kind(entries)
    same = kind(np.asfortranarray(entries))
    assert plain.identity("e", {"s": 1}) == same.identity("e", {"s": 1})
    others = [
        kind(np.roll(entries, 1, axis=0)).identity("e", {"s": 1}),
        kind(entries.reshape(entries.shape[::-1])).identity("e", {"s": 1}),
        kind(entries, slot=1).identity("e", {"s": 1}),
        plain.identity("f", {"s": 1}),
        plain.identity("e", {"s": 2}),
        Cells(np.zeros(entries.shape, dtype=np.int8)).identity("e", {"s": 1}),
        Weights(np.zeros(entries.shape, dtype=np.int16)).identity("e", {"s": 1}),
    ]
    assert len({*others, plain.identity("e", {"s": 1})}) == 8


@settings(max_examples=60)
@given(st.data())
def test_nearest_cells_are_those_of_exact_integers_with_ties_by_number(data):
    d, m, n = (data.draw(st.integers(1, most)) for most in (3, 6, 8))
    few = st.sampled_from([-63, -1, 0, 1, 63])  # many ties and duplicates
    features = data.draw(arrays(np.int8, (n, d), elements=few))
    centers = data.draw(arrays(np.int8, (m, d), elements=few))
    neighbours = data.draw(st.integers(1, m))
    expected = [
        sorted(
            range(m),
            key=lambda c, x=x: (
                sum((int(a) - int(b)) ** 2 for a, b in zip(x, centers[c], strict=True)),
                c,
            ),
        )
        for x in features
    ]
    found = nearest_cells(features, centers, neighbours)
    np.testing.assert_array_equal(found, np.array(expected)[:, :neighbours])
    np.testing.assert_array_equal(found[::-1], nearest_cells(features[::-1], centers, neighbours))


def test_distances_are_exact_at_the_largest_entries_and_dimensions():
    """Products near 2^24, odd and even, and distances that differ by few."""
    rng = np.random.default_rng(0)
    features, centers = (rng.choice([62, 63], (n, MAX_DIMENSIONS)).astype(np.int8) for n in (9, 40))
    features[1:3], centers[:2] = -63, 63
    wide, cells = features.astype(np.int64), centers.astype(np.int64)
    squared = (wide**2).sum(axis=1)[:, None] + (cells**2).sum(axis=1) - 2 * wide @ cells.T
    expected = np.argsort(squared, axis=1, kind="stable")
    np.testing.assert_array_equal(nearest_cells(features, centers, 40), expected)


@pytest.mark.parametrize("columns", [1, 40, 64, 333])
@pytest.mark.parametrize("values", [2, 1_000])
def test_the_smallest_entries_are_those_of_a_stable_sort(columns, values):
    """Among few columns and many, with many ties and few."""
    entries = np.random.default_rng(columns).integers(0, values, (50, columns)).astype(np.int32)
    expected = np.argsort(entries, axis=1, kind="stable")
    for count in {1, min(2, columns), min(10, columns), columns}:
        np.testing.assert_array_equal(smallest(entries, count), expected[:, :count])


COUNTS = np.array([[5, 9, -3], [7, 7, 1], [-4, -9, -2]])
NEAR = np.array([[5, 9, -3], [7, 2, 1], [-4, -9, 12]])


@pytest.mark.parametrize(
    ("counts", "cells_of_row", "margin", "expected"),
    [
        (COUNTS, [[0], [1], [2], [0], [2]], 0.0, [1, -1, 2, 1, 2]),  # nobody leads in cell 1
        (COUNTS, [[0], [1], [2], [0], [2]], 2.0, [1, -1, -1, 1, -1]),
        # 12, 11, -2; 3, -7, 13; 1, 0, 9; and the second again, whatever the order
        (NEAR, [[0, 1], [1, 2], [0, 2], [2, 1]], 0.0, [0, 2, 2, 2]),
        (NEAR, [[0, 1], [0, 2]], 1.0, [-1, 2]),
    ],
)
def test_rows_inherit_the_best_class_of_their_cells_sum_beyond_the_margin(
    counts, cells_of_row, margin, expected
):
    labels, outcomes = inherit(counts, np.array(cells_of_row), margin)
    assert labels.tolist() == expected
    answered = np.array(expected) != ABSTAINED
    assert outcomes.tolist() == np.where(answered, Outcome.ANSWERED, Outcome.ABSTAINED).tolist()
    assert (labels.dtype, outcomes.dtype) == (np.int64, np.uint8)


def test_without_counts_every_row_is_refused():
    labels, outcomes = inherit(None, np.array([[0], [3]]), 1.0)
    assert labels.tolist() == [ABSTAINED] * 2
    assert outcomes.tolist() == [Outcome.CAP_REACHED] * 2
