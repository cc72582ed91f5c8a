"""Exact search against brute force in int64, and the sensitivity of sampled votes."""

from __future__ import annotations

import os
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from teacher import gemm, neighbors
from teacher.device_index import DeviceIndex
from teacher.features import Embedder
from teacher.gemm import PRODUCTS, choose_product, minus_twice
from teacher.neighbors import ExactIndex, prefix_length, sampled_votes
from teacher.privacy.noise import SystemEntropy
from teacher.privacy.unsafe import UnsafeTape
from tests.teacher.indexes import PRESENT, WAYS, everywhere
from wall.errors import InvalidInput
from wall.messages import ExtractorSpec


def _features(seed: int, n: int, d: int, low: int = -63, high: int = 63) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high + 1, (n, d)).astype(np.int8)


def _brute_force(features: np.ndarray, ids: np.ndarray, queries: np.ndarray, m: int) -> np.ndarray:
    """Row positions by (squared distance, id), from differences in int64."""
    wide, found = features.astype(np.int64), []
    for query in queries.astype(np.int64):
        distance = ((wide - query) ** 2).sum(axis=1)
        found.append(np.lexsort((ids, distance))[:m])
    return np.array(found, dtype=np.int64).reshape(len(queries), min(m, len(features)))


@everywhere
@pytest.mark.parametrize(
    ("n", "d", "m", "high"), [(0, 5, 3, 63), (1, 1, 4, 63), (50, 3, 7, 1), (900, 2, 300, 2), (5000, 40, 60, 63)]
)
def test_prefix_is_brute_force(index_of, n, d, m, high):
    features, queries = _features(n, n, d, -high, high), _features(1, 9, d, -high, high)
    ids = np.random.default_rng(2).permutation(5 * n)[:n].astype(np.int64) - n  # neither sorted nor dense nor positive
    found = index_of(features, ids).prefix(queries, m)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, _brute_force(features, ids, queries, m))


@everywhere
def test_records_in_a_period_are_ordered_too(index_of):
    features = np.tile(_features(5, 31, 3), (200, 1))  # the threshold's sample sees one value in 31: the guess is wrong
    ids = np.arange(len(features))
    queries = np.concatenate([features[:4], _features(6, 4, 3)])
    np.testing.assert_array_equal(index_of(features, ids).prefix(queries, 500), _brute_force(features, ids, queries, 500))


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_exact_at_the_largest_entries_and_dimensions(name):
    signs = np.array([[1], [-1]], dtype=np.int8)
    right = np.concatenate([63 * signs * np.ones((2, 4000), dtype=np.int8), _features(0, 30, 4000)])
    left = minus_twice(right)
    out = np.empty((len(left), len(right)), dtype=np.int32)
    PRODUCTS[name](left, right, out)
    np.testing.assert_array_equal(out, left.astype(np.int64) @ right.astype(np.int64).T)
    assert out.min() == -2 * 63 * 63 * 4000


def test_a_product_that_is_missing_or_wrong_is_not_chosen(monkeypatch):
    def wrong(left, right, out):
        out[:] = 1

    def missing(left, right, out):
        raise NotImplementedError

    for broken in (wrong, missing):
        monkeypatch.setattr(gemm, "PRODUCTS", {"int8": broken, "float32": gemm.float32_product})
        assert gemm._probe.__wrapped__() == "float32"
    with pytest.raises(InvalidInput, match="product"):
        choose_product("bfloat16")


def test_the_faster_product_is_chosen_on_a_busy_machine(monkeypatch):
    """Whatever slows a run, and most runs, does not decide: on a clock of the test's own, one run of six is undisturbed."""
    now, runs = [0.0], []

    def timed(name, seconds):
        def product(left, right, out):
            runs.append(name)
            gemm.float32_product(left, right, out)
            now[0] += seconds[runs.count(name) - 1]

        return product

    monkeypatch.setattr(gemm.time, "perf_counter", lambda: now[0])
    products = {"int8": timed("int8", [9, 9, 9, 1, 9, 9]), "float32": timed("float32", [3, 3, 4, 9, 3, 3])}
    monkeypatch.setattr(gemm, "PRODUCTS", products)
    assert gemm._probe.__wrapped__() == "int8"
    assert runs == ["int8", "float32"] * 6  # by turns, so that a busy second meets both


def test_float32_products_survive_reduced_precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        test_products_are_exact_at_the_largest_entries_and_dimensions("float32")
    finally:
        torch.set_float32_matmul_precision(before)


