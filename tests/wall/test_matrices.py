"""Cells: validation, nearest cells and inherited labels, against loops over Python integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from labelwall.wall.errors import InvalidInput
from labelwall.wall.matrices import MAX_CELLS, MAX_DIMENSIONS, Cells, inherit, nearest_cells
from labelwall.wall.messages import ABSTAINED, Outcome

CENTERS = np.array([[3, -2], [0, 0], [3, -2]], dtype=np.int8)

REFUSED = {
    "floats": CENTERS.astype(np.float32),
    "wider integers": CENTERS.astype(np.int16),
    "one axis": CENTERS[0],
    "no cell": CENTERS[:0],
    "no dimension": CENTERS[:, :0],
    "too many cells": np.zeros((MAX_CELLS + 1, 1), dtype=np.int8),
    "too many dimensions": np.zeros((1, MAX_DIMENSIONS + 1), dtype=np.int8),
    "too large": np.array([[64]], dtype=np.int8),
    "too small": np.array([[-64]], dtype=np.int8),
}


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_cells_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"cells\.centers"):
        Cells(REFUSED[name])
    with pytest.raises(InvalidInput, match=r"cells\.slot"):
        Cells(CENTERS, slot=-1)


def test_an_identity_tells_centers_order_shape_extractor_and_mechanism_apart() -> None:
    plain = Cells(CENTERS)
    assert plain.identity("e", {"sigma": 1}) == Cells(np.asfortranarray(CENTERS), slot=1).identity(
        "e", {"sigma": 1}
    )
    others = [
        Cells(CENTERS[::-1][[1, 0, 2]]).identity("e", {"sigma": 1}),
        Cells(CENTERS.reshape(2, 3)).identity("e", {"sigma": 1}),
        plain.identity("f", {"sigma": 1}),
        plain.identity("e", {"sigma": 2}),
    ]
    assert len({*others, plain.identity("e", {"sigma": 1})}) == 5


@settings(max_examples=60)
@given(st.data())
def test_nearest_cells_are_those_of_exact_integers_with_ties_by_number(data: st.DataObject) -> None:
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


def test_distances_are_exact_where_float32_would_not_be() -> None:
    """Two centres whose squared distances to a row, 31,736,125 and 31,736,124, are one float32."""
    row = np.full((1, 2000), 63, dtype=np.int8)
    far, near = (np.append([first], np.full(1999, -63)).astype(np.int8) for first in (62, 63))
    assert np.float32(1999 * 126**2 + 1) == np.float32(1999 * 126**2)
    assert nearest_cells(row, np.stack([far, near]), 1)[0, 0] == 1


def test_distances_are_exact_at_the_largest_entries_and_dimensions() -> None:
    """Products near 2^24, odd and even, and distances that differ by few."""
    rng = np.random.default_rng(0)
    features, centers = (rng.choice([62, 63], (n, MAX_DIMENSIONS)).astype(np.int8) for n in (9, 40))
    features[1:3], centers[:2] = -63, 63
    wide, cells = features.astype(np.int64), centers.astype(np.int64)
    squared = (wide**2).sum(axis=1)[:, None] + (cells**2).sum(axis=1) - 2 * wide @ cells.T
    expected = np.argsort(squared, axis=1, kind="stable")
    np.testing.assert_array_equal(nearest_cells(features, centers, 40), expected)


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
    counts: np.ndarray, cells_of_row: list[list[int]], margin: float, expected: list[int]
) -> None:
    labels, outcomes = inherit(counts, np.array(cells_of_row), margin)
    assert labels.tolist() == expected
    answered = np.array(expected) != ABSTAINED
    assert outcomes.tolist() == np.where(answered, Outcome.ANSWERED, Outcome.ABSTAINED).tolist()
    assert (labels.dtype, outcomes.dtype) == (np.int64, np.uint8)


def test_without_counts_every_row_is_refused() -> None:
    labels, outcomes = inherit(None, np.array([[0], [3]]), 1.0)
    assert labels.tolist() == [ABSTAINED] * 2
    assert outcomes.tolist() == [Outcome.CAP_REACHED] * 2
