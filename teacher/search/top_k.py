"""The smallest of many integer scores, in order: a bound from a sample, one pass over blocks, a radix sort of what is left.

The loops are compiled by numba: they look at a score while it is in the processor's cache, and let other threads run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock

import numpy as np
from numba import int32, int64, njit, uint64
from numba.extending import register_jitable

STRIDES = (
    31,
    127,
)  # a first guess of a query's bound looks at every 31st record; primes, as data sets come in periods
MANY = 1 << 18  # records of which every 127th is enough
UNBOUNDED = np.iinfo(np.int32).max
DIGIT = 11  # bits of a score that one pass of the sort looks at, or fewer
ROOM = 4096  # scores that are looked at together; room for them is left behind each list


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """``function`` by numba, from its first call on: an import writes nothing.

    What was compiled is kept on disk for the next process; where there is no place to write, each compiles anew.
    """
    lock, made = Lock(), list[Callable[..., None]]()

    def call(*arrays: object) -> None:
        with lock:
            if not made:
                try:
                    made.append(njit(nogil=True, cache=True)(function))
                except RuntimeError:  # neither beside the source nor in the user's cache
                    made.append(njit(nogil=True)(function))
        made[0](*arrays)

    return call


def stride_of(records: int) -> int:
    """Every how manieth of so many records is in the sample of ``bounds_of_sample``."""
    return STRIDES[1] if records >= MANY else STRIDES[0]


def bounds_of_sample(cross: np.ndarray, norms: np.ndarray, m: int, stride: int) -> np.ndarray:
    """A bound, int32 [b], that about ``m`` records or somewhat more stay within.

    The sample's scores are ``cross`` + ``norms``: int32 [b, s] and [s].
    """
    guess = int(m / stride + 4 * math.sqrt(m / stride) + 3)
    bounds = np.full(len(cross), UNBOUNDED, dtype=np.int32)
    if guess < cross.shape[1]:
        _bound(cross, norms, guess, bounds)
    return bounds


class Smallest:
    """The ``m`` smallest records of each of b queries by the integer key (score, row), among blocks of rows.

    ``bounds``: int32 [b]; records above a query's bound are left out. ``parts``: ranges of rows, the lowest first, each of
    whose blocks come by rising row; parts may be filled at the same time, by a thread each. ``rows``: of the longest part.
    Whatever the bounds, the blocks, the parts and the other queries are, ``order`` gives the same lists, and tells where a
    bound was too low for ``m`` of them. Memory: 8 bytes for each of min(2 m, rows) + ROOM entries, a query and part; ``room``
    is that of former lists, int64 [size], used instead of fresh pages where it suffices, and afterwards to be had as ``room``.

    Compiled loops do not look at where they write, so ``add`` and ``order`` raise ValueError for arrays that do not fit.
    """

    def __init__(
        self, bounds: np.ndarray, m: int, parts: int, rows: int, room: np.ndarray | None = None
    ) -> None:
        self._m, self._most, self._to_come = m, min(2 * m, rows), [rows] * parts
        self._bounds = np.repeat(bounds[np.newaxis], parts, axis=0)
        shape = parts, len(bounds), self._most + ROOM
        size = math.prod(shape)
        self.room = (
            room if room is not None and len(room) >= size else np.empty(size, dtype=np.int64)
        )
        self._keys = self.room[:size].reshape(shape)
        self._counts = np.zeros((parts, len(bounds)), dtype=np.int64)

    def add(self, part: int, cross: np.ndarray, norms: np.ndarray, first: int) -> None:
        """A block: rows ``first`` to ``first + r - 1`` with the scores ``cross`` + ``norms``, int32 [b, r] and [r]."""
        self._to_come[part] -= len(norms)
        if self._to_come[part] < 0 or cross.shape != (self._keys.shape[1], len(norms)):
            raise ValueError(
                f"a block of shape {cross.shape}: too many rows, or not of these queries"
            )
        kept = self._keys[part], self._counts[part], self._bounds[part]
        _collect(cross, norms, first, self._m, self._most, *kept)

    def order(self, queries: range, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Fill those queries' ``rows`` (int64 [b, m]) and ``scores`` (int32 [b, m]), the first counts[i] entries in order.

        Returns counts, int64 [len(queries)]; where one is below m there are no more within the bound, and what follows in
        the arrays means nothing.
        """
        if not rows.shape == scores.shape == (self._keys.shape[1], self._m):
            raise ValueError(
                f"lists of shape {rows.shape} and {scores.shape} for {self._m} of {self._keys.shape[1]} queries"
            )
        _order(self._keys, self._counts, self._m, queries.start, queries.stop, rows, scores)
        counts: np.ndarray = np.minimum(
            self._counts[:, queries.start : queries.stop].sum(axis=0), self._m
        )
        return counts


# Places are unsigned below, as numba looks at each signed one for being counted from the end.


