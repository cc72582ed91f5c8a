"""Lists of the nearest persons: an ordered list of rows, of which each person's first one stays."""

from __future__ import annotations

import math
import weakref

import numpy as np

from .index import PrefixCache, Ranked
from .kernels import Similar
from .top_k import compiled

LIST_ENTRIES = 1 << 23  # of ordered lists of rows in memory together
MARGIN = 1.25  # of the rows that the tried lists took
TRIED = 8  # queries whose lists show how many rows so many persons take


class ByPerson:
    """The persons of an index, ranked by their nearest rows: by (squared distance, id) of these.

    An order of persons that no other person changes. A list of rows is walked until it has shown
    as many persons as are asked for; where it ends before, a longer one is searched, up to all
    rows. How long a list is tried first changes the time alone.

    ``persons``: int64 [n], by row of ``index``.
    """

    def __init__(self, index: Ranked, persons: np.ndarray) -> None:
        self._index: Ranked = weakref.proxy(index)  # which holds this
        self.ids = persons
        self.codes, numbers = np.unique(persons, return_inverse=True)
        self.numbers = numbers.astype(np.int32).reshape(-1)
        self._recent = PrefixCache()
        self._enough: dict[int, int] = {}  # rows that lists of so many persons took

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
        tried = 0 if width in self._enough else min(TRIED, len(queries))
        if tried:
            used = self._fill(queries[:tried], lists[:tried], min(width, len(self._index)))
            self._enough[width] = min(math.ceil(MARGIN * used), len(self._index))
        self._fill(queries[tried:], lists[tried:], self._enough.get(width, 0))
        return lists

    def _fill(self, queries: np.ndarray, lists: np.ndarray, rows: int) -> int:
        """Fill int64 [q, width] from lists of ``rows`` and more.

        Returns how many rows the longest list needed.
        """
        pending, longest = np.arange(len(queries)), 0
        while len(pending) and lists.shape[1]:
            short = []
            size = max(1, LIST_ENTRIES // rows)
            for start in range(0, len(pending), size):
                part = pending[start : start + size]
                near = self._index.prefix(queries[part], rows)
                first = np.empty((len(part), lists.shape[1]), dtype=np.int64)
                used = np.empty(len(part), dtype=np.int64)
                _firsts(np.ascontiguousarray(near), self.numbers, len(self), first, used)
                done = used >= 0
                lists[part[done]] = first[done]
                longest = max(longest, int(used.max()))
                short.append(part[~done])
            pending, rows = np.concatenate(short), min(2 * rows, len(self._index))
        return longest


@compiled
def _firsts(
    lists: np.ndarray, numbers: np.ndarray, persons: int, first: np.ndarray, used: np.ndarray
) -> None:
    """The first row of each person in each list, as many as ``first`` takes: int64 [q, width].

    ``lists``: int64 [q, m], rows; ``numbers``: int32 [n], 0..``persons`` - 1, by row. ``used``:
    int64 [q], how much of a list that takes, -1 where the list is too short.
    """
    seen = np.full(persons, -1, dtype=np.int32)
    for query in range(len(lists)):
        count, used[query] = 0, -1
        for place in range(lists.shape[1]):
            row = lists[query, place]
            number = numbers[row]
            if seen[number] != query:
                seen[number] = query
                first[query, count] = row
                count += 1
                if count == first.shape[1]:
                    used[query] = place + 1
                    break
