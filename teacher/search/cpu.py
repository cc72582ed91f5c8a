"""Exact search among quantised features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TypeVar

import numpy as np

from ...wall.errors import InvalidInput
from .by_person import ByPerson
from .index import (
    Count,
    Nearest,
    PrefixCache,
    Ranked,
    check_features,
    check_queries,
    squared_norms,
)
from .int8_matmul import Product, best_product, minus_twice
from .kernels import Select, Similar
from .lsh import HashTables, codes, gathered_products
from .threads import default_threads, parallel_map
from .top_k import Lists, sample_bounds, sampled_rank, sampling_stride

COMPARED_IDS = 1 << 20  # ids compared together
QUERY_BATCH = 256  # queries searched together
CACHED_BYTES = 2 << 20  # a block of a search: its scores are read while in a core's cache
SCORE_BYTES = 256 << 20  # a block of int32 scores of all records
KEY_ROWS = 1 << 20  # records that are sorted together
# Pairs of a query and a record that a selection looks at together: 20 bytes for each that is near.
SELECTED_PAIRS = 1 << 26
ROW_BITS = 32  # of a key: scores are below 2^26 in absolute value, rows below 2^31
ROW_MASK = (1 << ROW_BITS) - 1

# Costs in units of a batch's product with one record: to gather a candidate for one query, and to
# read a record.
GATHER_COST = 40
READ_COST = 17

T = TypeVar("T")


class ExactIndex:
    """The records in exact order of (squared distance, id).

    The order does not depend on the batch size, the number of threads or the other records. Squared
    distances are integers below 2^26, and equal ones are ordered by id. This is a total order: an
    added record does not reorder the others. Records are stored by ascending id, so that ties go to
    the lower row; methods return rows, features and distances in the order the records were given.

    Memory beyond the features and ids, which may be memory-mapped files: 4 bytes a record, a sample
    of the features (a 31st, from 2^18 records a 127th) and under 1 GiB for two threads, for any
    number of records. Features whose ids do not ascend are copied once.

    Args:
        features: int8 [n, d], entries in -63..63, d <= 4000.
        ids: int64 [n], unique.
        persons: int64 [n], where the unit of privacy is a person.
        product: another one than the fastest.
        threads: of the selection, torch's number if None.

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
        self._order = _order_by_id(features, ids)
        stored = features if self._order is None else features[self._order]
        self._features = np.ascontiguousarray(stored)
        self._norms = squared_norms(self._features)
        self.ids, self.persons = ids, persons
        self._by_person = None if persons is None else ByPerson(self, persons)
        self._recent = PrefixCache()
        self._product = product or best_product()
        self._threads = threads
        self._tables: tuple[tuple[int, int, int], HashTables] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def units(self) -> Ranked:
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

    def distances(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """Squared distances of each query to all records, in the order they were given.

        ``queries``: int8 [q, d]. Yields int32 [n] for each.
        """
        check_features("queries", queries, self.dimensions)
        norms = squared_norms(queries)
        for start, scores in self._all_scores(queries):
            for own, norm in zip(scores, norms[start : start + len(scores)], strict=True):
                yield self._in_given_order(own + norm)  # below 2^26

    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        """What ``select`` selects for each query (int8 [q, d]), as rows ascending by id.

        ``hashing``: (tables, bits, public seed). It restricts the selection to records that share a
        bucket with the query. Products are then computed one query at a time if that costs less
        than one product of the whole batch with all records.
        """
        check_features("queries", queries, self.dimensions)
        if hashing is None:
            similar = self._similar(queries, select)
        else:
            similar = self._similar_hashed(queries, select, self._hash_tables(hashing))
        if self._order is None:
            return similar
        return [Similar(self._order[near.rows].astype(np.int32), near.weights) for near in similar]

    def _nearest(self, queries: np.ndarray, width: int) -> Nearest:
        rows, scores = self._search(queries, width)
        scores += squared_norms(queries)[:, None]
        return Nearest(rows if self._order is None else self._order[rows], scores)

    def _search(self, queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Stored rows of the ``width`` nearest, and |x - q|^2 - |q|^2, in order.

        int64 and int32, both [q, width].
        """
        rows = np.empty((len(queries), width), dtype=np.int64)
        scores = np.empty((len(queries), width), dtype=np.int32)
        for start in range(0, len(queries) if width else 0, QUERY_BATCH):
            batch = queries[start : start + QUERY_BATCH]
            own = rows[start : start + QUERY_BATCH], scores[start : start + QUERY_BATCH]
            self._search_all(batch, self._search_within_bounds(batch, *own), *own)
        return rows, scores

    def _search_within_bounds(
        self, queries: np.ndarray, rows: np.ndarray, scores: np.ndarray
    ) -> np.ndarray:
        """Fill the lists of a batch from the scores within guessed bounds.

        Returns the places of queries whose bounds were too low, or far too high: int64 [s].
        """
        width, stride = rows.shape[1], self._stride
        rank, sample = sampled_rank(width, stride), self._features[::stride]
        if rank >= len(sample):
            return np.arange(len(queries))
        threads = self._number_of_threads()
        ranges, shares = _split(len(self), threads), _split(len(queries), threads)
        bounds = np.concatenate(
            self._map(lambda share: self._guess(queries[share.start : share.stop], rank), shares)
        )
        lists = Lists(bounds, 2 * stride * rank, len(ranges))

        def fill(part: int, own: range) -> None:
            for first, cross in self._blocks(queries, own):
                # |x - q|^2 - |q|^2 = -2 q.x + |x|^2
                lists.add(part, cross, self._norms[first : first + cross.shape[1]], first)

        self._map(fill, range(len(ranges)), ranges)
        complete = self._map(lambda share: lists.order(share, rows, scores), shares)
        return np.flatnonzero(~np.concatenate(complete))

    def _search_all(
        self, queries: np.ndarray, places: np.ndarray, rows: np.ndarray, scores: np.ndarray
    ) -> None:
        """Fill lists from all scores. ``places``: of the queries that need it, int64 [s]."""
        width = rows.shape[1]

        def order(place: int, own: np.ndarray) -> None:
            keys = _smallest_keys(own, width)
            rows[place], scores[place] = keys & ROW_MASK, keys >> ROW_BITS

        for start, some in self._all_scores(queries[places]):
            self._map(order, places[start : start + len(some)].tolist(), some)

    @cached_property
    def _sample(self) -> tuple[np.ndarray, np.ndarray]:
        """Every so many-th record's features and squared norm."""
        part = slice(None, None, self._stride)
        return np.ascontiguousarray(self._features[part]), np.ascontiguousarray(self._norms[part])

    @property
    def _stride(self) -> int:
        return sampling_stride(len(self))

    def _guess(self, queries: np.ndarray, rank: int) -> np.ndarray:
        """A bound of each query's scores from the sample: int32 [q]."""
        sample, norms = self._sample
        cross = np.empty((len(queries), len(sample)), dtype=np.int32)
        self._product(minus_twice(queries), sample, cross)
        return sample_bounds(cross, norms, rank)

    def _all_scores(self, queries: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """(first query, |x - q|^2 - |q|^2 for all records) of each batch: int32 [b, n]."""
        size = max(1, SCORE_BYTES // (4 * max(1, len(self))))
        for start in range(0, len(queries), size):
            batch = queries[start : start + size]
            cross = np.empty((len(batch), len(self)), dtype=np.int32)
            self._product(minus_twice(batch), self._features, cross)
            cross += self._norms
            yield start, cross

    def _similar(self, queries: np.ndarray, select: Select) -> list[Similar]:
        """What ``select`` selects for each query, as stored rows."""
        norms, similar = squared_norms(queries), list[Similar]()
        size = max(1, min(QUERY_BATCH, SELECTED_PAIRS // max(1, len(self))))
        for start in range(0, len(queries), size):
            part = slice(start, start + size)
            near = self._near(queries[part], norms[part], select)
            similar += self._map(
                lambda rows, cross, norm: self._selected(select, rows, cross, norm),
                *zip(*near, strict=True),
                norms[part].tolist(),
            )
        return similar

    def _near(
        self, queries: np.ndarray, norms: np.ndarray, select: Select
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(stored rows int64 [m], cross terms int32 [m]) of each query, those that
        ``select.max_cross`` does not rule out, by ascending row.
        """

        def part(rows: range) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
            near = []
            for first, cross in self._blocks(queries, rows):
                min_norm = int(self._norms[first : first + cross.shape[1]].min())
                hits = np.flatnonzero(cross <= select.max_cross(min_norm, norms)[:, None])
                numbers, columns = np.divmod(hits, cross.shape[1])
                near.append((numbers, columns + first, cross.ravel()[hits]))
            return near

        parts = self._map(part, _split(len(self), self._number_of_threads()))
        return by_query(len(queries), [block for blocks in parts for block in blocks])

    def _selected(self, select: Select, rows: np.ndarray, cross: np.ndarray, norm: int) -> Similar:
        near = select(cross, self._norms[rows], norm)
        return Similar(rows[near.rows].astype(np.int32), near.weights)

    def _similar_hashed(
        self, queries: np.ndarray, select: Select, tables: HashTables
    ) -> list[Similar]:
        """What ``select`` selects among the candidates of each query, as stored rows."""
        buckets = codes(queries, tables.planes, tables.bits, self._product)
        candidates = self._map(tables.candidates, buckets)
        gathering = GATHER_COST * sum(len(rows) for rows in candidates)
        if gathering > len(self) * (len(queries) + READ_COST):
            similar = self._similar(queries, select)
            kept = [
                np.isin(near.rows, rows) for near, rows in zip(similar, candidates, strict=True)
            ]
            pairs = zip(similar, kept, strict=True)
            return [Similar(near.rows[own], near.weights[own]) for near, own in pairs]

        def select_for_one(rows: np.ndarray, query: np.ndarray, norm: int) -> Similar:
            cross = gathered_products(self._features, rows, query, self._product)
            return self._selected(select, rows, cross, norm)

        return self._map(select_for_one, candidates, queries, squared_norms(queries).tolist())

    def _hash_tables(self, hashing: tuple[int, int, int]) -> HashTables:
        """The tables of these settings, built once."""
        if self._tables is None or self._tables[0] != hashing:
            self._tables = hashing, HashTables.build(self._features, *hashing, self._product)
        return self._tables[1]

    def _blocks(self, queries: np.ndarray, rows: range) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, -2 q.x) of each block of the ``rows``, ascending.

        Products are int32 [q, r], in a buffer that the next block overwrites: fresh pages cost as
        much as a selection.
        """
        doubled, size = minus_twice(queries), max(1, CACHED_BYTES // (4 * max(1, len(queries))))
        buffer = np.empty(len(queries) * min(size, len(rows)), dtype=np.int32)
        for first in rows[::size]:
            block = self._features[first : min(first + size, rows.stop)]
            cross = buffer[: len(queries) * len(block)].reshape(len(queries), len(block))
            self._product(doubled, block, cross)
            yield first, cross

    def _in_given_order(self, stored: np.ndarray) -> np.ndarray:
        """Entries by stored row, in the order the records were given."""
        if self._order is None:
            return stored
        given = np.empty_like(stored)
        given[self._order] = stored
        return given

    def _map(self, function: Callable[..., T], *columns: Iterable[object]) -> list[T]:
        return parallel_map(self._number_of_threads(), function, *columns)

    def _number_of_threads(self) -> int:
        return self._threads or default_threads()


def by_query(
    count: int, blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(rows, cross terms) of each of ``count`` queries, rows ascending.

    ``blocks``: (query's number, row, cross term) of pairs, by ascending rows.
    """
    none = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    numbers, rows, cross = (np.concatenate(column) for column in zip(none, *blocks, strict=True))
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=count))[:-1]
    return list(zip(np.split(rows[order], ends), np.split(cross[order], ends), strict=True))


def _smallest_keys(scores: np.ndarray, m: int) -> np.ndarray:
    """The ``m`` smallest keys (score << 32 | row) of int32 [n], ascending: int64 [m], m > 0."""
    best = np.zeros(0, dtype=np.int64)
    for start in range(0, len(scores), KEY_ROWS):
        part = scores[start : start + KEY_ROWS].astype(np.int64)
        best = np.append(best, (part << ROW_BITS) | np.arange(start, start + len(part)))
        if len(best) > m:
            best = np.partition(best, m - 1)[:m]
    best.sort()
    return best


def _order_by_id(features: np.ndarray, ids: np.ndarray) -> np.ndarray | None:
    """Rows by ascending id, int64 [n], or None if ids ascend.

    Raises InvalidInput for records that cannot be searched.
    """
    check_features("features", features)
    if ids.dtype != np.int64 or ids.shape != features.shape[:1]:
        rule = "int64, one for each row of `features`"
        raise InvalidInput("ids", rule, f"{ids.dtype} {list(ids.shape)}")
    # By blocks: sorting takes 33 bytes a record.
    blocks = (ids[s : s + COMPARED_IDS + 1] for s in range(0, len(ids), COMPARED_IDS))
    if all((block[1:] > block[:-1]).all() for block in blocks):
        return None
    order = np.argsort(ids, kind="stable")
    if (np.diff(ids[order]) == 0).any():
        raise InvalidInput("ids", "unique", "duplicates")
    return order


def _split(count: int, workers: int) -> list[range]:
    """0 to count - 1 as at most ``workers`` ranges of about equal length; one range if empty."""
    step = max(1, -(-count // workers))
    return [range(start, min(start + step, count)) for start in range(0, max(count, 1), step)]
