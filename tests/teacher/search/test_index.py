"""The k nearest persons: against sorting all rows, on every device, for persons of any size."""

import numpy as np
import pytest

from labelwall.teacher.search import index as index_file
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.index import ByPerson
from labelwall.teacher.search.kernels import Similar
from tests.seeded_noise import SeededNoise
from tests.teacher.search.indexes import brute_force, everywhere, int_features, sampled


def persons_of(sizes):
    """Codes by row, mixed: int64 [sum of sizes]."""
    codes = np.random.default_rng(5).integers(-(2**62), 2**62, len(sizes))
    return np.random.default_rng(6).permutation(np.repeat(codes, sizes))


def nearest_persons(features, persons, query, k):
    """Rows of the k nearest persons, by a walk over all rows in order."""
    rows: dict[int, int] = {}
    for row in brute_force(features, query[None], len(features))[0].tolist():
        rows.setdefault(int(persons[row]), row)
    return list(rows.values())[:k]


SIZES = {
    "one row each": [1] * 300,
    "one to a thousand": [1, 2, 3, 10, 30, 100, 300, 1000, *[1] * 40, *[7] * 20],
    "one person": [50],
    "nobody": [],
}


@everywhere
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("k", "entries"), [(1, 9), (60, 1 << 23), (5000, 64)])
def test_lists_are_those_of_a_walk_over_all_rows(index_of, sizes, k, entries, monkeypatch):
    monkeypatch.setattr(index_file, "LIST_ENTRIES", entries)
    persons, n = persons_of(sizes), sum(sizes)
    features, queries = int_features(0, n, 3, -3, 3), int_features(1, 20, 3, -3, 3)
    index = index_of(features, np.arange(n), persons)
    ranked = index.units
    assert len(ranked) == len(sizes)
    expected = [nearest_persons(features, persons, query, k) for query in queries]
    for _ in range(2):  # once searched, once from what is kept
        assert ranked.prefix(queries, k).tolist() == expected
    few = min(k, 4)
    assert ranked.prefix(queries[:3], few).tolist() == [row[:few] for row in expected[:3]]


@everywhere
@pytest.mark.parametrize(("k", "gamma"), [(20, 0.5), (300, 0.5), (4, 1.0)])
def test_votes_are_those_of_sampling_persons_first(index_of, k, gamma):
    """One bit a person; the sampled persons' nearest rows vote, of the k nearest persons."""
    persons = persons_of([1, 2, 3, 5, 8, 13, 200, *[4] * 60])
    n = len(persons)
    features, queries = int_features(0, n, 3, -3, 3), int_features(1, 20, 3, -3, 3)
    labels, tape = np.random.default_rng(3).integers(0, 4, n), SeededNoise(7)
    index = index_of(features, np.arange(n), persons)
    votes = sampled(index, labels, queries, k, gamma, tape)
    codes = np.unique(persons)
    for row, query in enumerate(queries):
        bits = tape.inclusion(gamma, [f"q{row}"], "screen", codes[None, :])[0] | (gamma == 1)
        held = np.isin(persons, codes[bits])
        near = nearest_persons(features[held], persons[held], query, k)
        assert votes[row].tolist() == np.bincount(labels[held][near], minlength=4).tolist()


def test_a_person_is_as_similar_as_its_most_similar_row():
    """By weight, then by the row's id, wherever the row lies."""
    persons = np.array([7, 3, 7, 3, 9], dtype=np.int64)
    ids, labels = np.array([10, 20, 30, 40, 50]), np.array([0, 1, 2, 3, 4])
    ranked = ByPerson(ExactIndex(int_features(0, 5, 2), ids), persons)
    near = Similar(np.array([0, 1, 2, 3], dtype=np.int32), np.array([9, 255, 9, 3], dtype=np.uint8))
    strongest = ranked.strongest(near, ids, labels)
    assert strongest.rows.tolist() == [0, 1]  # persons 3 and 7
    assert strongest.weights.tolist() == [255, 9]
    assert strongest.labels.tolist() == [1, 0]
