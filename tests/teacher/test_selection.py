"""The smallest scores in order: against a sort of whole (score, row) keys, for blocks, bounds and ties of every kind."""

from __future__ import annotations

import numpy as np
import pytest

from teacher import selection
from teacher.selection import UNBOUNDED, Smallest, bounds_of_sample, stride_of


def scores(seed: int, spread: int, b: int = 7, n: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Cross terms int32 [b, n] and norms int32 [n] that differ by up to ``spread``."""
    rng = np.random.default_rng(seed)
    return rng.integers(-9000, 9000, (b, n)).astype(np.int32), rng.integers(0, spread, n).astype(np.int32)


def fed(cross: np.ndarray, norms: np.ndarray, bounds: np.ndarray, m: int, block: int, few: bool = True) -> Smallest:
    kept = Smallest(bounds, m, few)
    for first in range(0, cross.shape[1], block):
        kept.add(cross[:, first : first + block].copy(), norms[first : first + block], first)
    return kept


def first_of_sort(cross: np.ndarray, norms: np.ndarray, m: int) -> np.ndarray:
    return np.array([np.lexsort((np.arange(len(row)), row))[:m] for row in cross + norms]).reshape(len(cross), m)


@pytest.mark.parametrize("spread", [1, 20_000])  # norms alike, and norms that decide
@pytest.mark.parametrize("block", [1, 64, 500])
@pytest.mark.parametrize("most", [40, 1 << 22])  # survivors thrown out early and often, and never
@pytest.mark.parametrize("few", [False, True])
def test_blocks_of_any_size_give_the_sorted_list(monkeypatch, spread: int, block: int, most: int, few: bool) -> None:
    monkeypatch.setattr(selection, "MOST_HELD", most)
    cross, norms = scores(1, spread)
    counts, rows, found = fed(cross, norms, np.full(7, UNBOUNDED, dtype=np.int32), 20, block, few).ordered()
    expected = first_of_sort(cross, norms, 20)
    assert counts.tolist() == [20] * 7
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(found, np.take_along_axis(cross + norms, expected, axis=1))


@pytest.mark.parametrize("most", [40, 1 << 22])
def test_ties_go_to_the_lowest_row(monkeypatch, most: int) -> None:
    monkeypatch.setattr(selection, "MOST_HELD", most)
    cross, norms = np.zeros((3, 300), dtype=np.int32), np.ones(300, dtype=np.int32)
    cross[1, 150:] = -1
    _, rows, _ = fed(cross, norms, np.full(3, UNBOUNDED, dtype=np.int32), 10, 32).ordered()
    np.testing.assert_array_equal(rows, [np.arange(10), np.arange(150, 160), np.arange(10)])


def test_a_bound_that_is_too_low_is_told() -> None:
    cross, norms = scores(2, 1)
    bound = np.sort(cross + norms, axis=1)[:, 9].astype(np.int32)
    counts, rows, _ = fed(cross, norms, bound, 30, 64).ordered()
    np.testing.assert_array_equal(counts, ((cross + norms) <= bound[:, None]).sum(axis=1))
    np.testing.assert_array_equal(rows[0, : counts[0]], first_of_sort(cross, norms, 30)[0, : counts[0]])


def test_a_guess_is_seldom_too_low() -> None:
    """A count within the bound is negative binomial around 1.8 m: five deviations above m at m = 2,500."""
    cross = np.random.default_rng(3).integers(-(1 << 24), 1 << 24, (20, 300_000)).astype(np.int32)
    stride = stride_of(cross.shape[1])
    bounds = bounds_of_sample(cross[:, ::stride], 2500, stride)
    counts = (cross <= bounds[:, None]).sum(axis=1)
    assert stride == 127
    assert ((counts >= 2500) & (counts < 8000)).all()
    assert (bounds_of_sample(cross[:, :30], 2500, stride) == UNBOUNDED).all()
