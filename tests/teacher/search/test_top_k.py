"""The smallest scores against a sort of (score, row) keys, for any blocks, parts, bounds, ties."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.caching import CacheImpl

from labelwall.teacher.search.top_k import (
    CHUNK,
    UNBOUNDED,
    TopK,
    compiled,
    sample_bounds,
    sampling_stride,
)


def scores(seed: int, spread: int, b: int = 7, n: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Cross terms int32 [b, n] and norms int32 [n] that differ by up to ``spread``."""
    rng = np.random.default_rng(seed)
    cross = rng.integers(-9000, 9000, (b, n)).astype(np.int32)
    return cross, rng.integers(0, spread, n).astype(np.int32)


def unbounded(b: int) -> np.ndarray:
    return np.full(b, UNBOUNDED, dtype=np.int32)


def ordered(
    cross: np.ndarray, norms: np.ndarray, bounds: np.ndarray, m: int, block: int, parts: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(counts, rows, scores) by blocks, the last part filled first."""
    n, b = cross.shape[1], len(cross)
    edges = [n * part // parts for part in range(parts + 1)]
    top = TopK(bounds, m, parts, max(np.diff(edges)))
    for part in reversed(range(parts)):
        for first in range(edges[part], edges[part + 1], block):
            own = slice(first, min(first + block, edges[part + 1]))
            top.add(part, np.ascontiguousarray(cross[:, own]), norms[own], first)
    rows, found = np.zeros((b, m), dtype=np.int64), np.zeros((b, m), dtype=np.int32)
    half = b // 2  # two calls: a query's list does not depend on which
    shares = range(half), range(half, b)
    counts = np.concatenate([top.order(share, rows, found) for share in shares])
    return counts, rows, found


def first_of_sort(cross: np.ndarray, norms: np.ndarray, m: int) -> np.ndarray:
    rows = [np.lexsort((np.arange(len(row)), row))[:m] for row in cross + norms]
    return np.array(rows).reshape(len(cross), m)


@pytest.mark.parametrize("spread", [1, 20_000])  # norms alike, and norms that decide
@pytest.mark.parametrize("block", [1, 7, 64, 500])
# lists that are cut again and again, and never
@pytest.mark.parametrize("m", [1, 20, 400, 500])
@pytest.mark.parametrize("parts", [1, 3])
def test_blocks_and_parts_of_any_size_give_the_sorted_list(
    spread: int, block: int, m: int, parts: int
) -> None:
    cross, norms = scores(1, spread)
    counts, rows, found = ordered(cross, norms, unbounded(7), m, block, parts)
    expected = first_of_sort(cross, norms, m)
    assert counts.tolist() == [m] * 7
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(found, np.take_along_axis(cross + norms, expected, axis=1))


# A block may be longer than a chunk. Of falling scores each is among the smallest so far.
@pytest.mark.parametrize("n", [CHUNK - 3, CHUNK, CHUNK + 5, 3 * CHUNK + 9])
@pytest.mark.parametrize("falling", [False, True])
def test_long_blocks(n: int, falling: bool) -> None:
    cross, norms = scores(4, 300, b=3, n=n)
    if falling:
        cross[:] = -np.arange(n) - norms
    counts, rows, _ = ordered(cross, norms, unbounded(3), 50, n)
    assert counts.tolist() == [50] * 3
    np.testing.assert_array_equal(rows, first_of_sort(cross, norms, 50))


def test_scores_as_far_apart_as_they_get() -> None:
    """Squared distances are below 2^26; minus |q|^2 they are above -2^26."""
    cross = np.random.default_rng(5).integers(-(1 << 26), 1 << 26, (4, 3000)).astype(np.int32)
    cross[:, 17], cross[:, 2900] = 1 << 26, -(1 << 26)
    norms = np.zeros(3000, dtype=np.int32)
    _, rows, _ = ordered(cross, norms, unbounded(4), 900, 1024, 2)
    np.testing.assert_array_equal(rows, first_of_sort(cross, norms, 900))


@pytest.mark.parametrize("parts", [1, 2])
def test_ties_go_to_the_lowest_row(parts: int) -> None:
    cross, norms = np.zeros((3, 300), dtype=np.int32), np.ones(300, dtype=np.int32)
    cross[1, 150:] = -1
    _, rows, _ = ordered(cross, norms, unbounded(3), 10, 32, parts)
    np.testing.assert_array_equal(rows, [np.arange(10), np.arange(150, 160), np.arange(10)])


@pytest.mark.parametrize("parts", [1, 2])
def test_a_bound_that_is_too_low_is_told(parts: int) -> None:
    cross, norms = scores(2, 1)
    bound = np.sort(cross + norms, axis=1)[:, 9].astype(np.int32)
    counts, rows, _ = ordered(cross, norms, bound, 30, 64, parts)
    np.testing.assert_array_equal(counts, ((cross + norms) <= bound[:, None]).sum(axis=1))
    expected = first_of_sort(cross, norms, 30)[0, : counts[0]]
    np.testing.assert_array_equal(rows[0, : counts[0]], expected)


@pytest.mark.parametrize("m", [0, 5])
def test_nothing_is_asked_for_or_there(m: int) -> None:
    counts, _, _ = ordered(*scores(6, 10, n=40), unbounded(7), 0, 16)
    assert counts.tolist() == [0] * 7
    nothing = np.zeros((2, 0), dtype=np.int32), np.zeros(0, dtype=np.int32)
    counts, _, _ = ordered(*nothing, unbounded(2), m, 16)
    assert counts.tolist() == [0, 0]


def test_an_earlier_buffer_is_used_and_leaves_nothing_behind() -> None:
    cross, norms = scores(10, 300)
    before = TopK(unbounded(7), 200, 1, 500)
    before.add(0, cross - 50_000, norms, 0)  # smaller than what comes
    top = TopK(unbounded(7), 20, 1, 500, before.buffer)
    assert np.shares_memory(top.buffer, before.buffer)
    top.add(0, cross, norms, 0)
    rows, found = np.zeros((7, 20), dtype=np.int64), np.zeros((7, 20), dtype=np.int32)
    np.testing.assert_array_equal(top.order(range(7), rows, found), [20] * 7)
    np.testing.assert_array_equal(rows, first_of_sort(cross, norms, 20))
    size = len(top.buffer)
    assert len(TopK(unbounded(7), 200, 2, 500, top.buffer).buffer) > size  # too small: a new one


def test_what_does_not_fit_is_not_written() -> None:
    cross, norms = scores(7, 10, n=60)
    top = TopK(unbounded(7), 50, 2, 60)
    lists = np.zeros((7, 50), dtype=np.int64), np.zeros((7, 50), dtype=np.int32)
    top.add(1, cross, norms, 0)
    for part, block in (
        (1, (cross[:, :1], norms[:1])),
        (0, (cross[:6], norms)),
        (0, (cross, norms[:59])),
    ):
        with pytest.raises(ValueError, match="too many rows, or not of these queries"):
            top.add(part, *block, 60)
    for wrong in (
        (lists[0][:6], lists[1][:6]),
        (lists[0][:, :49], lists[1]),
        (lists[0], lists[1][:, :49]),
    ):
        with pytest.raises(ValueError, match="50 of 7 queries"):
            top.order(range(7), *wrong)
    np.testing.assert_array_equal(top.order(range(7), *lists), [50] * 7)


def test_a_guess_is_seldom_too_low() -> None:
    """A count within the bound is negative binomial around 2.1 m: far above m at m = 2,500.

    The scores are fixed.
    """
    cross = np.random.default_rng(3).integers(-(1 << 24), 1 << 24, (20, 300_000)).astype(np.int32)
    norms = np.zeros(300_000, dtype=np.int32)
    stride = sampling_stride(cross.shape[1])
    sample = np.ascontiguousarray(cross[:, ::stride])
    bounds = sample_bounds(sample, norms[::stride].copy(), 2500, stride)
    counts = (cross <= bounds[:, None]).sum(axis=1)
    assert stride == 127
    assert ((counts >= 2500) & (counts < 8000)).all()
    few = np.ascontiguousarray(cross[:, :30]), norms[:30]
    assert (sample_bounds(*few, 2500, stride) == UNBOUNDED).all()


def test_a_bound_leaves_more_of_the_sample_than_it_guesses() -> None:
    """More than m + 4 sqrt(m) + 3, for equal scores, two distant clusters and a wide range."""
    rng = np.random.default_rng(8)
    alike = np.full((1, 500), 7)
    heaps = np.repeat([[-(1 << 25), 1 << 25]], [200, 300], axis=1)
    wide = rng.integers(-(1 << 25), 1 << 25, (1, 500))
    cross = np.concatenate([alike, heaps, wide]).astype(np.int32)
    norms = rng.integers(0, 5, 500).astype(np.int32)
    bounds = sample_bounds(cross, norms, 100, 1)
    within = ((cross + norms) <= bounds[:, None]).sum(axis=1)
    assert (within > 143).all()
    assert within[2] < 150


def test_without_a_place_to_keep_it_a_function_is_compiled_anew(monkeypatch) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])

    def double(values: np.ndarray) -> None:
        for place in range(len(values)):
            values[place] *= 2

    values = np.arange(3)
    compiled(double)(values)
    assert values.tolist() == [0, 2, 4]
