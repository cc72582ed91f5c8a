"""Counts of records that add up over disjoint sets of records, so that shards count their own.

Each is a frozen description of public numbers, and a function of some records: the index of their
features, and their labels (int64 [n], by row of the index).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ...wall.matrices import nearest_cells
from ..search.index import Count, Counted
from .ball_radii import cell_numbers


@dataclass(frozen=True, eq=False)
class CellVotes:
    """Votes of every record for its label in its nearest cells, each of ``parts`` parts.

    A person's votes are those of its rows together (``shared_votes``).

    ``cells``: int8 [n_queries, m, d]. Result: int64 [n_queries, m * n_classes], all entries
    present, in parts.
    """

    cells: np.ndarray = field(repr=False)
    neighbours: int
    num_classes: int
    parts: int = 1

    def __call__(self, index: Counted, labels: np.ndarray) -> np.ndarray:
        features = index.features
        votes = np.zeros((*self.cells.shape[:2], self.num_classes), dtype=np.int64)
        for counts, centers in zip(votes, self.cells, strict=True):
            nearest = nearest_cells(features, centers, self.neighbours)
            if index.persons is None:
                np.add.at(counts, (nearest, labels[:, None]), self.parts)
            else:
                pairs = nearest * self.num_classes + labels[:, None]  # [n_records, neighbours]
                np.add.at(counts.reshape(-1), *shared_votes(pairs, index.persons, self.parts))
        return votes.reshape(len(votes), -1)  # [n_queries, m, n_classes] -> [., m * n_classes]


def shared_votes(
    ballots: np.ndarray, persons: np.ndarray, parts: int
) -> tuple[np.ndarray, np.ndarray]:
    """The ballots that persons cast, and the parts of a vote that each of these gets.

    A ballot gets parts times the square root of the share of the person's rows that cast it,
    rounded down: with m ballots a row the squares of a person add up to parts^2 m at most, as those
    of a single row do, and many ballots get more together than few.

    ``ballots``: int64 [n, m], by row, those of a row distinct; ``persons``: int64 [n]; ``parts``:
    1..4096. Returns int64 [votes] twice; a ballot comes once for each person.
    """
    owners = np.repeat(persons, ballots.shape[1])
    order = np.lexsort((ballots.ravel(), owners))
    owners, cast = owners[order], ballots.ravel()[order]
    new = np.ones(len(cast), dtype=bool)
    new[1:] = (owners[1:] != owners[:-1]) | (cast[1:] != cast[:-1])
    starts = np.flatnonzero(new)
    times = np.diff(np.append(starts, len(cast)))  # rows of the person that cast the ballot
    _, person, rows = np.unique(persons, return_inverse=True, return_counts=True)
    rows = rows[np.repeat(person, ballots.shape[1])[order][starts]]  # of the ballot's person
    # At most parts^2 <= 2^24, so that the float64 root, rounded down, is exact.
    return cast[starts], np.sqrt(times * parts**2 // rows).astype(np.int64)


@dataclass(frozen=True, eq=False)
class OneRowEach:
    """A count over one row of each person: the nearest to any of the queries, ties by id.

    ``queries``: int8 [n_queries, d], all of a batch. The row is a function of the person's rows and
    of the batch, so that a person is one point in all balls (docs/privacy.md, section 22).
    """

    count: Count = field(repr=False)
    queries: np.ndarray = field(repr=False)

    def __call__(self, index: Counted, labels: np.ndarray) -> np.ndarray:
        if index.persons is None:  # a shard without rows
            return self.count(index, labels)
        nearest = np.full(len(index), np.iinfo(np.int32).max, dtype=np.int32)
        for squared in index.distances(self.queries):
            np.minimum(nearest, squared, out=nearest)
        order = np.lexsort((index.ids, nearest, index.persons))
        _, first = np.unique(index.persons[order], return_index=True)
        rows = np.sort(order[first])
        return self.count(_Rows(index, rows), labels[rows])


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some rows of an index; each is a record of its own."""

    index: Counted = field(repr=False)
    rows: np.ndarray = field(repr=False)
    persons: None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> np.ndarray:
        return self.index.ids[self.rows]

    @property
    def dimensions(self) -> int:
        return self.index.dimensions

    @property
    def features(self) -> np.ndarray:
        return self.index.features[self.rows]

    def distances(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        return (squared[self.rows] for squared in self.index.distances(queries))


@dataclass(frozen=True, eq=False)
class BallVotes:
    """Records of each class within each query's radius: int64 [n_queries, n_classes].

    Of a person the row that is nearest to the query, ties by id, is the one that counts.

    ``queries``: int8 [n_queries, d]; ``squared_radii``: int64 [n_queries].
    """

    queries: np.ndarray = field(repr=False)
    squared_radii: np.ndarray = field(repr=False)
    num_classes: int

    def __call__(self, index: Counted, labels: np.ndarray) -> np.ndarray:
        votes = np.zeros((len(self.queries), self.num_classes), dtype=np.int64)
        distances, radii = index.distances(self.queries), self.squared_radii.tolist()
        for counts, squared, radius in zip(votes, distances, radii, strict=True):
            inside = np.flatnonzero(squared <= radius)
            if index.persons is not None:
                order = np.lexsort((index.ids[inside], squared[inside], index.persons[inside]))
                inside = inside[order]
                inside = inside[np.unique(index.persons[inside], return_index=True)[1]]
            counts += np.bincount(labels[inside], minlength=self.num_classes)
        return votes


@dataclass(frozen=True, eq=False)
class BallCounts:
    """Records within each of some radii of each query: int64 [n_queries, m].

    ``queries``: int8 [n_queries, d]; ``squared_radii``: int64 [m], ascending.
    """

    queries: np.ndarray = field(repr=False)
    squared_radii: np.ndarray = field(repr=False)

    def __call__(self, index: Counted, labels: np.ndarray) -> np.ndarray:
        counts = np.zeros((len(self.queries), len(self.squared_radii)), dtype=np.int64)
        for row, squared in zip(counts, index.distances(self.queries), strict=True):
            smallest = np.searchsorted(self.squared_radii, squared)  # radius that reaches a record
            row += np.bincount(smallest, minlength=len(row) + 1)[: len(row)].cumsum()
        return counts


@dataclass(frozen=True)
class GridCounts:
    """Records by cell of a uniform grid, ``cells`` a side, over the domain box: int64 [cells^d]."""

    cells: int

    def __call__(self, index: Counted, labels: np.ndarray) -> np.ndarray:
        numbers = cell_numbers(index.features, self.cells)
        return np.bincount(numbers, minlength=self.cells**index.dimensions)
