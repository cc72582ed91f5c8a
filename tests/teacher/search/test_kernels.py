"""Bounds of who can be similar; the decisions themselves are held against exact fractions in mechanisms/test_ind_knn.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelwall.teacher.search.kernels import cosine, rbf


@given(
    st.lists(st.lists(st.integers(-63, 63), min_size=3, max_size=3), min_size=1, max_size=12),
    st.lists(st.integers(-63, 63), min_size=3, max_size=3),
    st.sampled_from([0.001, 0.3, 0.9, 1.0]),
    st.integers(0, 3000),
)
def test_whoever_is_selected_is_within_the_bound(rows, query, threshold, below):
    """For the least norm there is, and for any below it."""
    x, q = np.array(rows, dtype=np.int64), np.array(query, dtype=np.int64)
    cross, norms, norm = (
        (-2 * x @ q).astype(np.int32),
        (x * x).sum(axis=1).astype(np.int32),
        int(q @ q),
    )
    for select in (
        cosine(threshold),
        rbf(threshold, 1.0, 60.0),
        rbf(threshold, 0.2, 60.0, near=0.8),
    ):
        chosen = cross[select(cross, norms, norm).rows]
        assert (chosen <= select.most(max(0, int(norms.min()) - below), norm)).all()


@pytest.mark.parametrize(("select", "least"), [(cosine(0.5), -4001), (rbf(0.5, 1.0, 60.0), -5505)])
def test_the_bound_is_close(select, least):
    """A row of norm 4000 beside one of 4000: |q.x| at least 2000 for half, and a squared distance of 3600 ln 2 = 2495 at most."""
    assert least <= select.most(4000, 4000) <= least + 2
