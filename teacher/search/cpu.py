"""Exact search among quantised features."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from labelwall.teacher.search.int8_matmul import choose_product, minus_twice
from labelwall.teacher.search.kernels import Select, Similar
from labelwall.teacher.search.lsh import HashTables, codes, products_of
from labelwall.teacher.search.ordered import OrderedIndex, check_features, squared_norms
from labelwall.teacher.search.threads import default_threads, spread
from labelwall.teacher.search.top_k import UNBOUNDED, Smallest, bounds_of_sample, stride_of

SCORE_BYTES = 256 << 20  # one block of int32 scores that are wanted for all records
CACHED_BYTES = (
    2 << 20
)  # one block of a search: scores that are still in a core's cache when they are looked at
ROOM_BYTES = (
    256 << 20
)  # of lists that are kept for the next search: fresh pages, huge ones, cost more than a small search
TOGETHER = 256  # queries searched together
AT_ONCE = 1 << 16  # records whose similarity is decided together
ALONE, STREAM = (
    40,
    17,
)  # in steps of a batch's product with one record: a candidate gathered for one query; reading a record
T = TypeVar("T")


class ExactIndex(OrderedIndex):
    """The records in exact order of (squared distance, id), for any batch size, thread count and company of records.

    ``features``: int8 [n, d], entries in -63..63, d <= 4000; ``ids``: int64 [n], unique. Squared distances are integers
    below 2^26 and equal ones are ordered by id: a total order, which an added record enters without reordering the others.
    Memory beyond the features: 12 bytes a record, a sample of the features (a 31st, from 2^18 records a 127th) and under 1 GiB
    for two threads, whatever the number of records (features whose ids do not ascend are copied once). Features may be a
    memory-mapped file.
    ``product``: "int8" or "float32" instead of the faster one; ``threads``: of the selection, torch's number where None.

    Raises InvalidInput for any other shape, dtype or entry. n = 0 is allowed.
    """

    def __init__(
        self,
        features: np.ndarray,
        ids: np.ndarray,
        *,
        product: str | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__(features, ids)
        self._norms = squared_norms(self._features)
        self._stride = stride_of(len(ids))
        self._sample, self._sample_norms = (
            np.ascontiguousarray(a[:: self._stride]) for a in (self._features, self._norms)
        )
        self._product, self._threads = choose_product(product), threads
        self._tables: tuple[tuple[int, int, int], HashTables] | None = None

    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        """What ``select`` makes of all records for each of ``queries`` (int8 [q, d]), as row positions, ascending by id.

        ``hashing``: (tables, bits, public seed): only records that share a bucket with the query are looked at. Their products
        are computed one query at a time where that is less work than one product of the whole batch with all records.
        """
        check_features("queries", queries, self.dimensions)
        norms = squared_norms(queries).tolist()
        if hashing is not None:
            return self._similar_hashed(queries, norms, select, self._hashed(hashing))

        def whole(number: int, first: int, cross: np.ndarray) -> Similar:
            near = select(cross, self._norms[first : first + len(cross)], norms[number])
            return Similar(near.rows + np.int32(first), near.weights)

        return self._gathered(queries, whole)

    def _similar_hashed(
        self, queries: np.ndarray, norms: list[int], select: Select, tables: HashTables
    ) -> list[Similar]:
        def among(rows: np.ndarray, cross: np.ndarray, norm: int) -> Similar:
            near = select(cross, self._norms[rows], norm)
            return Similar(rows[near.rows].astype(np.int32), near.weights)

        def alone(rows: np.ndarray, query: np.ndarray, norm: int) -> Similar:
            return self._outward(
                among(rows, products_of(self._features, rows, query, self._product), norm)
            )

        looked = self._spread(
            tables.candidates, codes(queries, tables.planes, tables.bits, self._product)
        )
        if ALONE * sum(len(rows) for rows in looked) <= len(self) * (len(queries) + STREAM):
            return self._spread(alone, looked, queries, norms)

        def whole(number: int, first: int, cross: np.ndarray) -> Similar:
            rows = looked[number]
            start, stop = np.searchsorted(rows, (first, first + len(cross)))
            return among(rows[start:stop], cross[rows[start:stop] - first], norms[number])

        return self._gathered(queries, whole)

    def _gathered(
        self, queries: np.ndarray, whole: Callable[[int, int, np.ndarray], Similar]
    ) -> list[Similar]:
        """For each query the joined results of ``whole(query, first row, cross terms of a block of records)``."""
        found: list[Similar] = []
        for start in range(0, len(queries), TOGETHER):
            part = queries[start : start + TOGETHER]
            numbers, parts = range(start, start + len(part)), []
            for first, cross in self._blocks(part, AT_ONCE):
                parts.append(self._spread(whole, numbers, [first] * len(part), cross))
            found += [self._outward(joined(of_query)) for of_query in zip(*parts, strict=True)]
            found += [joined(()) for _ in part if not parts]
        return found

    def distances(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """Squared distances of each of ``queries`` (int8 [q, d]) to all records, in the order they were given: int32 [n] each."""
        check_features("queries", queries, self.dimensions)
        norms = squared_norms(queries)
        together = max(1, SCORE_BYTES // (4 * max(1, len(self))))
        for start in range(0, len(queries), together):
            cross = np.empty(
                (len(part := queries[start : start + together]), len(self)), dtype=np.int32
            )
            self._product(minus_twice(part), self._features, cross)
            for row, norm in zip(cross, norms[start:], strict=False):
                yield self._as_given(row + self._norms + norm)  # below 2^26

    def _hashed(self, hashing: tuple[int, int, int]) -> HashTables:
        """The tables of these settings, built once."""
        if self._tables is None or self._tables[0] != hashing:
            self._tables = hashing, HashTables.build(self._features, *hashing, self._product)
        return self._tables[1]

    def _blocks(
        self, queries: np.ndarray, rows: int, part: range | None = None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, int32 [q, r] of -2 q.x in a buffer that the next block overwrites), r <= ``rows``, by rising row.

        ``part``: of the records; all where None.
        """
        part = range(len(self)) if part is None else part
        doubled = minus_twice(queries)
        scores = np.empty(
            len(queries) * min(rows, len(part)), dtype=np.int32
        )  # fresh pages cost as much as a selection
        for first in part[::rows]:
            block = self._features[first : min(first + rows, part.stop)]
            cross = scores[: len(queries) * len(block)].reshape(len(queries), len(block))
            self._product(doubled, block, cross)
            yield first, cross

    def _search(self, queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        rows, distances = (
            np.empty((len(queries), width), dtype=np.int64),
            np.empty((len(queries), width), dtype=np.int32),
        )
        for start in range(0, len(queries), TOGETHER):
            part = slice(start, start + TOGETHER)
            counts = self._select(
                queries[part], self._guessed(queries[part], width), rows[part], distances[part]
            )
            short = start + np.flatnonzero(
                counts < width
            )  # the guess was too low: once more, without one
            if len(short):
                more = (
                    np.empty((len(short), width), dtype=np.int64),
                    np.empty((len(short), width), dtype=np.int32),
                )
                self._select(queries[short], np.full(len(short), UNBOUNDED, dtype=np.int32), *more)
                rows[short], distances[short] = more
        return rows, distances

    def _guessed(self, queries: np.ndarray, width: int) -> np.ndarray:
        """A bound of each query's scores that ``width`` records or somewhat more stay within: int32 [q]."""

        def guess(share: range) -> np.ndarray:
            own = minus_twice(queries[share.start : share.stop])
            cross = np.empty((len(own), len(self._sample)), dtype=np.int32)
            self._product(own, self._sample, cross)
            return bounds_of_sample(cross, self._sample_norms, width, self._stride)

        return np.concatenate(self._spread(guess, _shares(len(queries), self._number_of_threads())))

    def _select(
        self, queries: np.ndarray, bounds: np.ndarray, rows: np.ndarray, distances: np.ndarray
    ) -> np.ndarray:
        """Fill ``rows`` and ``distances`` (less |q|^2, which does not change the order) within ``bounds``; counts int64 [q]."""
        workers = self._number_of_threads()
        parts = _shares(len(self), workers)
        smallest = Smallest(bounds, rows.shape[1], len(parts), max(map(len, parts)), _room())
        at_once = max(1, CACHED_BYTES // (4 * max(1, len(queries))))

        def fill(number: int) -> None:
            for first, cross in self._blocks(queries, at_once, parts[number]):
                smallest.add(
                    number, cross, self._norms[first : first + cross.shape[1]], first
                )  # |x - q|^2 - |q|^2

        def order(share: range) -> np.ndarray:
            return smallest.order(share, rows, distances)

        self._spread(fill, range(len(parts)))
        counts = np.concatenate(self._spread(order, _shares(len(queries), workers)))
        if smallest.room.nbytes <= ROOM_BYTES:
            _ROOMS.append(smallest.room)
        return counts

    def _spread(self, function: Callable[..., T], *columns: Iterable[object]) -> list[T]:
        return spread(self._number_of_threads(), function, *columns)

    def _number_of_threads(self) -> int:
        return self._threads or default_threads()


_ROOMS: deque[np.ndarray] = deque(
    maxlen=1
)  # the last search's, for the next one's lists, of whichever index


def _room() -> np.ndarray | None:
    try:
        return _ROOMS.pop()
    except IndexError:  # no search was before, or another thread's has it now
        return None


def _shares(count: int, workers: int) -> list[range]:
    """0 to count - 1 in as many ranges as there are workers, or somewhat fewer; one where there is nothing."""
    step = max(1, -(-count // workers))
    return [range(start, min(start + step, count)) for start in range(0, max(count, 1), step)]


def joined(parts: Sequence[Similar]) -> Similar:
    """What blocks of rising rows select."""
    if len(parts) == 1:
        return parts[0]
    rows = [np.zeros(0, dtype=np.int32), *(part.rows for part in parts)]
    return Similar(
        np.concatenate(rows),
        np.concatenate([np.zeros(0, dtype=np.uint8), *(part.weights for part in parts)]),
    )
