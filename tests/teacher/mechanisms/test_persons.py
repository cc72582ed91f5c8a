"""One person more moves what is released by no more than the price allows: every mechanism.

Random persons of many rows, on few places and with ties. Each bound is that of a row, which the
curves and pairs price.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwall.teacher.mechanisms import counts as counts_module
from labelwall.teacher.mechanisms import voters as voters_module
from labelwall.teacher.mechanisms.attributes.mechanism import GRID, ballots
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.batch.overlap import clique_bounds
from labelwall.teacher.mechanisms.counts import most_frequent
from labelwall.teacher.mechanisms.ind_knn.mechanism import IndKnn
from labelwall.teacher.mechanisms.pate.linear_ensemble import train_ensemble
from labelwall.teacher.mechanisms.private_linear import gradient
from labelwall.teacher.mechanisms.registry import MECHANISMS
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.unsafe_tape import UnsafeTape
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.labels.values import STEPS
from labelwall.wall.weights import CLIP, COUNT

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

    def voters(self, there: bool, queries: np.ndarray | None = None) -> Voters:
        kept = self.persons >= (0 if there else 1)
        index = ExactIndex(self.features[kept], self.ids[kept], self.persons[kept])
        asked = self.queries if queries is None else queries
        return Voters(index, self.labels[kept], CLASSES, asked, length=10.0)

    def moved(
        self, statistic: Callable[[Voters], np.ndarray], queries: np.ndarray | None = None
    ) -> np.ndarray:
        """How the statistic of all queries differs with the person."""
        return statistic(self.voters(True, queries)) - statistic(self.voters(False, queries))


@st.composite
def data(draw: st.DrawFn, labels: int = CLASSES) -> Drawn:
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, spread = sum(sizes), draw(st.sampled_from([1, 4, 40]))
    return Drawn(
        rng.integers(-spread, spread + 1, (n, DIMENSIONS)).astype(np.int8),
        rng.integers(0, labels, n),
        rng.permutation(3 * n)[:n].astype(np.int64),
        rng.permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int64),
        rng.integers(-spread, spread + 1, (QUERIES, DIMENSIONS)).astype(np.int8),
    )


def squared(moves: np.ndarray) -> int:
    """The largest squared L2 length of a row."""
    return int((moves.astype(np.int64) ** 2).sum(axis=1).max())


few = settings(max_examples=60, deadline=None)
FOUND = (AssertionError, ExceptionGroup)  # of one failing example, or of several kinds
SAMPLED = st.sampled_from([0.3, 0.7, 1.0])


@few
@given(data(), st.integers(1, 6), SAMPLED, st.integers(0, 99))
def test_votes(drawn: Drawn, k: int, gamma: float, seed: int) -> None:
    """Private-kNN, naive kNN, batch_knn without radii, the median's cells: e_a, or e_a - e_b."""
    moves = drawn.moved(lambda v: v.votes(k, gamma, KEYS, "screen", UnsafeTape(seed)))
    assert squared(moves) <= 2
    assert np.abs(moves).max() <= 1
    assert set(moves.sum(axis=1).tolist()) <= {0, 1}


@few
@given(data(labels=1 << CLASSES), st.integers(1, 6), SAMPLED, st.integers(1, 3))
def test_attributes(drawn: Drawn, k: int, gamma: float, tau: int) -> None:
    def statistic(v: Voters) -> np.ndarray:
        return v.votes(k, gamma, KEYS, "counts", UnsafeTape(3), ballots(v.labels, CLASSES, tau))

    assert squared(drawn.moved(statistic)) <= 2 * tau * GRID**2


@few
@given(data(labels=STEPS + 1), st.integers(1, 6), SAMPLED)
def test_means(drawn: Drawn, k: int, gamma: float) -> None:
    def statistic(v: Voters) -> np.ndarray:
        summed = Voters(v.index, v.labels, 1, v.queries)
        return summed.votes(k, gamma, KEYS, "m", UnsafeTape(3), (2 * v.labels - STEPS)[:, None])

    assert np.abs(drawn.moved(statistic)).max() <= 2 * STEPS


@few
@given(data(), st.integers(1, 4))
def test_cells(drawn: Drawn, neighbours: int) -> None:
    """The shift is a vector of ``neighbours`` ones, as of a row: the pair is the same."""
    moves = drawn.moved(lambda v: v.cell_votes(neighbours), drawn.queries[np.newaxis])
    assert sorted(set(moves.ravel().tolist())) in ([0, 1], [1])
    assert moves.sum() == neighbours


