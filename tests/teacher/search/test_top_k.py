"""Scores within a bound against a comparison of all, and bounds that a sample gives."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.caching import CacheImpl

from labelwall.teacher.search.top_k import (
    CHUNK,
    Lists,
    compiled,
    sample_bounds,
    sampled_rank,
    sampling_stride,
)

MOST = 1 << 26  # squared distances are below 2^26; minus |q|^2 they are above -2^26


def scores(seed: int, b: int = 7, n: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Cross terms int32 [b, n], the largest among them, and norms int32 [n]."""
    rng = np.random.default_rng(seed)
    cross = rng.integers(-9000, 9000, (b, n)).astype(np.int32)
    cross[:, 17], cross[:, 39] = MOST - 300, -MOST
    return cross, rng.integers(0, 300, n).astype(np.int32)


# A block may be longer than a chunk.
@pytest.mark.parametrize("n", [40, 500, CHUNK - 3, CHUNK, CHUNK + 5, 3 * CHUNK + 9])
@pytest.mark.parametrize(("block", "parts"), [(1, 1), (7, 3), (64, 2), (CHUNK, 1), (4 * CHUNK, 2)])
def test_lists_are_the_smallest_scores_in_order_for_any_blocks_and_parts(
    n: int, block: int, parts: int
) -> None:
    """Against a sort of all scores; a query with fewer within its bound is reported."""
    cross, norms = scores(1, n=n)
    total = cross.astype(np.int64) + norms
    bounds = np.array([-(MOST + 1), -8000, -1, 0, 5000, MOST - 1, MOST], dtype=np.int32)
    lists, step = Lists(bounds, n, parts), -(-n // parts)
    for first in range(0, n, block):
        for part, start in enumerate(range(0, n, step)):
            own = slice(max(first, start), min(first + block, start + step))
            if own.start < own.stop:
                lists.add(part, np.ascontiguousarray(cross[:, own]), norms[own], own.start)
    within = (total <= bounds[:, None]).sum(axis=1)
    for m in (1, 12, 31):
        rows, values = np.zeros((7, m), dtype=np.int64), np.zeros((7, m), dtype=np.int32)
        complete = np.concatenate(
            [lists.order(share, rows, values) for share in (range(3), range(3, 7))]
        )
        assert complete.tolist() == (within >= m).tolist()
        nearest = np.argsort(total, axis=1, kind="stable")[:, :m]
        assert np.array_equal(rows[complete], nearest[complete])
        assert np.array_equal(values[complete], np.take_along_axis(total, nearest, 1)[complete])
    assert set(complete.tolist()) == {False, True}


def test_a_list_without_space_is_marked_and_the_others_are_whole() -> None:
    cross, norms = np.zeros((3, 300), dtype=np.int32), np.ones(300, dtype=np.int32)
    cross[1, ::30] = -1
    lists = Lists(np.array([1, 0, 0], dtype=np.int32), 10)
    for first in range(0, 300, 60):
        lists.add(0, cross[:, first : first + 60].copy(), norms[first : first + 60], first)
    rows, values = np.zeros((3, 10), dtype=np.int64), np.zeros((3, 10), dtype=np.int32)
    assert lists.order(range(3), rows, values).tolist() == [False, True, False]
    assert rows[1].tolist() == list(range(0, 300, 30))
    nothing = np.zeros((3, 0), dtype=np.int64), np.zeros((3, 0), dtype=np.int32)
    assert lists.order(range(3), *nothing).tolist() == [False, True, True]


def test_blocks_of_other_shapes_are_refused() -> None:
    cross, norms = scores(7, n=60)
    lists = Lists(np.zeros(7, dtype=np.int32), 60)
    for block in ((cross[:6], norms), (cross, norms[:59])):
        with pytest.raises(ValueError, match="not of these queries and rows"):
            lists.add(0, *block, 0)
    for shapes in (((7, 3), (7, 2)), ((6, 3), (6, 3))):
        with pytest.raises(ValueError, match="lists of shape"):
            lists.order(range(7), *(np.zeros(shape, dtype=np.int64) for shape in shapes))
    with pytest.raises(ValueError, match="no rank 60"):
        sample_bounds(cross, norms, 60)
    with pytest.raises(ValueError, match="no rank 3"):
        sample_bounds(cross, norms[:59], 3)


def test_a_guess_is_seldom_too_low() -> None:
    """A count within the bound is negative binomial around 2.1 m: far above m at m = 2,500, and
    below the capacity of a list. The scores are fixed.
    """
    cross = np.random.default_rng(3).integers(-(1 << 24), 1 << 24, (20, 300_000)).astype(np.int32)
    norms = np.zeros(300_000, dtype=np.int32)
    stride = sampling_stride(cross.shape[1])
    rank = sampled_rank(2500, stride)
    sample = np.ascontiguousarray(cross[:, ::stride])
    bounds = sample_bounds(sample, norms[::stride].copy(), rank)
    counts = (cross <= bounds[:, None]).sum(axis=1)
    assert stride == 127
    assert ((counts >= 2500) & (counts < 8000) & (counts < 2 * stride * rank)).all()


def test_a_bound_leaves_more_of_the_sample_than_its_rank() -> None:
    """For equal scores, two distant clusters and a wide range."""
    rng = np.random.default_rng(8)
    alike = np.full((1, 500), 7)
    heaps = np.repeat([[-(1 << 25), 1 << 25]], [200, 300], axis=1)
    wide = rng.integers(-(1 << 25), 1 << 25, (1, 500))
    cross = np.concatenate([alike, heaps, wide]).astype(np.int32)
    norms = rng.integers(0, 5, 500).astype(np.int32)
    bounds = sample_bounds(cross, norms, 143)
    counts = ((cross + norms) <= bounds[:, None]).sum(axis=1)
    assert (counts > 143).all()
    assert counts[2] < 150


def test_without_a_place_to_keep_it_a_function_is_compiled_anew(monkeypatch) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])

    def double(values: np.ndarray) -> None:
        for place in range(len(values)):
            values[place] *= 2

    values = np.arange(3)
    compiled(double)(values)
    assert values.tolist() == [0, 2, 4]
