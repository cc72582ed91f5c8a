"""Exact search among quantised features."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TypeVar

import numpy as np

from ...wall.errors import InvalidInput, shape_text
from .index import Count, Index, check_features, squared_norms
from .int8_matmul import best_product
from .kernels import HashTables, Product, Select, Similar, codes, gathered_products, minus_twice
from .loops import compiled, default_threads, parallel_map

QUERY_BATCH = 256  # queries searched together
SCORES = 1 << 19  # of a block: 2 MiB, which are read while in a core's cache
CHUNK = 1 << 18  # records whose scores may all be in memory together, 8 bytes for each query
# Pairs of a query and a record that a selection looks at together: 20 bytes for each that is near.
SELECTED_PAIRS = 1 << 26
STRIDE = 31  # of the sample that bounds are guessed from: a prime, since data sets can be periodic
ROW_BITS = 32  # of a key: scores are below 2^26 in absolute value, rows below 2^31
ROW_MASK = (1 << ROW_BITS) - 1
ANY_SCORE = np.iinfo(np.int32).max

# Costs in units of a batch's product with one record: to gather a candidate for one query, and to
# read a record.
GATHER_COST = 40
READ_COST = 17

T = TypeVar("T")


class ExactIndex(Index):
    """The records in exact order of (squared distance, id).

    The order does not depend on the batch size, the number of threads or the other records. Squared
    distances are integers below 2^26, and equal ones are ordered by id. This is a total order: an
    added record does not reorder the others.

    Memory beyond the features and ids, which may be memory-mapped files: 4 bytes a record, a sample
    of the features (a 31st) and under 1 GiB for two threads, for any number of records.

    Args:
        features: int8 [n, d], entries in -63..63, d <= 4000.
        ids: int64 [n], ascending.
        persons: int64 [n], where the unit of privacy is a person.
        product: another one than the fastest.
        threads: of the search, torch's number if None.

    Raises InvalidInput for any other shape, dtype or entry. n = 0 is allowed.
    """

    def __init__(
        self,
        features: np.ndarray,
        ids: np.ndarray,
        persons: np.ndarray | None = None,
        *,
        product: Product | None = None,
        threads: int | None = None,
    ) -> None:
        check_features("features", features)
        if ids.dtype != np.int64 or ids.shape != features.shape[:1]:
            rule = "int64, one for each row of `features`"
            raise InvalidInput("ids", rule, shape_text(ids))
        if not (ids[1:] > ids[:-1]).all():
            raise InvalidInput("ids", "ascending", "others")
        super().__init__(persons)
        self.features, self.ids = np.ascontiguousarray(features), ids
        self.dimensions = features.shape[1]
        self._norms = squared_norms(self.features)
        self._product = product or best_product()
        self._threads = threads
        self._tables: tuple[tuple[int, int, int], HashTables] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def total(self, count: Count, labels: np.ndarray) -> np.ndarray:
        return count(self, labels)

    def nearest(self, queries: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows, int64, and squared distances, int32 [q, min(m, n)], of the min(m, n) nearest."""
        keys = self._keys(queries, min(m, len(self)))
        scores = (keys >> ROW_BITS).astype(np.int32)
        return keys & ROW_MASK, scores + squared_norms(queries)[:, None]

    def distances(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """Squared distances of each query (int8 [q, d]) to all records: int32 [n] each."""
        check_features("queries", queries, self.dimensions)
        for batch, norms in self._parts(queries):
            for keys, norm in zip(self._within(batch, _any(batch)), norms, strict=True):
                yield (keys >> ROW_BITS).astype(np.int32) + norm

    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        """Result of ``Index.similar``, rows ascending.

        Among candidates of ``hashing``, products are computed one query at a time if that costs
        less than one product of the whole batch with all records.
        """
        check_features("queries", queries, self.dimensions)
        if hashing is None:
            return self._similar(queries, select)
        if self._tables is None or self._tables[0] != hashing:
            self._tables = hashing, HashTables(self.features, *hashing, self._product)
        tables = self._tables[1]
        buckets = codes(queries, tables.planes, tables.bits, self._product)
        candidates = self._map(tables.candidates, buckets)
        gathering = GATHER_COST * sum(len(rows) for rows in candidates)
        if gathering > len(self) * (len(queries) + READ_COST):
            similar = []
            for found, rows in zip(self._similar(queries, select), candidates, strict=True):
                own = np.isin(found.rows, rows)
                similar.append(Similar(found.rows[own], found.weights[own]))
            return similar

        def select_for_one(rows: np.ndarray, query: np.ndarray, norm: int) -> Similar:
            cross = gathered_products(self.features, rows, query, self._product)
            return self._selected(select, rows, cross, norm)

        return self._map(select_for_one, candidates, queries, squared_norms(queries).tolist())

    def _search(self, queries: np.ndarray, width: int) -> np.ndarray:
        keys = self._keys(queries, width)
        keys &= ROW_MASK
        return keys

    def _keys(self, queries: np.ndarray, width: int) -> np.ndarray:
        """Each query's ``width`` <= n smallest keys, ascending: int64 [q, width]."""
        check_features("queries", queries, self.dimensions)
        keys = np.empty((len(queries), width), dtype=np.int64)
        for start in range(0, len(queries) if width else 0, QUERY_BATCH):
            batch = queries[start : start + QUERY_BATCH]
            lists = self._within(batch, self._guessed_bounds(batch, width), width)
            short = [query for query, own in enumerate(lists) if len(own) < width]
            whole = self._within(batch[short], _any(batch[short]), width)
            for query, own in zip(short, whole, strict=True):
                lists[query] = own
            np.stack(lists, out=keys[start : start + QUERY_BATCH])
        return keys

    def _within(
        self, queries: np.ndarray, bounds: np.ndarray, most: int | None = None
    ) -> list[np.ndarray]:
        """Keys (score << 32 | row) of each query's scores up to its bound, by row: int64 [m].

        A score is |x - q|^2 - |q|^2 = -2 q.x + |x|^2. ``bounds``: int32 [q]. ``most``: where it is
        given, only so many of the smallest keys, ascending.
        """
        left, lists = minus_twice(queries), [np.zeros(0, dtype=np.int64)] * len(queries)
        # Lines of scores begin in different sets of a cache
        size = SCORES // max(1, len(queries)) + 16

        def search(rows: range) -> list[np.ndarray]:
            # Used again and again: fresh pages cost as much as the selection
            buffer = np.empty(len(left) * min(size, len(rows)), dtype=np.int32)
            keys, counts = np.empty((len(left), 0), dtype=np.int64), np.zeros(len(left), np.int64)
            for start in rows[::size]:
                features = self.features[start : min(start + size, rows.stop)]
                shape = len(left), len(features)
                cross = buffer[: math.prod(shape)].reshape(shape)
                self._product(left, features, cross)
                needed = int(counts.max()) + len(features)
                if needed > keys.shape[1]:
                    longer = np.empty((len(left), min(2 * needed, len(rows))), dtype=np.int64)
                    longer[:, : keys.shape[1]] = keys
                    keys = longer
                norms = self._norms[start : start + len(features)]
                _collect(cross, norms, start, bounds, keys, counts)
            return [own[:count] for own, count in zip(keys, counts.tolist(), strict=True)]

        for first in range(0, len(self) if len(queries) else 0, CHUNK):
            rows = range(first, min(first + CHUNK, len(self)))
            each = -(-len(rows) // self._number_of_threads())
            parts = self._map(
                search, [rows[start : start + each] for start in range(0, len(rows), each)]
            )
            lists = self._joined(lists, parts, most)
        return lists

    def _joined(
        self, lists: list[np.ndarray], others: list[list[np.ndarray]], most: int | None
    ) -> list[np.ndarray]:
        """Each query's list and its lists in ``others``, or the ``most`` smallest keys of them."""

        def join(*parts: np.ndarray) -> np.ndarray:
            keys = np.concatenate(parts)
            return keys if most is None else keys[_by_score(keys)[:most]]

        return self._map(join, lists, *others)

    def _guessed_bounds(self, queries: np.ndarray, width: int) -> np.ndarray:
        """Bounds that the ``width``-th smallest scores seldom exceed, from a sample: int32 [q]."""
        sample, norms = self._sample
        share = width / STRIDE
        rank = int(share + 4 * math.sqrt(share) + 3)
        if rank >= len(sample):
            return _any(queries)
        scores = np.empty((len(queries), len(sample)), dtype=np.int32)
        self._product(minus_twice(queries), sample, scores)
        scores += norms
        return np.partition(scores, rank, axis=1)[:, rank].copy()

    @cached_property
    def _sample(self) -> tuple[np.ndarray, np.ndarray]:
        return np.ascontiguousarray(self.features[::STRIDE]), self._norms[::STRIDE]

    def _similar(self, queries: np.ndarray, select: Select) -> list[Similar]:
        """Rows that ``select`` selects for each query, as stored."""
        positive, similar = self._norms[self._norms > 0], list[Similar]()
        ends = (int(positive.min()), int(positive.max())) if len(positive) else (0, 0)
        for batch, norms in self._parts(queries):
            lists = self._within(batch, select.bounds(*ends, norms))

            def selected(keys: np.ndarray, norm: int) -> Similar:
                rows = keys & ROW_MASK
                cross = (keys >> ROW_BITS).astype(np.int32) - self._norms[rows]
                return self._selected(select, rows, cross, norm)

            similar += self._map(selected, lists, norms.tolist())
        return similar

    def _selected(self, select: Select, rows: np.ndarray, cross: np.ndarray, norm: int) -> Similar:
        found = select(cross, self._norms[rows], norm)
        return Similar(rows[found.rows].astype(np.int32), found.weights)

    def _parts(self, queries: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Queries whose scores of all records may be in memory together, and |q|^2 of each."""
        norms, size = squared_norms(queries), SELECTED_PAIRS // max(1, len(self))
        size = max(1, min(QUERY_BATCH, size))
        for start in range(0, len(queries), size):
            yield queries[start : start + size], norms[start : start + size]

    def _map(self, function: Callable[..., T], *columns: Iterable[object]) -> list[T]:
        return parallel_map(self._number_of_threads(), function, *columns)

    def _number_of_threads(self) -> int:
        return self._threads or default_threads()


def _any(queries: np.ndarray) -> np.ndarray:
    """Bounds that every score satisfies: int32 [q]."""
    return np.full(len(queries), ANY_SCORE, dtype=np.int32)


def _by_score(keys: np.ndarray) -> np.ndarray:
    """Places of the keys in the order of their scores; equal ones stay as they are: int64 [m].

    numpy's stable sort of 16 bits is a radix sort, three times as fast as one of whole keys.
    """
    scores = keys >> ROW_BITS
    scores -= scores.min(initial=ANY_SCORE)
    order = np.argsort(scores.astype(np.uint16), kind="stable")
    high = (scores >> 16).astype(np.uint16)
    return order[np.argsort(high[order], kind="stable")] if high.any() else order


@compiled
def _collect(
    cross: np.ndarray,
    norms: np.ndarray,
    first: int,
    bounds: np.ndarray,
    keys: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Append the keys of a block's scores ``cross`` + ``norms`` up to each query's bound, in order.

    ``keys``: int64 [q, enough]; ``counts``: int64 [q], of each query's keys. No branch depends on a
    single score, which the processor would mispredict; eight scores above the bound, which most
    are, are passed at once. Indices are unsigned: numba checks each signed one for being negative.
    """
    within = np.zeros(len(norms) + 7, dtype=np.uint8)
    eights = within[: len(within) // 8 * 8].view(np.uint64)
    groups = np.empty(len(eights) + 1, dtype=np.uint32)
    columns = np.empty(len(within) + 1, dtype=np.uint32)
    for query in range(len(cross)):
        line, bound, some, hits = cross[query], bounds[query], np.uint64(0), np.uint64(0)
        for column in range(np.uint64(len(norms))):
            within[column] = np.int32(line[column] + norms[column]) <= bound
        for group in range(np.uint64(len(eights))):
            groups[some] = group
            some += np.uint64(eights[group] != 0)
        for number in range(some):
            eight = np.uint64(groups[number]) << np.uint64(3)
            for lane in range(np.uint64(8)):
                columns[hits] = eight + lane
                hits += np.uint64(within[eight + lane])
        own, count = keys[query], np.uint64(counts[query])
        for number in range(hits):
            place = np.uint64(columns[number])
            score = np.int64(line[place] + norms[place])
            own[count + number] = (score << ROW_BITS) | np.int64(first + place)
        counts[query] += np.int64(hits)
