"""Questions of mechanisms to an index of nearest neighbours; persons by their nearest rows."""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from ...wall.errors import InvalidInput, shape_text
from ...wall.matrices import MAX_DIMENSIONS, MAX_ENTRY
from .kernels import Select, Similar
from .loops import compiled

LIST_ENTRIES = 1 << 23  # of ordered lists of rows in memory together

# A sum over some records (an ExactIndex) and their labels, int64 [n]: int64 of a shape that does
# not depend on them. Results of disjoint sets of records add up to the result of their union.
Count = Callable[[Any, np.ndarray], np.ndarray]


class Ranked(ABC):
    """Units that are ranked for a query: rows, or persons by their nearest rows (ByPerson).

    ``ids``: int64 [n_rows], of each row: its own, or its person's.
    """

    ids: np.ndarray

    def __init__(self) -> None:
        # The last search: its width, each query's place, its lists.
        self._recent = -1, dict[bytes, int](), np.zeros((0, 0), dtype=np.int64)

    @abstractmethod
    def __len__(self) -> int:
        """Number of units that are ranked."""

    def prefix(self, queries: np.ndarray, m: int) -> np.ndarray:
        """A row for each of the min(m, n) nearest, by (squared distance, id): int64 [q, min(m, n)].

        ``queries``: int8 [q, d], entries in -63..63. The result is read-only: the last call's lists
        are kept, so that the two releases of a query search once. Inputs that differ may be one
        query, so several queries of a call may have one list.
        """
        width, keys = min(m, len(self)), [query.tobytes() for query in queries]
        last_width, places, lists = self._recent
        if last_width != width or not places.keys() >= set(keys):
            lists = self._search(queries, width)
            places = {key: number for number, key in enumerate(keys)}
            self._recent = width, places, lists
        if [places[key] for key in keys] != [*range(len(lists))]:
            lists = lists[[places[key] for key in keys]]
        lists.setflags(write=False)
        return lists

    @abstractmethod
    def _search(self, queries: np.ndarray, width: int) -> np.ndarray:
        """The lists of ``prefix``: int64 [q, width], ``width`` <= n."""


class Index(Ranked):
    """The private records under one extractor, wherever their features are stored.

    Rows ascend by id. ``persons``: int64 [n], by row; None where the unit of privacy is a row.
    Every implementation returns the same lists, sets and sums.
    """

    dimensions: int

    def __init__(self, persons: np.ndarray | None) -> None:
        super().__init__()
        self.persons = persons
        self._by_person = None if persons is None else ByPerson(self, persons)

    @property
    def units(self) -> Ranked:
        """Units of lists and samples: rows, or persons."""
        return self if self._by_person is None else self._by_person

    @abstractmethod
    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        """Records that ``select`` selects for each query (int8 [q, d]).

        ``hashing``: (tables, bits, public seed). It restricts the selection to records that share a
        bucket with the query.
        """

    @abstractmethod
    def total(self, count: Count, labels: np.ndarray) -> np.ndarray:
        """A sum over the records, with the index's own ``labels``, int64 [n]."""


def squared_norms(features: np.ndarray) -> np.ndarray:
    """|x|^2 of each row: int32 [n], at most 4000 * 63^2. Features are widened in small buffers."""
    norms: np.ndarray = np.einsum("ij,ij->i", features, features, dtype=np.int32)
    return norms


def check_features(name: str, features: np.ndarray, dimensions: int | None = None) -> None:
    """Raise InvalidInput unless int8 [n, d], entries in -63..63, 1 <= d <= 4000 or d as given."""
    shape_fits = features.ndim == 2 and 0 < features.shape[1] <= MAX_DIMENSIONS
    if features.dtype != np.int8 or not shape_fits:
        rule = f"int8 [n, d] with d in 1..{MAX_DIMENSIONS}"
        raise InvalidInput(name, rule, shape_text(features))  # the number of records is private
    if dimensions is not None and features.shape[1] != dimensions:
        rule = f"rows of {dimensions} dimensions, as the records are"
        raise InvalidInput(name, rule, features.shape[1])
    if features.size and (features.min() < -MAX_ENTRY or features.max() > MAX_ENTRY):
        raise InvalidInput(name, f"integers in -{MAX_ENTRY}..{MAX_ENTRY}", "a larger one")


class ByPerson(Ranked):
    """The persons of an index, ranked by their nearest rows: by (squared distance, id) of these.

    An order of persons that no other person changes. A list of rows is walked until it has shown
    as many persons as are asked for; where it ends before, one twice as long is searched, up to all
    rows. How long a list is tried first changes the time alone.

    ``persons``: int64 [n], by row of ``index``.
    """

    def __init__(self, index: Ranked, persons: np.ndarray) -> None:
        super().__init__()
        self._index: Ranked = weakref.proxy(index)  # which holds this
        self.ids = persons
        self.codes, numbers = np.unique(persons, return_inverse=True)
        self.numbers = numbers.astype(np.int32).reshape(-1)
        self._enough: dict[int, int] = {}  # rows that show so many persons to most queries

    def __len__(self) -> int:
        return len(self.codes)

    def strongest(self, similar: Similar, ids: np.ndarray, labels: np.ndarray) -> Similar:
        """The persons of similar rows, by number, each with its most similar row; ties by id.

        ``ids``, ``labels``: int64 [n], by row.
        """
        numbers = self.numbers[similar.rows]
        order = np.lexsort((ids[similar.rows], -similar.weights.astype(np.int16), numbers))
        persons, first = np.unique(numbers[order], return_index=True)
        chosen = order[first]
        return Similar(persons, similar.weights[chosen], labels[similar.rows[chosen]])

    def _search(self, queries: np.ndarray, width: int) -> np.ndarray:
        lists = np.empty((len(queries), width), dtype=np.int64)
        pending, rows = np.arange(len(queries)), self._enough.get(width, width)
        while len(pending) and width:
            size = max(1, LIST_ENTRIES // rows)
            for start in range(0, len(pending), size):
                batch = pending[start : start + size]
                nearest = np.ascontiguousarray(self._index.prefix(queries[batch], rows))
                first = np.full((len(batch), width), -1, dtype=np.int64)
                _firsts(nearest, self.numbers, len(self), first)
                lists[batch] = first
            pending = pending[lists[pending, -1] < 0]
            if 8 * len(pending) <= len(queries):
                self._enough.setdefault(width, rows)
            rows = min(2 * rows, len(self._index))
        return lists


@compiled
def _firsts(lists: np.ndarray, numbers: np.ndarray, persons: int, first: np.ndarray) -> None:
    """The first row of each person in each list, as many as ``first`` takes: int64 [q, width].

    ``lists``: int64 [q, m], rows; ``numbers``: int32 [n], 0..``persons`` - 1, by row.
    """
    if len(first) != len(lists):
        raise ValueError("as many lists as queries")  # compiled code checks no index
    seen = np.full(persons, -1, dtype=np.int32)
    for query in range(len(lists)):
        count = 0
        for row in lists[query]:
            if seen[numbers[row]] != query:
                seen[numbers[row]] = query
                first[query, count] = row
                count += 1
                if count == first.shape[1]:
                    break
