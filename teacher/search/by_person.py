"""Lists of the nearest persons: an ordered list of rows, of which each person's first one stays."""

from __future__ import annotations

import weakref

import numpy as np

from .compiled import compiled
from .index import PrefixCache, Ranked
from .kernels import Similar

LIST_ENTRIES = 1 << 23  # of ordered lists of rows in memory together


class ByPerson:
    """The persons of an index, ranked by their nearest rows: by (squared distance, id) of these.

    An order of persons that no other person changes. A list of rows is walked until it has shown
    as many persons as are asked for; where it ends before, one twice as long is searched, up to all
    rows. How long a list is tried first changes the time alone.

    ``persons``: int64 [n], by row of ``index``.
    """

    def __init__(self, index: Ranked, persons: np.ndarray) -> None:
        self._index: Ranked = weakref.proxy(index)  # which holds this
        self.ids = persons
        self.codes, numbers = np.unique(persons, return_inverse=True)
        self.numbers = numbers.astype(np.int32).reshape(-1)
        self._recent = PrefixCache()
        self._enough: dict[int, int] = {}  # rows that show so many persons to most queries

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        return "ByPerson()"

    def prefix(self, queries: np.ndarray, m: int) -> np.ndarray:
        """The nearest rows of the min(m, n_persons) nearest persons: int64 [q, .], read-only.

        ``queries``: int8 [q, d]. The lists of the last call are kept, as for rows.
        """
        width = min(m, len(self))
        return self._recent.lists(queries, width, lambda: self._search(queries, width))

    def strongest(self, near: Similar, ids: np.ndarray, labels: np.ndarray) -> Similar:
        """The persons of similar rows, by number, each with its most similar row; ties by id.

        ``ids``, ``labels``: int64 [n], by row.
        """
        numbers = self.numbers[near.rows]
        order = np.lexsort((ids[near.rows], -near.weights.astype(np.int16), numbers))
        persons, first = np.unique(numbers[order], return_index=True)
        chosen = order[first]
        return Similar(persons, near.weights[chosen], labels[near.rows[chosen]])

    def _search(self, queries: np.ndarray, width: int) -> np.ndarray:
        lists = np.empty((len(queries), width), dtype=np.int64)
        pending, rows = np.arange(len(queries)), self._enough.get(width, width)
        while len(pending) and width:
            size = max(1, LIST_ENTRIES // rows)
            for start in range(0, len(pending), size):
                part = pending[start : start + size]
                near = np.ascontiguousarray(self._index.prefix(queries[part], rows))
                first = np.full((len(part), width), -1, dtype=np.int64)
                _firsts(near, self.numbers, len(self), first)
                lists[part] = first
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