@few
@given(data(), st.integers(0, 10**6))
def test_gradients(drawn: Drawn, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(-32767, 32768, (2, DIMENSIONS + 1, CLASSES)).astype(np.int16)
    moves = drawn.moved(lambda v: v.gradients(1.0), weights)
    assert squared(moves[:, :-1]) <= CLIP**2
    assert (moves[:, -1] == COUNT).all()


@few
@given(data(), st.integers(0, 60))
def test_balls(drawn: Drawn, radius: int) -> None:
    """A person is one point of a batch: its balls are a clique, and it adds 1 to one count each."""
    radii = np.full(QUERIES, radius**2, dtype=np.int64)
    moves = drawn.moved(lambda v: v.ball_votes(radii))
    inside = moves.any(axis=1)
    assert moves.min() >= 0
    assert (moves.sum(axis=1) == inside).all()
    sizes = clique_bounds(drawn.queries, radii, "local").sizes
    assert (sizes[inside] >= inside.sum()).all()
    counts = drawn.moved(lambda v: v.ball_counts(np.array([0, 9, 100, 10**6])))
    assert counts.min() >= 0
    assert counts.max() <= 1
    assert sorted(drawn.moved(lambda v: v.grid_counts(4)).tolist()) == [*[0] * 15, 1]


@few
@given(data())
def test_classifiers(drawn: Drawn) -> None:
    """All rows of a person are in one shard: at most one classifier changes, by one vote."""

    def weights(there: bool) -> np.ndarray:
        kept = drawn.persons >= (0 if there else 1)
        columns = (each[kept] for each in (drawn.features, drawn.labels, drawn.ids))
        made = train_ensemble(
            *columns, owners=drawn.persons[kept], num_classes=CLASSES, teachers=5, key=bytes(32)
        )
        return made.weights

    changed = (weights(True) != weights(False)).any(axis=(1, 2))
    assert changed.sum() <= 1


@few
@given(data(), st.booleans())
def test_individual_budgets(drawn: Drawn, hashed: bool) -> None:
    """A person pays once for what its most similar row says; the others pay as without it."""
    mechanism = IndKnn(threshold=0.5, sigma_count=2.0, rho=0.5, tables=2 * hashed, bits=1)
    select, hashing = mechanism.select(10.0), mechanism.hashing()
    near = [drawn.voters(there).similar(select, hashing) for there in (True, False)]
    rows = [drawn.voters(True).index.similar(drawn.queries, select, hashing)]
    everybody = np.unique(drawn.persons)
    for with_it, without, of_rows in zip(*near, *rows, strict=True):
        assert with_it.labels is not None
        others = everybody[with_it.rows] > 0
        assert len(np.unique(with_it.rows)) == len(with_it.rows)
        assert (with_it.rows[others] - 1).tolist() == without.rows.tolist()
        assert with_it.weights[others].tolist() == without.weights.tolist()
        said = [] if without.labels is None else without.labels.tolist()
        assert with_it.labels[others].tolist() == said
        for person, weight in zip(with_it.rows, with_it.weights, strict=True):
            own = drawn.persons[of_rows.rows] == everybody[person]
            assert weight == of_rows.weights[own].max()


def test_a_person_casts_what_most_of_its_rows_cast() -> None:
    """Ties go to the lowest; each person casts as many different ballots as a row."""
    cast = np.array([[5, 2], [5, 9], [9, 2], [1, 0], [7, 6], [8, 6]])
    found = most_frequent(cast, np.array([4, 4, 4, -1, 8, 8]), 2)
    assert sorted(found.tolist()) == sorted([0, 1, 2, 5, 6, 7])


def test_many_rows_say_more_precisely_what_one_says() -> None:
    """A person's gradient is the average of its rows', rounded towards 0."""
    rng = np.random.default_rng(0)
    features = rng.integers(-20, 21, (12, DIMENSIONS)).astype(np.int8)
    labels, ids = rng.integers(0, CLASSES, 12), np.arange(12)
    weights = rng.integers(-99, 99, (1, DIMENSIONS + 1, CLASSES)).astype(np.int16)
    persons = np.array([0] * 7 + [1] + [2, 2] * 2)

    def summed(rows: np.ndarray, persons: np.ndarray | None) -> np.ndarray:
        index = ExactIndex(features[rows], ids[rows], persons)
        return Voters(index, labels[rows], CLASSES, weights, 10.0).gradients(1.0)[0]

    expected = np.zeros_like(summed(ids, None))
    for person in range(3):
        of_rows = np.array([summed(np.array([r]), None) for r in np.flatnonzero(persons == person)])
        expected += np.trunc(of_rows.sum(axis=0) / len(of_rows)).astype(np.int64)
    assert summed(ids, persons).tolist() == expected.tolist()


# --- faults that these tests must find ---


def test_a_second_ballot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExactIndex, "electorate", property(lambda index: index))
    with pytest.raises(FOUND):
        test_votes()


def test_an_unclipped_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "most_frequent", lambda cast, *_: cast.ravel())
    with pytest.raises(FOUND):
        test_cells()
    monkeypatch.setattr(gradient, "_summed", lambda x, r, persons: (x.T @ r).astype(np.int64))
    with pytest.raises(FOUND):
        test_gradients()


def test_a_person_in_two_regions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voters_module, "OneRowEach", lambda count, queries: count)
    with pytest.raises(FOUND):
        test_balls()


def test_a_shard_by_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a person's rows lie in two shards, each counts the person alone."""
    whole = ExactIndex.total

    def by_row(index: ExactIndex, count: Callable[..., np.ndarray], labels: np.ndarray) -> object:
        sums = []
        for half in (0, 1):
            rows = np.flatnonzero(index.ids % 2 == half)
            assert index.persons is not None
            part = ExactIndex(index.features[rows], index.ids[rows], index.persons[rows])
            sums.append(whole(part, count, labels[rows]))
        return sum(sums)

    monkeypatch.setattr(ExactIndex, "total", by_row)
    for test in (test_cells, test_gradients, test_balls):
        with pytest.raises(FOUND):
            test()


# --- the declaration ---


def test_every_mechanism_is_covered() -> None:
    assert [kind for kind, known in MECHANISMS.items() if not known.persons] == []


def test_a_mechanism_that_does_not_declare_persons_refuses() -> None:
    class Rows(IndKnn):
        persons = False

    Mechanism.require_unit(Rows(), "row")
    with pytest.raises(Exception, match=r"`privacy.unit` must be row for ind_knn. Found 'person'."):
        Rows().require_unit("person")
