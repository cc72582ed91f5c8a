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


def test_a_negative_slot_is_refused() -> None:
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


def test_rows_inherit_their_cells_best_class_where_it_leads_by_more_than_the_margin() -> None:
    counts = np.array([[5, 9, -3], [7, 7, 1], [-4, -9, -2]])
    cell_of_row = np.array([[0], [1], [2], [0], [2]])
    labels, outcomes = inherit(counts, cell_of_row, 0.0)
    assert labels.tolist() == [1, ABSTAINED, 2, 1, 2]  # nobody leads in cell 1
    labels, outcomes = inherit(counts, cell_of_row, 2.0)
    assert labels.tolist() == [1, ABSTAINED, ABSTAINED, 1, ABSTAINED]
    assert outcomes.tolist() == [
        Outcome.ANSWERED,
        Outcome.ABSTAINED,
        Outcome.ABSTAINED,
        Outcome.ANSWERED,
        Outcome.ABSTAINED,
    ]
    assert labels.dtype == np.int64
    assert outcomes.dtype == np.uint8


def test_rows_add_the_counts_of_all_cells_in_their_reach() -> None:
    counts = np.array([[5, 9, -3], [7, 2, 1], [-4, -9, 12]])
    labels, outcomes = inherit(counts, np.array([[0, 1], [1, 2], [0, 2], [2, 1]]), 0.0)
    assert labels.tolist() == [
        0,
        2,
        2,
        2,
    ]  # 12, 11, -2; 3, -7, 13; 1, 0, 9; and the second again, whatever the order
    assert inherit(counts, np.array([[0, 1], [0, 2]]), 1.0)[0].tolist() == [ABSTAINED, 2]
    assert outcomes.tolist() == [Outcome.ANSWERED] * 4


def test_without_counts_every_row_is_refused() -> None:
    labels, outcomes = inherit(None, np.array([[0], [3]]), 1.0)
    assert labels.tolist() == [ABSTAINED] * 2
    assert outcomes.tolist() == [Outcome.CAP_REACHED] * 2