@compiled
def _collect(
    cross: np.ndarray,
    norms: np.ndarray,
    first: int,
    m: int,
    most: int,
    keys: np.ndarray,
    counts: np.ndarray,
    bounds: np.ndarray,
) -> None:
    """Add a block's keys, score << 32 | row, to each query's list.

    A list of more than ``most`` entries gives up all but its m smallest; rows to come are higher, and have to be smaller
    than all of these. No branch depends on a single score: the processor would guess wrong at each hit.
    """
    within = np.empty(ROOM, dtype=np.uint8)
    eights = within.view(np.uint64)
    chosen, places = np.empty(ROOM // 8, dtype=np.uint32), np.empty(ROOM + 1, dtype=np.uint32)
    scratch = np.empty(0, dtype=np.int64)
    for query in range(len(cross)):
        for start in range(0, len(norms), ROOM):
            line, own = cross[query, start : start + ROOM], norms[start : start + ROOM]
            columns, groups, bound = uint64(len(own)), uint64(len(own) >> 3), bounds[query]
            for column in range(columns):
                within[column] = int32(line[column] + own[column]) <= bound
            some = uint64(0)
            for group in range(groups):
                chosen[some] = group
                some += uint64(eights[group] != 0)
            found = uint64(0)
            for number in range(some):
                eight = uint64(chosen[number]) << uint64(3)
                for lane in range(uint64(8)):
                    places[found] = eight + lane
                    found += uint64(within[eight + lane])
            for column in range(groups << uint64(3), columns):
                places[found] = column
                found += uint64(within[column])
            kept, count = keys[query], uint64(counts[query])
            for number in range(found):
                column = uint64(places[number])
                kept[count + number] = (int64(line[column] + own[column]) << 32) | int64(
                    first + start + column
                )
            counts[query] += found
            if counts[query] > most:
                if len(scratch) == 0:
                    scratch = np.empty(most + ROOM, dtype=np.int64)
                _sort(kept[: counts[query]], scratch[: counts[query]])
                counts[query] = min(m, counts[query])
                if m > 0 and counts[query] == m:
                    bounds[query] = min(bound, (kept[m - 1] >> 32) - 1)


@compiled
def _order(
    keys: np.ndarray,
    counts: np.ndarray,
    m: int,
    start: int,
    stop: int,
    rows: np.ndarray,
    scores: np.ndarray,
) -> None:
    """Join the parts of queries ``start`` to ``stop`` - 1, sort them, and write out the first m."""
    for query in range(start, stop):
        joined, done = np.empty(counts[:, query].sum(), dtype=np.int64), 0
        for part in range(len(keys)):
            count = counts[part, query]
            joined[done : done + count] = keys[part, query, :count]
            done += count
        _sort(joined, np.empty(done, dtype=np.int64))
        for place in range(min(m, done)):
            rows[query, place] = joined[place] & 0xFFFFFFFF
            scores[query, place] = joined[place] >> 32


@register_jitable
def _sort(keys: np.ndarray, scratch: np.ndarray) -> None:
    """Sort keys, score << 32 | row, by score; those of one score stay as they come, which is by row. ``scratch``: as long."""
    if len(keys) == 0:
        return
    low = high = keys[0] >> 32
    for key in keys:
        low, high = min(low, key >> 32), max(high, key >> 32)
    bits = 0
    while (high - low) >> bits:
        bits += 1
    passes = -(-bits // DIGIT)
    digit = -(-bits // max(passes, 1))  # as short as that many passes allow
    starts, mask = np.empty((1 << digit) + 1, dtype=np.int64), (1 << digit) - 1
    source, target = keys, scratch
    for number in range(passes):
        shift = number * digit
        starts[:] = 0
        for key in source:
            starts[((((key >> 32) - low) >> shift) & mask) + 1] += 1
        for value in range(1, mask):
            starts[value + 1] += starts[value]
        for key in source:
            value = (((key >> 32) - low) >> shift) & mask
            target[starts[value]] = key
            starts[value] += 1
        source, target = target, source
    if passes % 2:
        keys[:] = scratch


@compiled
def _bound(cross: np.ndarray, norms: np.ndarray, guess: int, bounds: np.ndarray) -> None:
    """Bounds that more than ``guess`` of each query's scores stay within, and few more: edges of a histogram."""
    for query in range(len(cross)):
        line = cross[query]
        low = high = int32(line[0] + norms[0])
        for column in range(uint64(len(norms))):
            score = int32(line[column] + norms[column])
            low, high = min(low, score), max(high, score)
        shift = 0
        while (int64(high) - int64(low)) >> (shift + DIGIT):
            shift += 1
        counts = np.zeros(1 << DIGIT, dtype=np.int64)
        for column in range(uint64(len(norms))):
            counts[(int64(line[column] + norms[column]) - low) >> shift] += 1
        below, edge = int64(0), 0
        while below <= guess:
            below += counts[edge]
            edge += 1
        bounds[query] = low + (edge << shift) - 1
