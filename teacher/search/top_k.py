"""The smallest of many integer scores: a bound from a sample, and one pass that collects them.

numba compiles the loops: they read a score while it is in the processor's cache, and release the
GIL.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock

import numpy as np
from numba import int32, int64, njit, uint64

# Sampling strides, for the guess of a query's bound. Primes, since data sets can be periodic.
STRIDE = 31
LARGE_STRIDE = 127
LARGE = 1 << 18  # records from which LARGE_STRIDE is used
HISTOGRAM_BITS = 11
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
    """Each query's keys (score << 32 | row) within its bound, unordered, among blocks of rows.

    ``bounds``: int32 [b]. A list takes ``capacity`` keys; one that meets more is marked as full.
    Compiled loops do not check bounds, so ``add`` raises ValueError for arrays of other shapes.
    """

    def __init__(self, bounds: np.ndarray, capacity: int) -> None:
        self._bounds = bounds
        self._keys = np.empty((len(bounds), capacity), dtype=np.int64)
        self._counts = np.zeros(len(bounds), dtype=np.int64)

    def add(self, cross: np.ndarray, norms: np.ndarray, first: int) -> None:
        """Add rows ``first`` to ``first + r - 1`` with scores ``cross`` + ``norms``.

        int32, [b, r] and [r].
        """
        if cross.shape != (len(self._bounds), len(norms)):
            raise ValueError(f"a block of shape {cross.shape}: not of these queries and rows")
        _collect(cross, norms, first, self._bounds, self._keys, self._counts)

    def keys(self, query: int) -> np.ndarray | None:
        """A query's keys, int64 [count]; None for a list that was full."""
        count = self._counts[query]
        return None if count == FULL else self._keys[query, :count]


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
def _bound(cross: np.ndarray, norms: np.ndarray, rank: int, bounds: np.ndarray) -> None:
    """Bounds that slightly more than ``rank`` of each query's scores satisfy: histogram edges."""
    for query in range(len(cross)):
        line = cross[query]
        low = high = int32(line[0] + norms[0])
        for column in range(uint64(len(norms))):
            score = int32(line[column] + norms[column])
            low, high = min(low, score), max(high, score)
        shift = 0
        while (int64(high) - int64(low)) >> (shift + HISTOGRAM_BITS):
            shift += 1
        counts = np.zeros(1 << HISTOGRAM_BITS, dtype=np.int64)
        for column in range(uint64(len(norms))):
            counts[(int64(line[column] + norms[column]) - low) >> shift] += 1
        below, edge = int64(0), 0
        while below <= rank:
            below += counts[edge]
            edge += 1
        bounds[query] = low + (edge << shift) - 1
