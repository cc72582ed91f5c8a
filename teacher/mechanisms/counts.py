"""Counts of records that add up over disjoint sets of records, so that shards count their own.

Each is a frozen description of public numbers, and a function of some records: the index of their
features, and their labels (int64 [n], by row of the index).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from labelwall.teacher.mechanisms.batch.radii import cell_numbers
from labelwall.teacher.search.index import WholeIndex
from labelwall.wall.cells import nearest_cells


@dataclass(frozen=True, eq=False)
class CellVotes:
    """Votes of every record for its label in its nearest cells.

    ``cells``: int8 [n_queries, m, d]. Result: int64 [n_queries, m * n_classes], all entries
    present.
    """

    cells: np.ndarray = field(repr=False)
    neighbours: int
    num_classes: int

    def __call__(self, index: WholeIndex, labels: np.ndarray) -> np.ndarray:
        features = index.features
        votes = np.zeros((*self.cells.shape[:2], self.num_classes), dtype=np.int64)
        for counts, centers in zip(votes, self.cells, strict=True):
            nearest = nearest_cells(features, centers, self.neighbours)
            np.add.at(counts, (nearest, labels[:, None]), 1)
        return votes.reshape(len(votes), -1)  # [n_queries, m, n_classes] -> [., m * n_classes]


@dataclass(frozen=True, eq=False)
class BallVotes:
    """Records of each class within each query's radius: int64 [n_queries, n_classes].

    ``queries``: int8 [n_queries, d]; ``squared_radii``: int64 [n_queries].
    """

    queries: np.ndarray = field(repr=False)
    squared_radii: np.ndarray = field(repr=False)
    num_classes: int

    def __call__(self, index: WholeIndex, labels: np.ndarray) -> np.ndarray:
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

    def __call__(self, index: WholeIndex, labels: np.ndarray) -> np.ndarray:
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

    def __call__(self, index: WholeIndex, labels: np.ndarray) -> np.ndarray:
        numbers = cell_numbers(index.features, self.cells)
        return np.bincount(numbers, minlength=self.cells**index.dimensions)
