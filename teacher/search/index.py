"""Exact nearest-neighbour indexes: the interface that mechanisms use, and its common base class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ...wall.errors import InvalidInput
from .by_person import ByPerson
from .int8_matmul import LARGEST, MAX_DIMENSIONS
from .kernels import Select, Similar

NORM_ROWS = 4096  # rows whose squared norms are computed together
COMPARED_IDS = 1 << 20  # ids compared together


class Ranked(Protocol):
    """What is ranked for a query: rows, or persons by their nearest rows (by_person.py)."""

    @property
    def ids(self) -> np.ndarray:
        """int64 [n_rows], of each row: its own, or its person's."""
        ...

    def __len__(self) -> int:
        """How many are ranked."""
        ...

    def prefix(self, queries: np.ndarray, m: int) -> np.ndarray:
        """See Index: rows, one for each that is ranked."""
        ...


class Index(Ranked, Protocol):
    """The private records under one extractor, wherever their features are stored.

    A row is a record's position in ``ids``. Every implementation returns the same lists, sets and
    sums.
    """

    @property
    def ids(self) -> np.ndarray:
        """int64 [n], distinct."""
        ...

    @property
    def persons(self) -> np.ndarray | None:
        """int64 [n], the persons of the rows; None where the unit of privacy is a row."""
        ...

    @property
    def electorate(self) -> Ranked:
        """What lists of the nearest are of, and what samples are drawn from: rows, or persons."""
        ...

    @property
    def dimensions(self) -> int: ...

    def __len__(self) -> int: ...

    def prefix(self, queries: np.ndarray, m: int) -> np.ndarray:
        """Rows of the min(m, n) nearest records of each query, by (squared distance, id).

        ``queries``: int8 [q, d]. Returns int64 [q, min(m, n)].
        """
        ...

    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        """The rows that a kernel selects for each query, among the candidates of ``hashing``."""
        ...

    def total(self, count: Count, labels: np.ndarray) -> np.ndarray:
        """A sum over the records.

        ``labels``: int64 [n], by row, the ones that the index was made with.
        """
        ...


