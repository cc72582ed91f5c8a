"""Exact search among quantised features on the processor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from .index import OrderedIndex, check_features, squared_norms
from .int8_matmul import choose_product, minus_twice
from .kernels import Select, Similar
from .lsh import HashTables, codes, gathered_products
from .threads import default_threads, parallel_map
from .top_k import UNBOUNDED, TopK, sample_bounds, sampling_stride

SCORE_BYTES = 256 << 20  # a block of int32 scores of all records
CACHED_BYTES = 2 << 20  # a block of a search: its scores are read while in a core's cache
# The largest buffer of lists that is kept for the next search: fresh pages cost more than a small
# search.
BUFFER_BYTES = 256 << 20
QUERY_BATCH = 256  # queries searched together
SELECT_ROWS = 1 << 16  # records whose similarity is decided together

# Costs in units of a batch's product with one record: to gather a candidate for one query, and to
# read a record.
GATHER_COST = 40
READ_COST = 17

T = TypeVar("T")


class ExactIndex(OrderedIndex):
    """The records in exact order of (squared distance, id).

    The order does not depend on the batch size, the number of threads or the other records.
    ``features``: int8 [n, d], entries in -63..63, d <= 4000; ``ids``: int64 [n], unique. Squared
    distances are integers below 2^26, and equal ones are ordered by id. This is a total order: an
    added record does not reorder the others.

    Memory beyond the features and ids, which may be memory-mapped files: 4 bytes a record, a sample
    of the features (a 31st, from 2^18 records a 127th) and under 1 GiB for two threads, for any
    number of records. Features whose ids do not ascend are copied once.

    ``product``: "int8" or "float32" instead of the faster one; ``threads``: of the selection,
    torch's number if None.

    Raises InvalidInput for any other shape, dtype or entry. n = 0 is allowed.
    """

    def __init__(
        self,
        features: np.ndarray,
        ids: np.ndarray,
        persons: np.ndarray | None = None,
        *,
        product: str | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__(features, ids, persons)
        self._norms = squared_norms(self._features)
        self._stride = sampling_stride(len(ids))
        self._sample = np.ascontiguousarray(self._features[:: self._stride])
        self._sample_norms = np.ascontiguousarray(self._norms[:: self._stride])
        self._product = choose_product(product)
        self._threads = threads
        self._tables: tuple[tuple[int, int, int], HashTables] | None = None

    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        """What ``select`` selects for each query (int8 [q, d]), as rows ascending by id.

        ``hashing``: (tables, bits, public seed). It restricts the selection to records that share a
        bucket with the query. Products are then computed one query at a time if that costs less
        than one product of the whole batch with all records.
        """
        check_features("queries", queries, self.dimensions)
        norms = squared_norms(queries).tolist()
        if hashing is not None:
            return self._similar_hashed(queries, norms, select, self._hash_tables(hashing))

        def select_in_block(query: int, first: int, cross: np.ndarray) -> Similar:
            near = select(cross, self._norms[first : first + len(cross)], norms[query])
            return Similar(near.rows + np.int32(first), near.weights)

        return self._select_by_block(queries, select_in_block)

    def _similar_hashed(
        self, queries: np.ndarray, norms: list[int], select: Select, tables: HashTables
    ) -> list[Similar]:
        def select_rows(rows: np.ndarray, cross: np.ndarray, norm: int) -> Similar:
            near = select(cross, self._norms[rows], norm)
            return Similar(rows[near.rows].astype(np.int32), near.weights)

        def select_for_one(rows: np.ndarray, query: np.ndarray, norm: int) -> Similar:
            cross = gathered_products(self._features, rows, query, self._product)
            return self._to_given_rows(select_rows(rows, cross, norm))

        buckets = codes(queries, tables.planes, tables.bits, self._product)
        candidates = self._map(tables.candidates, buckets)
        gathering = GATHER_COST * sum(len(rows) for rows in candidates)
        if gathering <= len(self) * (len(queries) + READ_COST):
            return self._map(select_for_one, candidates, queries, norms)

        def select_in_block(query: int, first: int, cross: np.ndarray) -> Similar:
            rows = candidates[query]
            start, stop = np.searchsorted(rows, (first, first + len(cross)))
            rows = rows[start:stop]
            return select_rows(rows, cross[rows - first], norms[query])

        return self._select_by_block(queries, select_in_block)

    def _select_by_block(
        self, queries: np.ndarray, select_in_block: Callable[[int, int, np.ndarray], Similar]
    ) -> list[Similar]:
        """For each query, the concatenated results of ``select_in_block`` over blocks of records.

        Its arguments: the query's number, the block's first row, the query's cross terms with it.
        """
        found: list[Similar] = []
        for start in range(0, len(queries), QUERY_BATCH):
            batch = queries[start : start + QUERY_BATCH]
            numbers = range(start, start + len(batch))
            parts = [
                self._map(select_in_block, numbers, [first] * len(batch), cross)
                for first, cross in self._blocks(batch, SELECT_ROWS)
            ]
            of_queries = zip(*parts, strict=True) if parts else [()] * len(batch)
            found += [self._to_given_rows(concatenated(part)) for part in of_queries]
        return found

    def distances(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """Squared distances of each query to all records, in the order they were given.

        ``queries``: int8 [q, d]. Yields int32 [n] for each.
        """
        check_features("queries", queries, self.dimensions)
        norms = squared_norms(queries)
        batch_size = max(1, SCORE_BYTES // (4 * max(1, len(self))))
        for start in range(0, len(queries), batch_size):
            batch = queries[start : start + batch_size]
            cross = np.empty((len(batch), len(self)), dtype=np.int32)
            self._product(minus_twice(batch), self._features, cross)
            for row, norm in zip(cross, norms[start:], strict=False):
                yield self._in_given_order(row + self._norms + norm)  # below 2^26

    def _hash_tables(self, hashing: tuple[int, int, int]) -> HashTables:
        """The tables of these settings, built once."""
        if self._tables is None or self._tables[0] != hashing:
            self._tables = hashing, HashTables.build(self._features, *hashing, self._product)
        return self._tables[1]

    def _blocks(
        self, queries: np.ndarray, size: int, rows: range | None = None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, -2 q.x) of each block of at most ``size`` records, by ascending row.

        ``rows``: the records, all if None. Products are int32 [q, r], in a buffer that the next
        block overwrites.
        """
        rows = range(len(self)) if rows is None else rows
        doubled = minus_twice(queries)
        # One buffer for all blocks: fresh pages cost as much as a selection.
        scores = np.empty(len(queries) * min(size, len(rows)), dtype=np.int32)
        for first in rows[::size]:
            block = self._features[first : min(first + size, rows.stop)]
            cross = scores[: len(queries) * len(block)].reshape(len(queries), len(block))
            self._product(doubled, block, cross)
            yield first, cross

    def _search(self, queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        rows, distances = _empty_lists(len(queries), width)
        for start in range(0, len(queries), QUERY_BATCH):
            part = slice(start, start + QUERY_BATCH)
            bounds = self._guess_bounds(queries[part], width)
            counts = self._select(queries[part], bounds, rows[part], distances[part])
            short = start + np.flatnonzero(counts < width)
            if len(short):  # their bounds were too low: search again without
                again = _empty_lists(len(short), width)
                self._select(queries[short], np.full(len(short), UNBOUNDED, dtype=np.int32), *again)
                rows[short], distances[short] = again
        return rows, distances

    def _guess_bounds(self, queries: np.ndarray, width: int) -> np.ndarray:
        """A bound of each query's scores that ``width`` records or somewhat more satisfy.

        int32 [q].
        """

        def guess(share: range) -> np.ndarray:
            doubled = minus_twice(queries[share.start : share.stop])
            cross = np.empty((len(doubled), len(self._sample)), dtype=np.int32)
            self._product(doubled, self._sample, cross)
            return sample_bounds(cross, self._sample_norms, width, self._stride)

        return np.concatenate(self._map(guess, _split(len(queries), self._number_of_threads())))

    def _select(
        self, queries: np.ndarray, bounds: np.ndarray, rows: np.ndarray, distances: np.ndarray
    ) -> np.ndarray:
        """Fill ``rows`` and ``distances`` within ``bounds`` and return the counts, int64 [q].

        Distances are less |q|^2, which does not change the order.
        """
        workers = self._number_of_threads()
        parts = _split(len(self), workers)
        top = TopK(bounds, rows.shape[1], len(parts), max(map(len, parts)), _take_buffer())
        block_rows = max(1, CACHED_BYTES // (4 * max(1, len(queries))))

        def fill(part: int) -> None:
            for first, cross in self._blocks(queries, block_rows, parts[part]):
                # |x - q|^2 - |q|^2 = -2 q.x + |x|^2
                top.add(part, cross, self._norms[first : first + cross.shape[1]], first)

        def order(share: range) -> np.ndarray:
            return top.order(share, rows, distances)

        self._map(fill, range(len(parts)))
        counts = np.concatenate(self._map(order, _split(len(queries), workers)))
        if top.buffer.nbytes <= BUFFER_BYTES:
            _BUFFERS.append(top.buffer)
        return counts

    def _map(self, function: Callable[..., T], *columns: Iterable[object]) -> list[T]:
        return parallel_map(self._number_of_threads(), function, *columns)

    def _number_of_threads(self) -> int:
        return self._threads or default_threads()


_BUFFERS: deque[np.ndarray] = deque(maxlen=1)  # the last search's, reused by any index's next one


def _take_buffer() -> np.ndarray | None:
    """The last search's buffer, or None before a search and while another thread uses it."""
    try:
        return _BUFFERS.pop()
    except IndexError:
        return None


def _empty_lists(queries: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Uninitialised (rows int64, distances int32), both [queries, width]."""
    shape = queries, width
    return np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int32)


def _split(count: int, workers: int) -> list[range]:
    """0 to count - 1 as at most ``workers`` ranges of about equal length; one range if empty."""
    step = max(1, -(-count // workers))
    return [range(start, min(start + step, count)) for start in range(0, max(count, 1), step)]


def concatenated(parts: Sequence[Similar]) -> Similar:
    """The selections of consecutive blocks of rows as one."""
    if len(parts) == 1:
        return parts[0]
    rows = [np.zeros(0, dtype=np.int32), *(part.rows for part in parts)]
    weights = [np.zeros(0, dtype=np.uint8), *(part.weights for part in parts)]
    return Similar(np.concatenate(rows), np.concatenate(weights))
