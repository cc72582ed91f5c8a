"""The smallest of many integer scores, in order: a bound from a sample, one pass over blocks, a radix sort of what is left."""

from __future__ import annotations

import math

import numpy as np

STRIDES = 31, 127  # a first guess of a query's bound looks at every 31st record; primes, as data sets come in periods
MANY = 1 << 18  # records of which every 127th is enough
UNBOUNDED = np.iinfo(np.int32).max
TOGETHER = 16  # queries whose lists are sorted together, in cache
FEW = 50  # one in so many looked at in vain costs less than adding norms to all
MOST_HELD = 1 << 22  # survivors that are held before those beyond the m smallest are thrown out


def stride_of(records: int) -> int:
    """Every how manieth of so many records is in the sample of ``bounds_of_sample``."""
    return STRIDES[1] if records >= MANY else STRIDES[0]


def bounds_of_sample(scores: np.ndarray, m: int, stride: int) -> np.ndarray:
    """A bound, int32 [b], that about ``m`` records or somewhat more stay within; ``scores``: int32 [b, s] of the sample."""
    guess = int(m / stride + 3 * math.sqrt(m / stride) + 3)
    if guess >= scores.shape[1]:
        return np.full(len(scores), UNBOUNDED, dtype=np.int32)
    bounds: np.ndarray = np.partition(scores, guess, axis=1)[:, guess]
    return bounds