class Counted(Protocol):
    """Rows that can be counted: their features are all in this process."""

    @property
    def ids(self) -> np.ndarray:
        """int64 [n], distinct."""
        ...

    @property
    def persons(self) -> np.ndarray | None:
        """See Index."""
        ...

    @property
    def dimensions(self) -> int: ...

    def __len__(self) -> int: ...

    @property
    def features(self) -> np.ndarray:
        """int8 [n, d], in the order of ``ids``."""
        ...

    def distances(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """Squared distances of each query to all records, in the order of ``ids``: int32 [n] each.

        ``queries``: int8 [q, d].
        """
        ...


class WholeIndex(Index, Counted, Protocol):
    """An index whose features are all in this process, so that sums and merges can use them."""

    def nearest(self, queries: np.ndarray, m: int) -> Nearest:
        """As ``prefix``, with squared distances. The result is not cached."""
        ...


# A sum over some records and their labels: int64 of a shape that does not depend on them. The
# results of disjoint sets of records add up to the result of their union.
Count = Callable[[Counted, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Nearest:
    """The nearest records of each query by (squared distance, id).

    ``rows``: int64 [q, m]; ``distances``: int32 [q, m], squared.
    """

    rows: np.ndarray = field(repr=False)
    distances: np.ndarray = field(repr=False)


class PrefixCache:
    """The lists of the last search, so that the two releases of a query search once."""

    def __init__(self) -> None:
        self._width = 0
        self._rows: dict[bytes, np.ndarray] = {}

    def lists(
        self, queries: np.ndarray, width: int, search: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """int64 [q, width], read-only: cached if every query is, else the result of ``search``."""
        keys = [query.tobytes() for query in queries]
        if self._width == width and all(key in self._rows for key in keys):
            found = np.array([self._rows[key] for key in keys], dtype=np.int64)
            found = found.reshape(len(keys), width)
        else:
            found = search()
            self._width, self._rows = width, dict(zip(keys, found, strict=True))
        found.setflags(write=False)
        return found


class OrderedIndex(ABC):
    """A ``WholeIndex`` that stores its records by ascending id, so that ties go to the lower row.

    Its methods return rows, features and distances in the order the records were given.

    ``features``: int8 [n, d], entries in -63..63, d <= 4000, copied once if ids do not ascend;
    ``ids``: int64 [n], unique; ``persons``: int64 [n], where the unit of privacy is a person.
    Raises InvalidInput for any other shape, dtype or entry. n = 0 is allowed.
    """

    def __init__(
        self, features: np.ndarray, ids: np.ndarray, persons: np.ndarray | None = None
    ) -> None:
        self._order = _order_by_id(features, ids)
        stored = features if self._order is None else features[self._order]
        self._features = np.ascontiguousarray(stored)
        self.ids, self._recent = ids, PrefixCache()
        self.persons = persons
        self._by_person = None if persons is None else ByPerson(self, persons)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def electorate(self) -> Ranked:
        """See Index."""
        return self if self._by_person is None else self._by_person

    @property
    def dimensions(self) -> int:
        return self._features.shape[1]

    @property
    def features(self) -> np.ndarray:
        """The features in the order they were given, int8 [n, d]."""
        return self._in_given_order(self._features)

    def total(self, count: Count, labels: np.ndarray) -> np.ndarray:
        """A sum over the records; see Index."""
        return count(self, labels)

    def prefix(self, queries: np.ndarray, m: int) -> np.ndarray:
        """Rows of the min(m, n) nearest records: int64 [q, min(m, n)], by (squared distance, id).

        ``queries``: int8 [q, d], entries in -63..63. The result is read-only: the last call's lists
        are cached, so that the two releases of a query search once.
        """
        check_queries(queries, m, self.dimensions)
        width = min(m, len(self))
        return self._recent.lists(queries, width, lambda: self._nearest(queries, width).rows)

    def nearest(self, queries: np.ndarray, m: int) -> Nearest:
        """The min(m, n) nearest records with their squared distances. The result is not cached."""
        check_queries(queries, m, self.dimensions)
        return self._nearest(queries, min(m, len(self)))

    @abstractmethod
    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        """See Index."""

    @abstractmethod
    def distances(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """See WholeIndex."""

    @abstractmethod
    def _search(self, queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Stored rows of the ``width`` nearest, and |x - q|^2 - |q|^2, in order.

        int64 and int32, both [q, width].
        """

    def _nearest(self, queries: np.ndarray, width: int) -> Nearest:
        rows, scores = self._search(queries, width)
        scores += squared_norms(queries)[:, None]
        return Nearest(rows if self._order is None else self._order[rows], scores)

    def _in_given_order(self, stored: np.ndarray) -> np.ndarray:
        """Entries by stored row, in the order the records were given."""
        if self._order is None:
            return stored
        given = np.empty_like(stored)
        given[self._order] = stored
        return given

    def _to_given_rows(self, similar: Similar) -> Similar:
        """The same records by their rows in the order they were given."""
        if self._order is None:
            return similar
        return Similar(self._order[similar.rows].astype(np.int32), similar.weights)


def _order_by_id(features: np.ndarray, ids: np.ndarray) -> np.ndarray | None:
    """Rows by ascending id, int64 [n], or None if ids ascend.

    An index stores its rows in this order, so that a stable sort by distance alone breaks ties by
    id. Raises InvalidInput for records that cannot be searched.
    """
    check_features("features", features)
    if ids.dtype != np.int64 or ids.shape != features.shape[:1]:
        rule = "int64, one for each row of `features`"
        raise InvalidInput("ids", rule, f"{ids.dtype} {list(ids.shape)}")
    if _ascend(ids):
        return None
    order = np.argsort(ids, kind="stable")
    if (np.diff(ids[order]) == 0).any():
        raise InvalidInput("ids", "unique", "duplicates")
    return order


def _ascend(ids: np.ndarray) -> bool:
    """Whether each id is above the one before, by blocks: sorting takes 33 bytes a record."""
    blocks = (ids[s : s + COMPARED_IDS + 1] for s in range(0, len(ids), COMPARED_IDS))
    return all((block[1:] > block[:-1]).all() for block in blocks)


def squared_norms(features: np.ndarray) -> np.ndarray:
    """|x|^2 of each row: int32 [n], at most 4000 * 63^2. Blocks of rows are widened, not all."""
    norms = np.empty(len(features), dtype=np.int32)
    for start in range(0, len(features), NORM_ROWS):
        wide = features[start : start + NORM_ROWS].astype(np.int32)
        norms[start : start + NORM_ROWS] = np.einsum("ij,ij->i", wide, wide)
    return norms


def check_queries(queries: np.ndarray, m: int, dimensions: int) -> None:
    """Raise InvalidInput unless ``queries`` have ``dimensions`` and ``m`` is at least 0."""
    check_features("queries", queries, dimensions)
    if m < 0:
        raise InvalidInput("m", "at least 0", m)


def check_features(name: str, features: np.ndarray, dimensions: int | None = None) -> None:
    """Raise InvalidInput unless int8 [n, d], entries in -63..63, 1 <= d <= 4000 or d as given."""
    shape_fits = features.ndim == 2 and 0 < features.shape[1] <= MAX_DIMENSIONS
    if features.dtype != np.int8 or not shape_fits:
        rule = f"int8 [n, d] with d in 1..{MAX_DIMENSIONS}"
        raise InvalidInput(name, rule, f"{features.dtype} {list(features.shape)}")
    if dimensions is not None and features.shape[1] != dimensions:
        rule = f"rows of {dimensions} dimensions, as the records are"
        raise InvalidInput(name, rule, features.shape[1])
    if features.size and (features.min() < -LARGEST or features.max() > LARGEST):
        raise InvalidInput(name, f"integers in -{LARGEST}..{LARGEST}", "a larger one")
