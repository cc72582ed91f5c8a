"""Votes in cells: what a row or a person adds, by brute force."""

import math
from collections import Counter
from fractions import Fraction as F

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from labelwall.teacher.mechanisms.sums import MAX_PARTS
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes_in_cells import shared_votes
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.label_kinds import STEPS

CLASSES = 3
few = st.sampled_from([-63, -1, 0, 1, 63])  # ties and duplicates


@settings(max_examples=80)
@given(st.data())
def test_a_record_adds_one_vote_in_each_of_its_cells_and_changes_nothing_else(data):
    d, m, n = (data.draw(st.integers(1, most)) for most in (3, 6, 8))
    neighbours = data.draw(st.integers(1, m))
    features = data.draw(arrays(np.int8, (n, d), elements=few))
    labels = data.draw(arrays(np.int64, n, elements=st.integers(0, CLASSES - 1)))
    cells = data.draw(arrays(np.int8, (m, d), elements=few))
    expected = np.zeros((m, CLASSES), dtype=int)
    for row, label in zip(features.astype(int), labels, strict=True):
        apart = ((row - cells) ** 2).sum(axis=1).tolist()
        for cell in sorted(range(m), key=lambda c, apart=apart: (apart[c], c))[:neighbours]:
            expected[cell, label] += 1  # L2: sqrt(neighbours)
    index = ExactIndex(features, np.arange(n))
    drawn = Voters(index, labels, CLASSES, cells[None]).cell_votes(neighbours)[0]
    assert drawn.tolist() == expected.ravel().tolist()


@settings(max_examples=160)
@given(st.data())
def test_a_score_moves_by_one_vector_of_length_one(data):
    """By brute force in Fractions, of rows and of persons; no vector is longer than ``parts``."""
    space = data.draw(st.sampled_from(["class", "attributes", "value"]))
    n, parts = data.draw(st.integers(1, 8)), data.draw(st.sampled_from([1, 100, MAX_PARTS]))
    outputs = 1 if space == "value" else CLASSES
    features = data.draw(arrays(np.int8, (n, 3), elements=few))
    codes = {"class": range(CLASSES), "attributes": range(8), "value": (0, 1, 1000, STEPS)}
    labels = data.draw(arrays(np.int64, n, elements=st.sampled_from(codes[space])))
    persons = data.draw(st.none() | arrays(np.int64, n, elements=st.integers(0, 2)))
    cells = 63 * np.eye(outputs, 3, dtype=np.int8)
    expected = np.zeros(2 * outputs, dtype=int)
    groups = [[row] for row in range(n)]
    if persons is not None:
        groups = [np.flatnonzero(persons == p).tolist() for p in np.unique(persons)]
    for rows in groups:
        if space == "class":
            votes = np.zeros(2 * CLASSES, dtype=int)
            for row, label in zip(features[rows].astype(int), labels[rows], strict=True):
                wrong = int(((row - cells.astype(int)) ** 2).sum(axis=1).argmin() != label)
                votes[wrong * CLASSES + label] += 1
            shares = [F(int(vote), len(rows)) * parts for vote in votes.cumsum()]
            own = np.diff([0, *map(math.floor, shares)])
            assert own.sum() == parts
            assert (np.abs(own - parts * votes / len(rows)) < 1).all()
        elif space == "value":
            squares = [
                min(1, (F(int(features[r, 0]), 63) - F(int(labels[r]), STEPS) * 2 + 1) ** 2 * 4)
                for r in rows
            ]
            right = sum(parts - math.floor(square * parts) for square in squares) // len(rows)
            own = np.array([right, parts - right])
        else:
            right = [[(features[r, j] > 0) == (labels[r] >> j & 1) for j in range(3)] for r in rows]
            whole = math.floor(parts / math.sqrt(3))
            shares = [math.floor(F(int(k), len(rows)) * whole) for k in np.sum(right, axis=0)]
            own = np.array([*shares, *(whole - share for share in shares)])
        assert (own**2).sum() <= parts**2
        expected += own
    index = ExactIndex(features, np.arange(n), persons)
    drawn = Voters(index, labels, outputs, cells[None]).right_votes(space, parts)[0]
    assert drawn.tolist() == expected.tolist()


@settings(max_examples=80)
@given(st.data())
def test_a_record_is_in_one_bin_of_each_score_once(data):
    """By brute force over neighbouring data sets: each record, or person, added to all others and
    taken from them. Squares are below ``parts`` squared, and below twice that for a replacement."""
    space = data.draw(st.sampled_from(["class", "attributes"]))
    n, parts = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([1, 100, MAX_PARTS]))
    bins, scores, kinds = data.draw(st.integers(1, 4)), *((1, 3), (CLASSES, 2))[space != "class"]
    features = data.draw(arrays(np.int8, (n, 4), elements=few))
    labels = data.draw(arrays(np.int64, n, elements=st.integers(0, 2 if scores == 1 else 7)))
    persons = data.draw(st.none() | arrays(np.int64, n, elements=st.integers(0, 2)))
    cells = data.draw(arrays(np.int8, (scores * bins, 4), elements=few))
    of = np.arange(n) if persons is None else persons

    def counted(there):
        own = None if persons is None else persons[there]
        index = ExactIndex(features[there], np.arange(there.sum()), own)
        return Voters(index, labels[there], CLASSES, cells[None]).table_votes(space, parts)[0]

    def adds(rows):
        """In Fractions: the shares of the rows, each sum up to a count rounded down."""
        vector = []
        for score in range(scores):
            counts = Counter[int]()
            for row in rows:
                apart = (features[row].astype(int) - cells[score * bins :][:bins].astype(int)) ** 2
                truth = labels[row] if scores == 1 else labels[row] >> score & 1
                counts[int(truth) * bins + int(apart.sum(axis=1).argmin())] += 1
            whole = math.floor(math.sqrt(F(parts**2, scores)))
            shares = [F(counts[at], len(rows)) * whole for at in range(bins * kinds)]
            vector += np.diff([0, *map(math.floor, np.cumsum(shares))]).tolist()
        return np.array(vector)

    everyone = np.ones(n, dtype=bool)
    vectors = [adds(np.flatnonzero(of == one)) for one in np.unique(of)]
    assert counted(everyone).tolist() == sum(vectors).tolist()
    for one, vector in zip(np.unique(of), vectors, strict=True):
        assert (counted(everyone) - counted(of != one)).tolist() == vector.tolist()
        assert (vector**2).sum() <= parts**2
        assert persons is not None or parts == 1 or np.count_nonzero(vector) == scores
        assert all(((vector - other) ** 2).sum() <= 2 * parts**2 for other in vectors)


def test_a_person_casts_the_root_of_the_share_of_its_rows():
    """In Fractions and integer roots, person by person; a person of one row casts whole votes."""
    rng = np.random.default_rng(3)
    cast = np.array([rng.permutation(9)[:2] for _ in range(40)])
    persons = rng.integers(-3, 6, 40)
    persons[:2] = 77, 78
    for parts in (1, 10, MAX_PARTS):
        ballots, votes = shared_votes(cast, persons, parts)
        expected = []
        for person in np.unique(persons):
            own = cast[persons == person]
            for ballot, times in Counter(own.ravel().tolist()).items():
                expected.append((ballot, math.isqrt(math.floor(F(times, len(own)) * parts**2))))
        assert sorted(zip(ballots.tolist(), votes.tolist(), strict=True)) == sorted(expected)
        assert (cast[0, 0], parts) in expected