class Smallest:
    """The ``m`` smallest records of each of some queries by the integer key (score, row), among blocks that come by rising row.

    ``bounds``: int32 [b], b < 2^16; records above a query's bound are not looked at. ``few``: lists are short beside the records.
    Whatever these, the blocks' size and the other queries are, ``ordered`` gives the same lists, and tells where a bound was too
    low for ``m`` of them.
    """

    def __init__(self, bounds: np.ndarray, m: int, few: bool = True) -> None:
        self._bounds, self._m, self._few = bounds.copy(), m, few
        self._most = max(MOST_HELD, 2 * m * len(bounds))
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # of queries uint16, rows int64, scores int32
        self._held = self._blocks = self._vain = 0
        self._mask = np.zeros(0, dtype=bool)  # of a block; kept, as fresh pages cost as much as a comparison

    def add(self, cross: np.ndarray, norms: np.ndarray, first: int) -> None:
        """A block: rows ``first`` to ``first + r - 1`` with the scores ``cross`` + ``norms``, int32 [b, r], used up, and [r].

        Where norms hardly differ, as those of normalised features, looking at the cross terms alone leaves few too many, and
        saves the addition.
        """
        if len(self._mask) < cross.size:
            self._mask = np.zeros(-(-cross.size // 8) * 8, dtype=bool)
        self._blocks += 1
        alike = self._few and self._vain * 4 <= self._blocks
        if alike:
            flat = _up_to(cross, self._bounds - norms.min(), self._mask)
            alike = len(flat) * FEW <= cross.size
            self._vain += not alike
        if not alike:
            cross += norms
            flat = _up_to(cross, self._bounds, self._mask)
        width = cross.shape[1]
        queries = np.repeat(
            np.arange(len(cross), dtype=np.uint16), np.diff(np.searchsorted(flat, np.arange(len(cross) + 1) * width))
        )
        columns = flat - queries.astype(np.int64) * width
        scores = cross.reshape(-1)[flat]
        if alike:
            scores += norms[columns]
            within = scores <= self._bounds[queries]
            queries, columns, scores = queries[within], columns[within], scores[within]
        self._parts.append((queries, columns + first, scores))
        self._held += len(scores)
        if self._held > self._most:
            self._shrink()

    def ordered(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(counts int64 [b], rows int64 [b, m], scores int32 [b, m]): a query's first counts[i] entries are its list, in order.

        counts[i] < m: there are no more within the bound.
        """
        queries, rows, scores = self._by_query()
        counts = np.bincount(queries, minlength=len(self._bounds))
        ends = np.concatenate([[0], np.cumsum(counts)])
        found = np.zeros((len(counts), self._m), dtype=np.int64), np.zeros((len(counts), self._m), dtype=np.int32)
        for start in range(0, len(counts), TOGETHER):
            group = slice(start, start + TOGETHER)
            own = slice(ends[start], ends[min(start + TOGETHER, len(counts))])
            self._order(counts[group], self._bounds[group], rows[own], scores[own], found[0][group], found[1][group])
        return np.minimum(counts, self._m), *found

    def _order(self, counts: np.ndarray, bounds: np.ndarray, rows: np.ndarray, scores: np.ndarray, *found: np.ndarray) -> None:
        """Fill ``found`` (rows and scores, [b, m]) from some queries' survivors, which lie one query's after the other's."""
        inside = np.arange(max(self._m, counts.max())) < counts[:, None]
        # Lists are filled up with a score above all of their own, and hardly so: a stable sort leaves the filling last.
        above = np.minimum(bounds, scores.max(initial=0)) + 1
        kept, columns = np.repeat(above[:, None], inside.shape[1], axis=1), np.zeros(inside.shape, dtype=np.int64)
        kept[inside], columns[inside] = scores, rows
        order = stable_order(kept)[:, : self._m]
        for values, result in zip((columns, kept), found, strict=True):
            result[:] = np.take_along_axis(values, order, axis=1)

    def _by_query(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All survivors by (query, row)."""
        if not self._parts:
            return np.zeros(0, dtype=np.uint16), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        queries, rows, scores = (np.concatenate(columns) for columns in zip(*self._parts, strict=True))
        order = np.argsort(queries, kind="stable")  # a query's rows rise from block to block
        return queries[order], rows[order], scores[order]

    def _shrink(self) -> None:
        """Keep the m smallest of each query; what comes later has a higher row, so that it has to be smaller than all of them."""
        counts, rows, scores = self.ordered()
        full = counts == self._m
        if self._m:
            self._bounds[full] = np.minimum(self._bounds[full], scores[full, -1] - 1)
        inside = np.arange(self._m) < counts[:, None]
        queries = np.repeat(np.arange(len(counts), dtype=np.uint16), counts)
        by_row = np.lexsort((rows[inside], queries))
        self._parts = [(queries, rows[inside][by_row], scores[inside][by_row])]
        self._held = len(queries)


def stable_order(scores: np.ndarray) -> np.ndarray:
    """Ascending order of each row of ``scores`` (int32 [b, s]), equal ones as they come: int64 [b, s].

    numpy sorts 16-bit keys by radix, in a third of the time of one sort of 64-bit (score, column) keys: low half first.
    """
    if scores.size == 0:
        return np.zeros(scores.shape, dtype=np.int64)
    above = scores.astype(np.int64) - scores.min(axis=1, keepdims=True)
    order = np.argsort(above.astype(np.uint16), axis=1, kind="stable")
    high = (above >> 16).astype(np.uint16)
    if not high.any():
        return order
    second = np.argsort(np.take_along_axis(high, order, axis=1), axis=1, kind="stable")
    return np.take_along_axis(order, second, axis=1)


def _up_to(scores: np.ndarray, bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Flat positions of the scores up to their row's bound, ascending: int64 [m]. ``mask``: room for a block.

    By way of the groups of eight that hold any: below a tenth of hits numpy's flatnonzero branches at each one and
    mispredicts; among chosen groups it does not.
    """
    b, n = scores.shape
    used = mask[: -(-b * n // 8) * 8]
    used[b * n :] = False
    np.less_equal(scores, bounds[:, None], out=used[: b * n].reshape(b, n))
    groups = used.view(np.uint64)
    chosen = np.flatnonzero(groups != 0)
    hits = np.flatnonzero(groups[chosen].view(bool))
    flat: np.ndarray = (chosen[hits >> 3] << 3) + (hits & 7)
    return flat
