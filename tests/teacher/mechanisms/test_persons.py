"""One person more, of many rows, moves what is released by no more than the price allows: each
bound is that of a row, which the curves and pairs price."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction as F
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from labelwall.teacher.classifiers.linear_ensemble import train_ensemble
from labelwall.teacher.mechanisms import gradient, sums, votes_in_cells
from labelwall.teacher.mechanisms import voters as voters_module
from labelwall.teacher.mechanisms.attributes import GRID, clipped
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.overlap import clique_bounds
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.label_kinds import STEPS, unpack
from labelwall.wall.matrices import CLIP, COUNT, MAX_GAIN
from tests.seeded_noise import SeededNoise
from tests.teacher.audits import faults

CLASSES, QUERIES, DIMENSIONS = 3, 6, 2
KEYS = [f"q{i}" for i in range(QUERIES)]


@dataclass(frozen=True)
class Drawn:
    """Rows of some persons; the person 0 is there with all its rows, or not at all."""

    features: np.ndarray
    labels: np.ndarray
    ids: np.ndarray
    persons: np.ndarray
    queries: np.ndarray

    def voters(self, there, queries=None):
        kept = self.persons >= (0 if there else 1)
        index = ExactIndex(self.features[kept], self.ids[kept], self.persons[kept])
        asked = self.queries if queries is None else queries
        return Voters(index, self.labels[kept], CLASSES, asked, length=10.0)

    def moved(self, statistic, queries=None):
        """How the statistic of all queries differs with the person."""
        return statistic(self.voters(True, queries)) - statistic(self.voters(False, queries))


@st.composite
def data(draw, labels=CLASSES):
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, spread = sum(sizes), draw(st.sampled_from([1, 4, 40]))
    return Drawn(
        rng.integers(-spread, spread + 1, (n, DIMENSIONS)).astype(np.int8),
        rng.integers(0, labels, n),
        rng.integers(1, 4, n).cumsum(),
        rng.permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int64),
        rng.integers(-spread, spread + 1, (QUERIES, DIMENSIONS)).astype(np.int8),
    )


def squared(moves):
    """The largest squared L2 length of a row."""
    return int((moves.astype(np.int64) ** 2).sum(axis=1).max())


# No example is made smaller: of the planted faults nobody reads one.
few = settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
FOUND = (AssertionError, ExceptionGroup)  # of one failing example, or of several kinds
SAMPLED = st.sampled_from([0.3, 0.7, 1.0])


@few
@given(data(), st.integers(1, 6), SAMPLED, st.integers(0, 99))
def test_votes(drawn, k, gamma, seed):
    """Private-kNN, naive kNN, batch_knn without radii, the median's cells: e_a, or e_a - e_b."""
    moves = drawn.moved(lambda v: v.votes(k, gamma, KEYS, "screen", SeededNoise(seed)))
    assert squared(moves) <= 2
    assert np.abs(moves).max() <= 1
    assert set(moves.sum(axis=1).tolist()) <= {0, 1}


@few
@given(data(labels=1 << CLASSES), st.integers(1, 6), SAMPLED, st.integers(1, 3))
def test_attributes(drawn, k, gamma, tau):
    def statistic(v):
        cast = clipped(unpack(v.labels, CLASSES), tau)
        return v.votes(k, gamma, KEYS, "counts", SeededNoise(3), cast)

    assert squared(drawn.moved(statistic)) <= 2 * tau * GRID**2


@few
@given(data(), st.integers(1, 4), st.sampled_from([1, 7, sums.MAX_PARTS]))
def test_cells(drawn, neighbours, parts):
    """A person's votes are no longer than ``neighbours`` whole votes, and at most whole."""
    moves = drawn.moved(lambda v: v.cell_votes(neighbours, parts), drawn.queries[np.newaxis])
    assert squared(moves) <= parts**2 * neighbours
    assert moves.min() >= 0
    assert moves.max() <= parts


