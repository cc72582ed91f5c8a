"""What mechanisms need of the private records, whether one process holds them or many do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from labelwall.teacher.search.kernels import Select, Similar


class Index(Protocol):
    """What mechanisms need of the private records under one extractor, wherever their features lie.

    A row is a record's place in ``ids``. Whatever holds the records, the same lists, sets and sums come out.
    """

    @property
    def ids(self) -> np.ndarray:
        """int64 [n], distinct."""
        ...

    @property
    def dimensions(self) -> int: ...

    def __len__(self) -> int: ...

    def prefix(self, queries: np.ndarray, m: int) -> np.ndarray:
        """Rows of the min(m, n) nearest of each of ``queries`` (int8 [q, d]) by (squared distance, id): int64 [q, min(m, n)]."""
        ...

    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        """The rows that a kernel selects for each query, among the candidates of ``hashing``."""
        ...

    def total(self, count: Count, labels: np.ndarray) -> np.ndarray:
        """A sum over the records, whose labels (int64 [n], by row) are the ones that the index was made with."""
        ...


class WholeIndex(Index, Protocol):
    """An index whose records' features this process has: what can be counted, or merged with other records' lists."""

    @property
    def features(self) -> np.ndarray:
        """In the order they were given, int8 [n, d]."""
        ...

    def nearest(self, queries: np.ndarray, m: int) -> Nearest:
        """As ``prefix``, with squared distances; nothing is kept."""
        ...

    def distances(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """Squared distances of each of ``queries`` (int8 [q, d]) to all records, in the order they were given: int32 [n] each."""
        ...


# What some records with their labels add up to: int64 of a shape that does not depend on them. Of disjoint sets of records, the
# results add up to the result of their union.
Count = Callable[[WholeIndex, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Nearest:
    """The nearest records of each query by (squared distance, id): ``rows`` int64 [q, m], ``distances`` int32 [q, m], squared."""

    rows: np.ndarray = field(repr=False)
    distances: np.ndarray = field(repr=False)


class Recent:
    """The lists of the last search, so that the two releases of a query search once."""

    def __init__(self) -> None:
        self._width = 0
        self._rows: dict[bytes, np.ndarray] = {}

    def lists(
        self, queries: np.ndarray, width: int, search: Callable[[], np.ndarray]
    ) -> np.ndarray:
        """int64 [q, width], read-only: kept ones where all are, else those of ``search``."""
        keys = [query.tobytes() for query in queries]
        if self._width == width and all(key in self._rows for key in keys):
            found = np.array([self._rows[key] for key in keys], dtype=np.int64).reshape(
                len(keys), width
            )
        else:
            found = search()
            self._width, self._rows = width, dict(zip(keys, found, strict=True))
        found.setflags(write=False)
        return found
