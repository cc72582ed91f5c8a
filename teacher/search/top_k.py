"""The smallest of many integer scores: a bound from a sample, a pass that collects, a radix sort.

numba compiles the loops: they read a score while it is in the processor's cache, and release the
GIL.
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
DIGIT_BITS = 11  # of a score, at most: in a histogram, and in one pass of the sort
CHUNK = 4096  # scores compared together
FULL = -1  # count of a list that had no space for all scores within its bound


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """``function``, compiled by numba at its first call, so that an import writes nothing.

    The result is cached on disk for the next process. Without a writable place, each process
    compiles anew.
    """
    lock, built = Lock(), list[Callable[..., None]]()

    def call(*arrays: object) -> None:
        with lock:
            if not built:
                try:
                    built.append(njit(nogil=True, cache=True)(function))
                except RuntimeError:  # neither beside the source nor in the user's cache
                    built.append(njit(nogil=True)(function))
        built[0](*arrays)

    return call


def sampling_stride(records: int) -> int:
    """Sampling stride for this many records."""
    return LARGE_STRIDE if records >= LARGE else STRIDE


def sampled_rank(m: int, stride: int) -> int:
    """A rank in the sample that the m-th smallest of all scores seldom exceeds."""
    return int(m / stride + 4 * math.sqrt(m / stride) + 3)


def sample_bounds(cross: np.ndarray, norms: np.ndarray, rank: int) -> np.ndarray:
    """A bound of each query's scores that slightly more than ``rank`` of the sample satisfy.

    int32 [b]. The sample's scores are ``cross`` + ``norms``: int32 [b, s] and [s], s > ``rank``.
    """
    bounds = np.empty(len(cross), dtype=np.int32)
    if rank >= cross.shape[1] or cross.shape[1:] != norms.shape:
        raise ValueError(f"no rank {rank} in a sample of shape {cross.shape}")
    _bound(cross, norms, rank, bounds)
    return bounds


class Lists:
    """Each query's keys (score << 32 | row) within its bound, among blocks of rows.

    ``bounds``: int32 [b]. ``parts``: ranges of rows, lowest first; each receives its blocks by
    ascending row and may be filled by a thread of its own. A part's list takes ``capacity`` keys;
    one that meets more is marked as full. Compiled loops do not check bounds, so ``add`` and
    ``order`` raise ValueError for arrays of other shapes.
    """

    def __init__(self, bounds: np.ndarray, capacity: int, parts: int = 1) -> None:
        self._bounds = bounds
        self._keys = np.empty((parts, len(bounds), capacity), dtype=np.int64)
        self._counts = np.zeros((parts, len(bounds)), dtype=np.int64)

    def add(self, part: int, cross: np.ndarray, norms: np.ndarray, first: int) -> None:
        """Add rows ``first`` to ``first + r - 1`` with scores ``cross`` + ``norms``.

        int32, [b, r] and [r].
        """
        if cross.shape != (len(self._bounds), len(norms)):
            raise ValueError(f"a block of shape {cross.shape}: not of these queries and rows")
        _collect(cross, norms, first, self._bounds, self._keys[part], self._counts[part])

    def order(self, queries: range, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Fill ``rows`` (int64 [b, m]) and ``scores`` (int32 [b, m]) of ``queries`` in order.

        Returns which of them had m keys and no full list, bool [len(queries)]; the lists of the
        others are undefined.
        """
        width = rows.shape[1]
        if not rows.shape == scores.shape == (len(self._bounds), width):
            raise ValueError(f"lists of shape {rows.shape} and {scores.shape}")
        own = self._counts[:, queries.start : queries.stop]
        complete: np.ndarray = (own != FULL).all(axis=0) & (own.sum(axis=0) >= width)
        places = np.arange(queries.start, queries.stop)[complete]
        _order(self._keys, self._counts, places, rows, scores)
        return complete


# Indices are unsigned below: numba checks each signed one for being negative.


@compiled
def _collect(
    cross: np.ndarray,
    norms: np.ndarray,
    first: int,
    bounds: np.ndarray,
    keys: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Append a block's keys within the bound to each query's list.

    No branch depends on a single score: the processor would mispredict each hit.
    """
    within = np.empty(CHUNK, dtype=np.uint8)
    eights = within.view(np.uint64)
    chosen, places = np.empty(CHUNK // 8, dtype=np.uint32), np.empty(CHUNK + 1, dtype=np.uint32)
    for query in range(len(cross)):
        bound = bounds[query]
        for start in range(0, len(norms), CHUNK):
            line, own = cross[query, start : start + CHUNK], norms[start : start + CHUNK]
            columns, groups = uint64(len(own)), uint64(len(own) >> 3)
            for column in range(columns):
                within[column] = int32(line[column] + own[column]) <= bound
            some = uint64(0)
            for group in range(groups):
                chosen[some] = group
                some += uint64(eights[group] != 0)
            hits = uint64(0)
            for number in range(some):
                eight = uint64(chosen[number]) << uint64(3)
                for lane in range(uint64(8)):
                    places[hits] = eight + lane
                    hits += uint64(within[eight + lane])
            for column in range(groups << uint64(3), columns):
                places[hits] = column
                hits += uint64(within[column])
            if counts[query] == FULL or counts[query] + int64(hits) > keys.shape[1]:
                counts[query] = FULL
                break
            kept, count = keys[query], uint64(counts[query])
            for number in range(hits):
                column = uint64(places[number])
                row = int64(first + start + column)
                kept[count + number] = (int64(line[column] + own[column]) << 32) | row
            counts[query] += hits


@compiled
def _order(
    keys: np.ndarray, counts: np.ndarray, places: np.ndarray, rows: np.ndarray, scores: np.ndarray
) -> None:
    """Join the parts of each query of ``places``, sort them, write the first m."""
    for query in places:
        joined, end = np.empty(counts[:, query].sum(), dtype=np.int64), 0
        for part in range(len(keys)):
            count = counts[part, query]
            joined[end : end + count] = keys[part, query, :count]
            end += count
        _sort(joined, np.empty_like(joined))
        for rank in range(rows.shape[1]):
            rows[query, rank] = joined[rank] & 0xFFFFFFFF
            scores[query, rank] = joined[rank] >> 32


@register_jitable
def _sort(keys: np.ndarray, scratch: np.ndarray) -> None:
    """Sort keys by score. Stable, so that equal scores stay ordered by row.

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
def _bound(cross: np.ndarray, norms: np.ndarray, rank: int, bounds: np.ndarray) -> None:
    """Bounds that slightly more than ``rank`` of each query's scores satisfy: histogram edges."""
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
        while below <= rank:
            below += counts[edge]
            edge += 1
        bounds[query] = low + (edge << shift) - 1
