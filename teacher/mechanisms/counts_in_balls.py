"""Counts of records as points: within balls around queries, and in the cells of a grid."""

import numpy as np

from ...wall.matrices import LEVELS
from ..search.cpu import ExactIndex
from ..search.index import Count

EVERYWHERE = 1 << 26  # above every squared distance


def landmark_radii(queries: np.ndarray, landmarks: bytes, share: float) -> np.ndarray:
    """The squared distance of each query to its j-th nearest landmark: int64 [n_queries].

    j = ``share`` of the landmarks, at least 1. A landmark at distance 0 does not count: it may be
    the query itself. Where fewer than j are left, every record is within.

    ``queries``: int8 [n_queries, d]; ``landmarks``: int8 [m, d] as bytes.
    """
    rows = np.frombuffer(landmarks, np.int8).reshape(-1, queries.shape[1]).copy()
    wanted = max(1, round(share * len(rows)))
    radii = np.full(len(queries), EVERYWHERE, dtype=np.int64)
    index = ExactIndex(rows, np.arange(len(rows)), threads=1)
    for query, squared in enumerate(index.distances(queries)):
        apart = squared[squared > 0]
        if len(apart) >= wanted:
            radii[query] = np.partition(apart, wanted - 1)[wanted - 1]
    return radii


def one_row_each(
    count: Count, queries: np.ndarray, index: ExactIndex, labels: np.ndarray
) -> np.ndarray:
    """A count over one row of each person: the nearest to any of a batch's queries, ties by id.

    The row is a function of the person's rows and of ``queries``, int8 [n_queries, d], so that a
    person is one point in all balls (docs/privacy.md, section 22).
    """
    if index.persons is None:  # rows, or a shard without any
        return count(index, labels)
    nearest = np.full(len(index), np.iinfo(np.int32).max, dtype=np.int32)
    for squared in index.distances(queries):
        np.minimum(nearest, squared, out=nearest)
    rows = np.sort(_nearest_of_each(nearest, index.persons))
    return count(ExactIndex(index.features[rows], index.ids[rows]), labels[rows])


def _nearest_of_each(squared: np.ndarray, persons: np.ndarray) -> np.ndarray:
    """The nearest row of each person, ties by place, which is by id: int64 [n_persons]."""
    order = np.lexsort((squared, persons))
    return order[np.unique(persons[order], return_index=True)[1]]


def ball_votes(
    queries: np.ndarray,
    squared_radii: np.ndarray,
    num_classes: int,
    index: ExactIndex,
    labels: np.ndarray,
) -> np.ndarray:
    """Records of each class within each query's radius: int64 [n_queries, n_classes].

    Of a person the row that is nearest to the query, ties by id, is the one that counts.

    ``queries``: int8 [n_queries, d]; ``squared_radii``: int64 [n_queries].
    """
    votes = np.zeros((len(queries), num_classes), dtype=np.int64)
    distances = index.distances(queries)
    for counts, squared, radius in zip(votes, distances, squared_radii.tolist(), strict=True):
        inside = np.flatnonzero(squared <= radius)
        if index.persons is not None:
            inside = inside[_nearest_of_each(squared[inside], index.persons[inside])]
        counts += np.bincount(labels[inside], minlength=num_classes)
    return votes


def ball_counts(
    queries: np.ndarray, squared_radii: np.ndarray, index: ExactIndex, labels: np.ndarray
) -> np.ndarray:
    """Records within each of some radii (int64 [m], ascending) of each query: int64 [q, m]."""
    counts = np.zeros((len(queries), len(squared_radii)), dtype=np.int64)
    for row, squared in zip(counts, index.distances(queries), strict=True):
        smallest = np.searchsorted(squared_radii, squared)  # radius that reaches a record
        row += np.bincount(smallest, minlength=len(row) + 1)[: len(row)].cumsum()
    return counts


def grid_counts(cells: int, index: ExactIndex, labels: np.ndarray) -> np.ndarray:
    """Records by cell of a uniform grid, ``cells`` a side, over the domain box: int64 [cells^d]."""
    along = (index.features.astype(np.int64) + LEVELS // 2) * cells // LEVELS  # 0..cells - 1
    numbers = along @ cells ** np.arange(index.dimensions, dtype=np.int64)
    return np.bincount(numbers, minlength=cells**index.dimensions)
