"""Exact search against brute force in int64."""

import tracemalloc

import numpy as np
import pytest

from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search import accelerators, cpu
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.errors import InvalidInput
from tests.teacher.search.indexes import brute_force, everywhere, int_features, sampled


@everywhere
@pytest.mark.parametrize(
    ("n", "d", "m", "high"),
    [
        (0, 5, 3, 63),
        (1, 1, 4, 63),
        (50, 3, 7, 1),
        (900, 2, 300, 2),
        (5000, 40, 60, 63),
        (700, 500, 600, 63),
    ],
)
def test_prefix_is_brute_force(index_of, n, d, m, high):
    features, queries = int_features(n, n, d, -high, high), int_features(1, 9, d, -high, high)
    ids = np.random.default_rng(2).integers(1, 9, n).cumsum() - n  # neither dense nor positive
    found = index_of(features, ids).prefix(queries, m)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, brute_force(features, queries, m))


@everywhere
def test_the_largest_entries_and_dimensions(index_of):
    features = np.array([[63], [-63], [0]], dtype=np.int8).repeat(4000, axis=1)
    rows, distances = index_of(features, np.arange(3)).nearest(features[:2], 3)
    assert rows.tolist() == [[0, 2, 1], [1, 2, 0]]
    assert distances.tolist() == [[0, 63**2 * 4000, 126**2 * 4000]] * 2


@everywhere
def test_records_in_a_period_are_ordered_too(index_of):
    # The sample of every 31st record sees one value in 31: the guess of the bound is wrong.
    features = np.tile(int_features(5, 31, 3), (200, 1))
    queries = np.concatenate([features[:4], int_features(6, 4, 3)])
    found = index_of(features, np.arange(len(features))).prefix(queries, 500)
    np.testing.assert_array_equal(found, brute_force(features, queries, 500))


@everywhere
@pytest.mark.parametrize(("scores", "chunk"), [(1, 700), (3000, 1024), (1 << 19, 1 << 18)])
@pytest.mark.parametrize("order", ["ties", "rising", "falling"])
def test_lists_and_distances_do_not_depend_on_blocks(monkeypatch, index_of, scores, chunk, order):
    """Where far more scores are within the bound than a list takes, too: all tie but a few."""
    monkeypatch.setattr(cpu, "SCORES", scores)
    monkeypatch.setattr(cpu, "CHUNK", chunk)
    monkeypatch.setattr(cpu, "SELECTED_PAIRS", 10 * chunk)
    monkeypatch.setattr(accelerators, "MAX_SCORES", 64 * chunk + 5)
    monkeypatch.setattr(accelerators, "UPLOAD", chunk // 8 * 8)
    features = np.zeros((4000, 3), dtype=np.int8)
    features[::97] = int_features(1, 42, 3)
    if order != "ties":
        features[:, 0] = np.arange(4000) // 67 - 30
    queries = int_features(2, 6, 3, -2, 2)
    queries[:, 0] = {"ties": queries[:, 0], "rising": -30, "falling": 30}[order]
    index = index_of(features, np.arange(4000))
    squared = ((features.astype(np.int64) - queries.astype(np.int64)[:, None]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(np.array(list(index.distances(queries))), squared)
    for m in (1, 60, 3000):
        expected = brute_force(features, queries, m)
        rows, distances = index.nearest(queries, m)
        assert (rows.dtype, distances.dtype) == (np.int64, np.int32)
        np.testing.assert_array_equal(rows, expected)
        np.testing.assert_array_equal(distances, np.take_along_axis(squared, expected, axis=1))


@everywhere
def test_lists_are_kept_for_the_second_release_and_can_not_be_changed(monkeypatch, index_of):
    index = index_of(int_features(0, 300, 6), np.arange(300))
    queries = int_features(1, 8, 6)
    first = index.prefix(queries, 20)
    with monkeypatch.context() as patch:
        patch.setattr(index, "_search", None)
        again = index.prefix(queries[[5, 2]], 20)
    np.testing.assert_array_equal(again, first[[5, 2]])
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1
    np.testing.assert_array_equal(index.prefix(queries, 21)[:, :20], first)


@everywhere
def test_alike_queries_have_a_list_each_whichever_were_asked_before(index_of):
    index, queries = index_of(int_features(0, 300, 6), np.arange(300)), int_features(1, 3, 6)
    lists = index.prefix(queries, 20).copy()
    for batch in ([0, 0, 1, 0], [0], [0, 1], [1, 0], [1, 1], [2, 0, 2], [2], [0, 2], [2, 0, 2]):
        np.testing.assert_array_equal(index.prefix(queries[batch], 20), lists[batch])


@everywhere
@pytest.mark.parametrize(
    ("features", "ids", "rule"),
    [
        (np.zeros((2, 3), dtype=np.float32), np.arange(2), "int8"),
        (np.zeros((2, 4001), dtype=np.int8), np.arange(2), r"4000.*\[n, 4001\]"),
        (np.full((2, 3), 64, dtype=np.int8), np.arange(2), "63"),
        (np.full((2, 3), -128, dtype=np.int8), np.arange(2), "63"),
        (np.zeros((2, 3), dtype=np.int8), np.arange(3), "one for each row"),
        (np.zeros((2, 3), dtype=np.int8), np.zeros(2, dtype=np.int64), "ascending"),
    ],
)
def test_wrong_records_are_refused(index_of, features, ids, rule):
    with pytest.raises(InvalidInput, match=rule):
        index_of(features, ids)


@everywhere
def test_wrong_queries_are_refused(index_of):
    index = index_of(np.zeros((2, 3), dtype=np.int8), np.arange(2))
    with pytest.raises(InvalidInput, match="3 dimensions"):
        index.prefix(np.zeros((1, 4), dtype=np.int8), 1)
    assert index.prefix(np.zeros((0, 3), dtype=np.int8), 2).shape == (0, 2)


@pytest.mark.slow
def test_memory_of_a_batch_is_bounded():
    index = ExactIndex(int_features(0, 60_000, 1296), np.arange(60_000))
    queries = int_features(1, 256, 1296)
    tracemalloc.start()
    try:
        # as planned, and prefixes that cover the data set
        for k, count in ((300, 256), (20_000, 40)):
            sampled(index, np.zeros(60_000, np.int64), queries[:count], k, 0.15, SystemEntropy())
        assert tracemalloc.get_traced_memory()[1] < 1 << 30
    finally:
        tracemalloc.stop()
