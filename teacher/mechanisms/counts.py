"""Counts of records that add up over disjoint sets of records, so that shards count their own.

Each is a frozen description of public numbers, and a function of some records: the index of their
features, and their labels (int64 [n], by row of the index).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from labelwall.teacher.mechanisms.batch.radii import cell_numbers
from labelwall.teacher.search.index import Count, Counted
from labelwall.wall.cells import nearest_cells


@dataclass(frozen=True, eq=False)
class CellVotes:
    """Votes of every record for its label in its nearest cells.

    A person casts as many votes as a row: those that most of its rows cast.

    ``cells``: int8 [n_queries, m, d]. Result: int64 [n_queries, m * n_classes], all entries
    present.
    """

    cells: np.ndarray = field(repr=False)
    neighbours: int
    num_classes: int

    def __call__(self, index: Counted, labels: np.ndarray) -> np.ndarray:
        features = index.features
        votes = np.zeros((*self.cells.shape[:2], self.num_classes), dtype=np.int64)
        for counts, centers in zip(votes, self.cells, strict=True):
            nearest = nearest_cells(features, centers, self.neighbours)
            if index.persons is None:
                np.add.at(counts, (nearest, labels[:, None]), 1)
            else:
                pairs = nearest * self.num_classes + labels[:, None]  # [n_records, neighbours]
                ballots = most_frequent(pairs, index.persons, pairs.shape[1])
                counts += np.bincount(ballots, minlength=counts.size).reshape(counts.shape)
        return votes.reshape(len(votes), -1)  # [n_queries, m, n_classes] -> [., m * n_classes]


def most_frequent(ballots: np.ndarray, persons: np.ndarray, most: int) -> np.ndarray:
    """Of each person the ``most`` ballots that most of its rows cast, ties to the lowest.

    ``ballots``: int64 [n, m], by row, those of a row distinct; ``persons``: int64 [n]. Returns
    int64 [votes], distinct for one person, exactly ``most`` of each where that is at most m.
    """
    owners = np.repeat(persons, ballots.shape[1])
    order = np.lexsort((ballots.ravel(), owners))
    owners, cast = owners[order], ballots.ravel()[order]
    new = np.ones(len(cast), dtype=bool)
    new[1:] = (owners[1:] != owners[:-1]) | (cast[1:] != cast[:-1])
    starts = np.flatnonzero(new)
    times = np.diff(np.append(starts, len(cast)))
    owners, cast = owners[starts], cast[starts]  # by person, then by ballot
    order = np.lexsort((-times, owners))  # stable: ties stay in the ballots' order
    owners, cast = owners[order], cast[order]
    first = np.searchsorted(owners, owners, side="left")  # place of the person's first ballot
    return cast[np.arange(len(cast)) - first < most]


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

    ``queries``: int8 [n_queries, d]; ``squared_radii``: int64 [n_queries].
    """

    queries: np.ndarray = field(repr=False)
    squared_radii: np.ndarray = field(repr=False)
    num_classes: int

    def __call__(self, index: Counted, labels: np.ndarray) -> np.ndarray:
        votes = np.zeros((len(self.queries), self.num_classes), dtype=np.int64)
        distances, radii = index.distances(self.queries), self.squared_radii.tolist()
        for counts, squared, radius in zip(votes, distances, radii, strict=True):
            counts += np.bincount(labels[squared <= radius], minlength=self.num_classes)
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
    """Records in each cell of a uniform grid over the domain box: int64 [cells^d].

    ``cells``: along each side.
    """

    cells: int

    def __call__(self, index: Counted, labels: np.ndarray) -> np.ndarray:
        numbers = cell_numbers(index.features, self.cells)
        return np.bincount(numbers, minlength=self.cells**index.dimensions)
