"""Votes of a Poisson sample equal those of sampling first, and one record moves them little."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwall.teacher.search import poisson_sampling
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.messages import ExtractorSpec
from tests.seeded_noise import SeededNoise
from tests.teacher.search.indexes import WAYS, brute_force, everywhere, int_features, sampled


def _sample_first(features, ids, labels, queries, k, gamma, tape):
    """The definition: sample the whole data set, then take the min(k, |sample|) nearest."""
    votes = np.zeros((len(queries), 4), dtype=np.int64)
    for i in range(len(queries)):
        bits = tape.inclusion(gamma, [f"q{i}"], "screen", ids[None, :])[0]
        near = brute_force(features[bits], queries[i : i + 1], k)[0]
        votes[i] = np.bincount(labels[bits][near], minlength=4)
    return votes


class _Recorded(SeededNoise):
    """A tape that records for which records each query's bits were drawn."""

    def __init__(self, seed):
        super().__init__(seed)
        self.drawn: dict[str, list[int]] = {}

    def inclusion(self, probability, keys, release, ids):
        for key, row in zip(keys, ids, strict=True):
            self.drawn.setdefault(key, []).extend(row.tolist())
        return super().inclusion(probability, keys, release, ids)


@everywhere
@pytest.mark.parametrize(
    ("n", "k", "gamma"),
    [(0, 3, 0.5), (5, 9, 0.5), (700, 20, 0.15), (700, 200, 0.15), (700, 60, 1.0), (700, 3, 1e-10)],
)
def test_votes_are_those_of_sampling_first(index_of, n, k, gamma):
    features, queries = int_features(0, n, 3, -2, 2), int_features(1, 30, 3, -2, 2)
    ids, labels = 3 * np.arange(n) - n, np.random.default_rng(3).integers(0, 4, n)
    votes = sampled(index_of(features, ids), labels, queries, k, gamma, SeededNoise(7))
    assert votes.dtype == np.int64
    expected = _sample_first(features, ids, labels, queries, k, gamma, SeededNoise(7))
    np.testing.assert_array_equal(votes, expected)


@everywhere
@pytest.mark.parametrize("length", [1, 40, 64])
def test_a_prefix_that_runs_out_is_widened_and_no_bit_drawn_twice(monkeypatch, index_of, length):
    # Prefixes far too short for 30 hits, and few queries at once.
    monkeypatch.setattr(poisson_sampling, "prefix_length", lambda k, gamma: length)
    monkeypatch.setattr(poisson_sampling, "PREFIX_ENTRIES", 4 * length)
    features, queries = int_features(0, 400, 3, -2, 2), int_features(1, 30, 3, -2, 2)
    ids, labels = np.arange(400), np.random.default_rng(3).integers(0, 4, 400)
    tape = _Recorded(7)
    votes = sampled(index_of(features, ids), labels, queries, 30, 0.3, tape)
    expected = _sample_first(features, ids, labels, queries, 30, 0.3, SeededNoise(7))
    np.testing.assert_array_equal(votes, expected)
    assert len(tape.drawn) == 30
    assert all(len(drawn) == len(set(drawn)) for drawn in tape.drawn.values())


@st.composite
def _worlds(draw):
    """Rows with duplicates, ties and non-finite entries; labels; queries; k, gamma; the position
    of the added record; a seed."""
    n, d = draw(st.integers(0, 30)), draw(st.integers(1, 3))
    entry = st.sampled_from([0.0, 1.0, -1.0, 2.0, float("nan"), float("inf"), 1e38, 1e-38])
    row, point = (st.lists(e, min_size=d, max_size=d) for e in (entry, st.integers(-2, 2)))
    labels = st.lists(st.integers(0, 2), min_size=n + 1, max_size=n + 1)
    rows = np.array(draw(st.lists(row, min_size=n + 1, max_size=n + 1)), dtype=np.float32)
    labels = np.array(draw(labels), dtype=np.int64)
    queries = np.array(draw(st.lists(point, min_size=1, max_size=3)), dtype=np.float32)
    k, gamma = draw(st.integers(1, 12)), draw(st.sampled_from([0.05, 0.4, 0.9, 1.0]))
    return rows, labels, queries, k, gamma, draw(st.integers(0, n)), draw(st.integers(0, 1000))


def _world_votes(rows, labels, ids, queries, k, gamma, tape, way):
    embedder = Embedder(ExtractorSpec("raw", rows.shape[1:], 3))
    features, finite = embedder.embed(rows)
    index, asked = WAYS[way](features[finite], ids[finite]), embedder.embed(queries)[0]
    return sampled(index, labels[finite], asked, k, gamma, tape)


@given(_worlds(), st.sampled_from(sorted(WAYS)))
@settings(max_examples=200)
def test_an_added_record_moves_the_votes_by_nothing_one_or_one_swap(world, way):
    rows, labels, queries, k, gamma, added, seed = world
    ids = np.arange(len(rows))
    tape, others = SeededNoise(seed), ids != added
    before = _world_votes(rows[others], labels[others], ids[others], queries, k, gamma, tape, way)
    after = _world_votes(rows, labels, ids, queries, k, gamma, tape, way)
    one = np.eye(4, dtype=np.int64)[labels[added]]
    keys, own = [f"q{i}" for i in range(len(queries))], np.full((len(queries), 1), ids[added])
    sampled = tape.inclusion(gamma, keys, "screen", own)
    for change, total, bit in zip(after - before, before.sum(axis=1), sampled[:, 0], strict=True):
        if not bit or not np.isfinite(rows[added]).all():
            assert not change.any()
        elif total < k:
            np.testing.assert_array_equal(change, one)
        elif change.any():
            displaced = one - change
            assert sorted(displaced) == [0, 0, 0, 1]
    assert (after.sum(axis=1) <= k).all()
    one_by_one = [_world_votes(rows, labels, ids, queries[:1], k, gamma, tape, way)[0]]
    np.testing.assert_array_equal(one_by_one, after[:1])


def test_a_sample_keeps_each_record_alone(monkeypatch):
    """The tape's bits, record by record; in blocks of any size; all records where gamma is 1."""
    rng, tape, keys = np.random.default_rng(1), SeededNoise(2), ["a", "b", "c"]
    counts = rng.integers(0, 40, (3, 4))
    expected = np.zeros_like(counts)
    for query, key in enumerate(keys):
        for label in range(4):
            own = ((label << 32) + np.arange(counts[query, label]))[None]
            expected[query, label] = tape.inclusion(0.3, [key], "screen", own).sum()
    for entries in (1 << 20, 21):
        monkeypatch.setattr(poisson_sampling, "PREFIX_ENTRIES", entries)
        assert (poisson_sampling.thinned(counts, 0.3, keys, "screen", tape) == expected).all()
    assert (poisson_sampling.thinned(counts, 1.0, keys, "screen", tape) == counts).all()
    assert poisson_sampling.thinned(counts[:0], 0.3, [], "screen", tape).shape == (0, 4)
