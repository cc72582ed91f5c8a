"""The smallest of many integer scores, in order.

A sample bounds them, one pass over blocks collects what is within the bound, and a radix sort
orders it. numba compiles the loops: they read a score while it is in the processor's cache, and
release the GIL.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock

import numpy as np
from numba import int32, int64, njit, uint64
from numba.extending import register_jitable

# Sampling strides, for the guess of a query's bound. Primes, since data sets can be periodic.
STRIDE = 31
LARGE_STRIDE = 127
LARGE = 1 << 18  # records from which LARGE_STRIDE is used
UNBOUNDED = np.iinfo(np.int32).max
DIGIT_BITS = 11  # at most, of a score in one pass of the sort
CHUNK = 4096  # scores compared together; each list has space for as many behind it


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """``function``, compiled by numba at its first call, so that an import writes nothing.

    The result is cached on disk for the next process. Without a writable place, each process
    compiles anew.
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


def sampling_stride(records: int) -> int:
    """Sampling stride for this many records."""
    return LARGE_STRIDE if records >= LARGE else STRIDE


def sample_bounds(cross: np.ndarray, norms: np.ndarray, m: int, stride: int) -> np.ndarray:
    """A bound of each query's scores that ``m`` records or somewhat more satisfy: int32 [b].

    The sample's scores are ``cross`` + ``norms``: int32 [b, s] and [s].
    """
    guess = int(m / stride + 4 * math.sqrt(m / stride) + 3)
    bounds = np.full(len(cross), UNBOUNDED, dtype=np.int32)
    if guess < cross.shape[1]:
        _bound(cross, norms, guess, bounds)
    return bounds


class TopK:
    """The ``m`` smallest keys (score, row) of each of b queries, among blocks of rows.

    ``bounds``: int32 [b]; scores above a query's bound are ignored. ``parts``: the number of ranges
    of rows, lowest first. Each part receives its blocks by ascending row; each may be filled by a
    thread of its own. ``rows``: of the longest part. ``order`` gives the same lists for any bounds,
    blocks, parts and other queries, and tells where a bound was too low for ``m`` of them.

    Memory: 8 bytes for each of min(2 m, rows) + CHUNK entries, a query and part. ``buffer``: int64
    [size], an earlier one, used instead of fresh pages if it suffices; the attribute ``buffer`` is
    the one in use.

    Compiled loops do not check bounds, so ``add`` and ``order`` raise ValueError for arrays of
    other shapes.
    """

    def __init__(
        self, bounds: np.ndarray, m: int, parts: int, rows: int, buffer: np.ndarray | None = None
    ) -> None:
        self._m = m
        self._capacity = min(2 * m, rows)
        self._rows_to_come = [rows] * parts
        self._bounds = np.repeat(bounds[np.newaxis], parts, axis=0)
        shape = parts, len(bounds), self._capacity + CHUNK
        size = math.prod(shape)
        if buffer is None or len(buffer) < size:
            buffer = np.empty(size, dtype=np.int64)
        self.buffer = buffer
        self._keys = buffer[:size].reshape(shape)
        self._counts = np.zeros((parts, len(bounds)), dtype=np.int64)

    def add(self, part: int, cross: np.ndarray, norms: np.ndarray, first: int) -> None:
        """Add rows ``first`` to ``first + r - 1`` with scores ``cross`` + ``norms``.

        int32, [b, r] and [r].
        """
        self._rows_to_come[part] -= len(norms)
        if self._rows_to_come[part] < 0 or cross.shape != (self._keys.shape[1], len(norms)):
            raise ValueError(
                f"a block of shape {cross.shape}: too many rows, or not of these queries"
            )
        lists = self._keys[part], self._counts[part], self._bounds[part]
        _collect(cross, norms, first, self._m, self._capacity, *lists)

    def order(self, queries: range, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Fill ``rows`` (int64 [b, m]) and ``scores`` (int32 [b, m]) of ``queries`` in order.

        Returns counts, int64 [len(queries)]. Only the first counts[i] entries of a list are
        defined; a count below m means that no more are within the bound.
        """
        number = self._keys.shape[1]
        if not rows.shape == scores.shape == (number, self._m):
            shapes = f"{rows.shape} and {scores.shape}"
            raise ValueError(f"lists of shape {shapes} for {self._m} of {number} queries")
        _order(self._keys, self._counts, self._m, queries.start, queries.stop, rows, scores)
        found = self._counts[:, queries.start : queries.stop].sum(axis=0)
        counts: np.ndarray = np.minimum(found, self._m)
        return counts


# Indices are unsigned below: numba checks each signed one for being negative.


@compiled
def _collect(
    cross: np.ndarray,
    norms: np.ndarray,
    first: int,
    m: int,
    capacity: int,
    keys: np.ndarray,
    counts: np.ndarray,
    bounds: np.ndarray,
) -> None:
    """Add a block's keys, score << 32 | row, to each query's list.

    A list of more than ``capacity`` entries is cut to its m smallest. Later rows are higher, so
    their scores must be smaller than all of these. No branch depends on a single score: the
    processor would mispredict each hit.
    """
    within = np.empty(CHUNK, dtype=np.uint8)
    eights = within.view(np.uint64)
    chosen, places = np.empty(CHUNK // 8, dtype=np.uint32), np.empty(CHUNK + 1, dtype=np.uint32)
    scratch = np.empty(0, dtype=np.int64)
    for query in range(len(cross)):
        for start in range(0, len(norms), CHUNK):
            line, own = cross[query, start : start + CHUNK], norms[start : start + CHUNK]
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
                row = int64(first + start + column)
                kept[count + number] = (int64(line[column] + own[column]) << 32) | row
            counts[query] += found
            if counts[query] > capacity:
                if len(scratch) == 0:
                    scratch = np.empty(capacity + CHUNK, dtype=np.int64)
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
    """Concatenate the parts of queries ``start`` to ``stop`` - 1, sort them, write the first m."""
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
    """Sort keys, score << 32 | row, by score. Stable, so equal scores stay ordered by row.

    ``scratch``: as long as ``keys``.
    """
    if len(keys) == 0:
        return
    low = high = keys[0] >> 32
    for key in keys:
        low, high = min(low, key >> 32), max(high, key >> 32)
    bits = 0
    while (high - low) >> bits:
        bits += 1
    passes = -(-bits // DIGIT_BITS)
    digit = -(-bits // max(passes, 1))  # the shortest for as many passes
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
    """Bounds that slightly more than ``guess`` of each query's scores satisfy: histogram edges."""
    for query in range(len(cross)):
        line = cross[query]
        low = high = int32(line[0] + norms[0])
        for column in range(uint64(len(norms))):
            score = int32(line[column] + norms[column])
            low, high = min(low, score), max(high, score)
        shift = 0
        while (int64(high) - int64(low)) >> (shift + DIGIT_BITS):
            shift += 1
        counts = np.zeros(1 << DIGIT_BITS, dtype=np.int64)
        for column in range(uint64(len(norms))):
            counts[(int64(line[column] + norms[column]) - low) >> shift] += 1
        below, edge = int64(0), 0
        while below <= guess:
            below += counts[edge]
            edge += 1
        bounds[query] = low + (edge << shift) - 1
