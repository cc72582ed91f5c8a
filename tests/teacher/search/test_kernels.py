"""The kernels' bounds. The Ind-KNN tests compare their decisions with exact fractions."""

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
def test_selected_records_are_within_the_bound(rows, query, threshold, beyond):
    """For the least and the largest norm above 0 that there are, and for wider ends."""
    x, q = np.array(rows, dtype=np.int64), np.array(query, dtype=np.int64)
    cross, norms = (-2 * x @ q).astype(np.int32), (x * x).sum(axis=1).astype(np.int32)
    norm, positive = int(q @ q), norms[norms > 0]
    least = max(0, int(positive.min(initial=0 if not len(positive) else 2**30)) - beyond)
    plain, near = rbf(threshold, 1.0, 60.0), rbf(threshold, 0.2, 60.0, near=0.8)
    for select in (cosine(threshold), plain, near):
        chosen = (cross + norms)[select(cross, norms, norm).rows]
        largest = int(positive.max(initial=0)) + beyond
        assert (chosen <= select.bounds(least, largest, np.array([norm], dtype=np.int32))).all()


@pytest.mark.parametrize(("select", "bound"), [(cosine(0.5), 0), (rbf(0.5, 1.0, 60.0), -1505)])
def test_the_bound_is_close(select, bound):
    """Squared norms of 4000: q.x >= 2000 for half, or a squared distance <= 3600 ln 2 = 2495."""
    bounds = select.bounds(4000, 4000, np.array([4000], dtype=np.int32))
    assert bounds.dtype == np.int32
    assert bound <= bounds[0] <= bound + 2