@everywhere
def test_an_inserted_record_reorders_nobody(index_of):
    features, queries = _features(0, 400, 4, -2, 2), _features(1, 20, 4, -2, 2)
    ids = np.arange(10, 410)
    before = index_of(features, ids).prefix(queries, 400)
    for new_id in (0, 5000):
        after = index_of(np.concatenate([features[:1], features]), np.concatenate([[new_id], ids])).prefix(queries, 401)
        np.testing.assert_array_equal(after[after > 0].reshape(20, 400) - 1, before)


@everywhere
def test_lists_are_kept_for_the_second_release_and_can_not_be_changed(monkeypatch, index_of):
    index = index_of(_features(0, 300, 6), np.arange(300))
    queries = _features(1, 8, 6)
    first = index.prefix(queries, 20)
    with monkeypatch.context() as patch:
        patch.setattr(index, "_search", None)
        again = index.prefix(queries[[5, 2]], 20)
    np.testing.assert_array_equal(again, first[[5, 2]])
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1
    np.testing.assert_array_equal(index.prefix(queries, 21)[:, :20], first)


@everywhere
@pytest.mark.parametrize(
    ("features", "ids", "rule"),
    [
        (np.zeros((2, 3), dtype=np.float32), np.arange(2), "int8"),
        (np.zeros((2, 4001), dtype=np.int8), np.arange(2), "4000"),
        (np.full((2, 3), 64, dtype=np.int8), np.arange(2), "63"),
        (np.full((2, 3), -128, dtype=np.int8), np.arange(2), "63"),
        (np.zeros((2, 3), dtype=np.int8), np.arange(3), "one for each row"),
        (np.zeros((2, 3), dtype=np.int8), np.zeros(2, dtype=np.int64), "unique"),
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
    with pytest.raises(InvalidInput, match="at least 0"):
        index.prefix(np.zeros((1, 3), dtype=np.int8), -1)
    assert index.prefix(np.zeros((0, 3), dtype=np.int8), 2).shape == (0, 2)


# --- votes of a sample ---------------------------------------------------------------------------------------------


def _sample_first(features, ids, labels, queries, k, classes, gamma, tape, keys) -> np.ndarray:
    """The definition: sample the whole data set, then take the min(k, |sample|) nearest."""
    votes = np.zeros((len(queries), classes), dtype=np.int64)
    for i, key in enumerate(keys):
        bits = tape.inclusion(gamma, [key], "screen", ids[None, :])[0]
        near = _brute_force(features[bits], ids[bits], queries[i : i + 1], k)[0]
        votes[i] = np.bincount(labels[bits][near], minlength=classes)
    return votes


class _Recorded(UnsafeTape):
    """A tape that notes for which records each query's bits were drawn."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.drawn: dict[str, list[int]] = {}

    def inclusion(self, probability, keys, release, ids):
        for key, row in zip(keys, ids, strict=True):
            self.drawn.setdefault(key, []).extend(row.tolist())
        return super().inclusion(probability, keys, release, ids)


@everywhere
@pytest.mark.parametrize(
    ("n", "k", "gamma"), [(0, 3, 0.5), (5, 9, 0.5), (700, 20, 0.15), (700, 200, 0.15), (700, 60, 1.0), (700, 3, 1e-10)]
)
def test_votes_are_those_of_sampling_first(index_of, n, k, gamma):
    features, queries = _features(0, n, 3, -2, 2), _features(1, 30, 3, -2, 2)
    ids, labels = np.random.default_rng(2).permutation(n).astype(np.int64), np.random.default_rng(3).integers(0, 4, n)
    tape, keys = UnsafeTape(7), [f"q{i}" for i in range(30)]
    index = index_of(features, ids)
    votes = sampled_votes(
        index, labels, queries, k=k, num_classes=4, sampling_probability=gamma, entropy=tape, keys=keys, release="screen"
    )
    assert votes.dtype == np.int64
    np.testing.assert_array_equal(votes, _sample_first(features, ids, labels, queries, k, 4, gamma, tape, keys))


@everywhere
@pytest.mark.parametrize("length", [1, 40, 64])
def test_a_prefix_that_runs_out_is_widened_and_no_bit_drawn_twice(monkeypatch, index_of, length):
    monkeypatch.setattr(neighbors, "prefix_length", lambda k, gamma: length)  # prefixes far too short for 30 hits
    monkeypatch.setattr(neighbors, "PREFIX_ENTRIES", 4 * length)  # and few queries at once
    features, queries = _features(0, 400, 3, -2, 2), _features(1, 30, 3, -2, 2)
    ids, labels = np.arange(400), np.random.default_rng(3).integers(0, 4, 400)
    tape, keys = _Recorded(7), [f"q{i}" for i in range(30)]
    votes = sampled_votes(
        index_of(features, ids),
        labels,
        queries,
        k=30,
        num_classes=4,
        sampling_probability=0.3,
        entropy=tape,
        keys=keys,
        release="screen",
    )
    np.testing.assert_array_equal(votes, _sample_first(features, ids, labels, queries, 30, 4, 0.3, UnsafeTape(7), keys))
    assert set(tape.drawn) == set(keys)
    assert all(len(drawn) == len(set(drawn)) for drawn in tape.drawn.values())


def test_a_planned_prefix_seldom_runs_out():
    from scipy.stats import binom

    for k in (1, 30, 300, 3000):
        for gamma in (0.01, 0.15, 0.9):
            assert binom.cdf(k - 1, prefix_length(k, gamma), gamma) < 2e-4
    assert binom.cdf(299, prefix_length(300, 0.15), 0.15) < 2e-5
    assert prefix_length(300, 1.0) == 300


def test_each_query_and_release_has_a_sample_of_its_own():
    features = _features(0, 500, 3)
    same_query = np.repeat(features[:1], 40, axis=0)
    labels = np.arange(500) % 5

    def votes(release: str) -> np.ndarray:
        source = SystemEntropy()
        return sampled_votes(
            ExactIndex(features, np.arange(500)),
            labels,
            same_query,
            k=50,
            num_classes=5,
            sampling_probability=0.3,
            entropy=source,
            keys=["q"] * 40,
            release=release,
        )

    one, two = votes("screen"), votes("screen")
    # No vector of votes has probability above 0.003, so 20 repeats come once in 10^11; 50 are sampled but once in 10^20.
    assert len(np.unique(one, axis=0)) > 20
    assert (one != two).any(axis=1).sum() > 20
    assert (one.sum(axis=1) == 50).all()


@st.composite
def _worlds(draw):
    """Raw rows with duplicates, ties and non-finite entries; labels; one more record somewhere; k, gamma, seed."""
    n, d = draw(st.integers(0, 30)), draw(st.integers(1, 3))
    entry = st.sampled_from([0.0, 1.0, -1.0, 2.0, float("nan"), float("inf"), 1e38, 1e-38])
    rows = np.array(draw(st.lists(st.lists(entry, min_size=d, max_size=d), min_size=n + 1, max_size=n + 1)), dtype=np.float32)
    labels = np.array(draw(st.lists(st.integers(0, 2), min_size=n + 1, max_size=n + 1)), dtype=np.int64)
    ids = np.array(draw(st.permutations(range(n + 1))), dtype=np.int64)
    queries = np.array(
        draw(st.lists(st.lists(st.integers(-2, 2), min_size=d, max_size=d), min_size=1, max_size=3)), dtype=np.float32
    )
    k, gamma = draw(st.integers(1, 12)), draw(st.sampled_from([0.05, 0.4, 0.9, 1.0]))
    return rows, labels, ids, queries, k, gamma, draw(st.integers(0, n)), draw(st.integers(0, 1000))


def _world_votes(rows, labels, ids, queries, k, gamma, tape, way) -> np.ndarray:
    embedder = Embedder(ExtractorSpec("raw", rows.shape[1:], 3), probe=None)
    features, finite = embedder.embed(rows)
    return sampled_votes(
        WAYS[way](features[finite], ids[finite]),
        labels[finite],
        embedder.embed(queries)[0],
        k=k,
        num_classes=3,
        sampling_probability=gamma,
        entropy=tape,
        keys=[f"q{i}" for i in range(len(queries))],
        release="screen",
    )


@given(_worlds(), st.sampled_from(sorted(WAYS)))
@settings(max_examples=200)
def test_an_added_record_moves_the_votes_by_nothing_one_or_one_swap(world, way):
    rows, labels, ids, queries, k, gamma, added, seed = world
    tape, others = UnsafeTape(seed), np.arange(len(rows)) != added
    before = _world_votes(rows[others], labels[others], ids[others], queries, k, gamma, tape, way)
    after = _world_votes(rows, labels, ids, queries, k, gamma, tape, way)
    one = np.eye(3, dtype=np.int64)[labels[added]]
    sampled = tape.inclusion(gamma, [f"q{i}" for i in range(len(queries))], "screen", np.full((len(queries), 1), ids[added]))
    for change, total, bit in zip(after - before, before.sum(axis=1), sampled[:, 0], strict=True):
        if not bit or not np.isfinite(rows[added]).all():
            assert not change.any()
        elif total < k:
            np.testing.assert_array_equal(change, one)
        elif change.any():
            displaced = one - change
            assert sorted(displaced) == [0, 0, 1]
    assert (after.sum(axis=1) <= k).all()
    one_by_one = [_world_votes(rows, labels, ids, queries[:1], k, gamma, tape, way)[0]]
    np.testing.assert_array_equal(one_by_one, after[:1])


# --- the measured size ---------------------------------------------------------------------------------------------


def _hog_like(n: int, d: int, seed: int) -> np.ndarray:
    """Three quarters zeros, the rest like L2-normalised HOG entries, and duplicates."""
    rng = np.random.default_rng(seed)
    features = rng.integers(1, 40, (n, d), dtype=np.int8)
    features *= rng.integers(0, 4, (n, d), dtype=np.int8) == 0
    features[n // 2 : n // 2 + n // 20] = features[: n // 20]
    return features


def _check_bits(features: np.ndarray, queries: np.ndarray, m: int) -> None:
    """The same lists for batches of 1, 7, 256, one and two threads, on an accelerator where there is one, a record before all
    others; equal to brute force."""
    n = len(features)
    expected = np.empty((len(queries), m), dtype=np.int64)
    norms = np.concatenate([(features[s : s + 4096].astype(np.int64) ** 2).sum(axis=1) for s in range(0, n, 4096)])
    cross = np.empty((len(queries), n), dtype=np.int64)
    for start in range(0, n, 4096):  # float64 holds these integers, too: an oracle that needs neither int8 nor float32
        cross[:, start : start + 4096] = queries.astype(np.float64) @ features[start : start + 4096].astype(np.float64).T
    for i, row in enumerate(cross):
        key = ((norms - 2 * row - (norms - 2 * row).min()) << 32) | np.arange(n)
        expected[i] = np.sort(key)[:m] & 0xFFFFFFFF
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            index = ExactIndex(features, np.arange(1, n + 1))
            for batch in (7, 256):
                found = np.concatenate([index.prefix(queries[i : i + batch], m) for i in range(0, len(queries), batch)])
                np.testing.assert_array_equal(found, expected)
            for i in range(len(queries)):
                np.testing.assert_array_equal(index.prefix(queries[i : i + 1], m)[0], expected[i])
        for name in PRESENT[1:]:
            found = DeviceIndex(features, np.arange(1, n + 1), device=torch.device(name)).prefix(queries, m)
            np.testing.assert_array_equal(found, expected)
        index = ExactIndex(np.concatenate([queries[:1], features]), np.arange(n + 1))
        found = index.prefix(queries, m)
        assert found[0, 0] == 0  # the record inserted is the first query
        for got, want in zip(found, expected, strict=True):
            others = got[got > 0] - 1
            assert len(others) >= m - 1
            np.testing.assert_array_equal(others, want[: len(others)])
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_256_queries_among_60000_are_the_same_bits_everywhere():
    features = _hog_like(60_000, 1296, 0)
    _check_bits(features, np.concatenate([features[:56], _hog_like(200, 1296, 1)]), 2513)


@pytest.mark.slow
def test_memory_of_a_batch_is_bounded():
    index = ExactIndex(_hog_like(60_000, 1296, 0), np.arange(60_000))
    queries = _hog_like(256, 1296, 1)
    tracemalloc.start()
    try:
        for k, count in ((300, 256), (20_000, 40)):  # as planned, and prefixes that cover the data set
            sampled_votes(
                index,
                np.zeros(60_000, dtype=np.int64),
                queries[:count],
                k=k,
                num_classes=10,
                sampling_probability=0.15,
                entropy=SystemEntropy(),
                keys=["q"] * count,
                release="screen",
            )
        assert tracemalloc.get_traced_memory()[1] < 1 << 30
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.realdata
def test_256_mnist_queries_are_the_same_bits_everywhere(realdata_root):
    from torchvision.datasets import MNIST

    hog = Embedder(ExtractorSpec("hog", (28, 28, 1), 10), probe=None, workers=os.cpu_count() or 1)
    parts = [MNIST(realdata_root, train=train).data.numpy()[..., None] for train in (True, False)]
    _check_bits(hog.embed(parts[0])[0], hog.embed(parts[1][:256])[0], 2513)