@few
@given(
    data(labels=1 << CLASSES),
    st.sampled_from(["class", "attributes"]),
    st.integers(1, 4),
    st.sampled_from([1, 7, sums.MAX_PARTS]),
)
def test_tables(drawn, space, bins, parts):
    """A person gives one vote in all, or as much to each attribute, in any rows and any cells."""
    classes = 1 << CLASSES if space == "class" else CLASSES
    scores = 1 if space == "class" else CLASSES
    cells = np.tile(drawn.queries, (2, 2, 1))[:, : scores * bins]
    moves = drawn.moved(lambda v: replace(v, num_classes=classes).table_votes(space, parts), cells)
    assert moves.min() >= 0
    assert squared(moves) <= parts**2
    each = math.isqrt(parts**2 // scores)
    assert (moves.reshape(2, scores, -1).sum(axis=2) == each).all()


SPACES = {"class": (3, range(3)), "attributes": (2, range(4)), "value": (1, (0, 1000, STEPS))}


@pytest.mark.parametrize("parts", [1, 10, sums.MAX_PARTS])
@pytest.mark.parametrize("space", SPACES)
def test_scores(space, parts):
    """Every person of at most three rows, beside others or alone, adds the shares of its own rows
    in Fractions, the right ones rounded down, and no more than a vote in length."""
    outputs, labels = SPACES[space]
    said = [np.array(row, dtype=np.int8) for row in product([-63, 20, 63], repeat=outputs)]
    if space == "class":
        said = list(63 * np.eye(3, dtype=np.int8))
    kinds = list(product(said, labels))
    others = [kinds[k % len(kinds)] for k in (0, 3, 4, 7)]
    whole = math.isqrt(parts**2 // outputs) if space == "attributes" else parts

    def counted(rows, persons):
        features = np.array([row for row, _ in rows], dtype=np.int8).reshape(-1, outputs)
        index = ExactIndex(features, np.arange(len(rows)), np.array(persons, dtype=np.int64))
        cells = 63 * np.eye(outputs, dtype=np.int8)[None]
        voters = Voters(index, np.array([label for _, label in rows], int), outputs, cells)
        return voters.right_votes(space, parts)[0]

    def right_and_wrong(row, label):
        if space == "value":
            error = (F(int(row[0]), 63) - (F(2 * label, STEPS) - 1)) ** 2 * 4
            wrong = math.floor(min(F(1), error) * parts)
            return [parts - wrong, wrong]
        if space == "class":
            right = [int(row.argmax() == label == k) for k in range(3)]
            return [parts * r for r in (*right, *(int(label == k) - right[k] for k in range(3)))]
        right = [(int(row[j]) > 0) == bool(label >> j & 1) for j in range(outputs)]
        return [whole * r for r in (*right, *(not each for each in right))]

    nobody = counted([], [])
    assert not nobody.any()
    beside = counted(others, [7, 7, 8, 9])
    sizes = (1, 2) if len(kinds) > 9 else (1, 2, 3)
    for rows in (own for size in sizes for own in combinations_with_replacement(kinds, size)):
        adds = counted(rows, [5] * len(rows))
        moved = counted([*rows, *others], [5] * len(rows) + [7, 7, 8, 9]) - beside
        assert moved.tolist() == adds.tolist()
        assert (adds >= 0).all()
        assert (adds**2).sum() <= parts**2
        exact = [
            F(sum(column), len(rows))
            for column in zip(*(right_and_wrong(*row) for row in rows), strict=True)
        ]
        assert all(abs(a - e) < 1 for a, e in zip(adds.tolist(), exact, strict=True))
        pairs = [(sum(adds[:outputs]), sum(exact[:outputs]), sum(adds))]
        if space == "attributes":
            pairs = [(adds[j], exact[j], adds[j] + adds[j + outputs]) for j in range(outputs)]
        for right, share, total in pairs:
            assert right == math.floor(share)
            assert total == (whole if space == "attributes" else parts)


@few
@given(
    data(labels=1 << CLASSES),
    st.integers(0, 10**6),
    st.sampled_from([1, 2, MAX_GAIN]),
    st.sampled_from(["class", "attributes", "value"]),
)
def test_gradients(drawn, seed, gain, space):
    shape = 2, DIMENSIONS + 1, {"class": 1 << CLASSES, "attributes": CLASSES, "value": 1}[space]
    weights = np.random.default_rng(seed).integers(-32767, 32768, shape).astype(np.int16)
    moves = drawn.moved(lambda v: v.gradients(1.0, space, gain), weights)
    assert squared(moves[:, :-1]) <= CLIP**2
    assert moves[:, -1].min() >= COUNT // gain - 1
    assert moves[:, -1].max() <= COUNT
    assert gain > 1 or (moves[:, -1] == COUNT).all()


@few
@given(data(), st.integers(0, 60))
def test_balls(drawn, radius):
    """A person is one point of a batch: its balls are a clique, and it adds 1 to one count each."""
    radii = np.full(QUERIES, radius**2, dtype=np.int64)
    moves = drawn.moved(lambda v: v.ball_votes(radii))
    inside = moves.any(axis=1)
    assert moves.min() >= 0
    assert (moves.sum(axis=1) == inside).all()
    sizes = clique_bounds(drawn.queries, radii, "local")
    assert (sizes[inside] >= inside.sum()).all()
    counts = drawn.moved(lambda v: v.ball_counts(np.array([0, 9, 100, 10**6])))
    assert counts.min() >= 0
    assert counts.max() <= 1
    assert sorted(drawn.moved(lambda v: v.grid_counts(4)).tolist()) == [*[0] * 15, 1]


@few
@given(data(), st.integers(0, 60), SAMPLED)
def test_sampled_balls(drawn, radius, gamma):
    """A person votes in each ball with its nearest row there: e_a for each query, or nothing."""
    radii = np.full(QUERIES, radius**2, dtype=np.int64)
    tape = SeededNoise(4)
    moves = drawn.moved(lambda v: v.sampled_ball_votes(radii, gamma, KEYS, "screen", tape))
    assert moves.min() >= 0
    assert moves.sum(axis=1).max() <= 1


@few
@given(data())
def test_classifiers(drawn):
    """All rows of a person are in one shard: at most one classifier changes, by one vote."""

    def weights(there):
        kept = drawn.persons >= (0 if there else 1)
        columns = (each[kept] for each in (drawn.features, drawn.labels, drawn.ids))
        ensemble = train_ensemble(
            *columns, owners=drawn.persons[kept], num_classes=CLASSES, teachers=5, key=bytes(32)
        )
        return ensemble.weights

    changed = (weights(True) != weights(False)).any(axis=(1, 2))
    assert changed.sum() <= 1


@few
@given(data(), st.booleans())
def test_individual_budgets(drawn, hashed):
    """A person pays once for what its most similar row says; the others pay as without it."""
    mechanism = IndKnn(threshold=0.5, sigma_count=2.0, rho=0.5, tables=2 * hashed, bits=1)
    select, hashing = mechanism.select(10.0), mechanism.hashing()
    near = [drawn.voters(there).similar(select, hashing) for there in (True, False)]
    rows = [drawn.voters(True).index.similar(drawn.queries, select, hashing)]
    everybody = np.unique(drawn.persons)
    for with_it, without, of_rows in zip(*near, *rows, strict=True):
        others = everybody[with_it.rows] > 0
        assert len(np.unique(with_it.rows)) == len(with_it.rows)
        assert (with_it.rows[others] - 1).tolist() == without.rows.tolist()
        assert with_it.weights[others].tolist() == without.weights.tolist()
        theirs = [] if without.labels is None else without.labels.tolist()
        assert with_it.labels[others].tolist() == theirs
        for person, weight in zip(with_it.rows, with_it.weights, strict=True):
            own = drawn.persons[of_rows.rows] == everybody[person]
            assert weight == of_rows.weights[own].max()


def test_many_rows_say_more_precisely_what_one_says():
    """A person's gradient is the average of its rows', rounded towards 0; a gain clips it."""
    rng = np.random.default_rng(0)
    features = rng.integers(-20, 21, (12, DIMENSIONS)).astype(np.int8)
    labels, ids = rng.integers(0, CLASSES, 12), np.arange(12)
    weights = rng.integers(-99, 99, (1, DIMENSIONS + 1, CLASSES)).astype(np.int16)
    persons = np.array([0] * 7 + [1] + [2, 2] * 2)

    def summed(rows, persons, gain=1):
        index = ExactIndex(features[rows], ids[rows], persons)
        return Voters(index, labels[rows], CLASSES, weights, 10.0).gradients(1.0, gain=gain)[0]

    expected = np.zeros_like(summed(ids, None))
    boosted = [0] * len(expected)
    for person in range(3):
        of_rows = np.array([summed(np.array([r]), None) for r in np.flatnonzero(persons == person)])
        average = np.trunc(of_rows.sum(axis=0) / len(of_rows)).astype(np.int64)
        expected += average
        square = sum(9 * entry**2 for entry in average[:-1].tolist())
        length = max(CLIP, math.isqrt(square - 1) + 1)
        clipped = [math.trunc(F(3 * CLIP * entry, length)) for entry in average[:-1].tolist()]
        clipped.append(COUNT * CLIP // length)
        boosted = [old + new for old, new in zip(boosted, clipped, strict=True)]
    assert summed(ids, persons).tolist() == expected.tolist()
    assert summed(ids, persons, gain=3).tolist() == boosted


# --- faults that these tests must find ---


def by_row(monkeypatch):
    whole = ExactIndex.total

    def total(index, *rest):
        return whole(ExactIndex(index.features, index.ids), *rest)

    monkeypatch.setattr(ExactIndex, "total", total)


def scores_by_roots(monkeypatch):
    whole = votes_in_cells.shared_votes
    monkeypatch.setattr(votes_in_cells, "shared_votes", lambda *cast, roots: whole(*cast))


def unclipped_gain(monkeypatch):
    monkeypatch.setattr(gradient, "_boosted", lambda a, gain: (gain * a, COUNT + 0 * a[:, 0, 0]))


def two_regions(monkeypatch):
    monkeypatch.setattr(voters_module, "one_row_each", lambda count, _, *rest: count(*rest))


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[Callable[[], None], ...]]] = {
    "a second ballot": (faults.second_ballots, (test_votes,)),
    "a ballot of each row": (by_row, (test_sampled_balls,)),
    "an unclipped histogram": (faults.unclipped_cells, (test_cells,)),
    "a score of each row": (by_row, (lambda: test_scores("class", 10), test_tables)),
    "a score of roots": (scores_by_roots, (lambda: test_scores("class", 10),)),
    "an unclipped gain": (unclipped_gain, (test_gradients,)),
    "an unclipped sum": (faults.unclipped_gradients, (test_gradients,)),
    "a person in two regions": (two_regions, (test_balls,)),
    "a shard by row": (faults.shards_by_row, (test_cells, test_gradients, test_balls)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, monkeypatch):
    plant, tests = FAULTS[fault]
    plant(monkeypatch)
    for test in tests:
        with pytest.raises(FOUND):
            test()


# --- the declaration ---


def test_the_unit_fills_in_what_is_left_to_it():
    """A given number stays as it is; prices keep a ratio."""
    for mechanism, name, default in (
        (sums.ReverseKnn(sigma=2.0), "parts", sums.MAX_PARTS),
        (sums.PrivateLinear(noise_multiplier=2.0), "gain", 2),
        (sums.PrivateLinearValue(noise_multiplier=2.0), "gain", 1),
    ):
        assert mechanism.for_unit("row") == mechanism
        assert mechanism.fields()[name] is None
        assert (mechanism.for_unit("person").fields()[name] or 1) == default
        given = replace(mechanism, **{name: 3})
        assert given.for_unit("person") == given
        (row,) = mechanism.releases(1, 1)
        (person,) = mechanism.for_unit("person").releases(1, 1)
        assert row.parameters["sigma"] / row.parameters["sensitivity"] == (
            person.parameters["sigma"] / person.parameters["sensitivity"]
        )
