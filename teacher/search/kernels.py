"""Similarity in integers: which records are similar to a query, with which weight, and which
share a bucket of random-hyperplane hashing with it.

Features are integers in -63..63 in at most 4,000 dimensions, so |x|^2 and |q|^2 are at most
M = 4000 * 63^2 < 2^23.93, and (q.x)^2 <= |x|^2 |q|^2 <= M^2 < 2^47.85. Weights are multiples of
1/GRID, rounded down. A record's result depends on that record, the query and public constants
alone: integer arithmetic is exact, so the batch it is computed in does not matter. So do its
buckets: none is capped, balanced or trained.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from ...wall.matrices import GRID, MAX_ENTRY

STEPS = 4096  # steps of a threshold: its square is 2^24
HASH_ROWS = 8192  # records hashed together
GATHER_ROWS = 512  # candidates copied together: their rows stay in the processor's cache
DIVISOR = 8  # the sum of four random bytes has deviation 148: 18.5 after this, far inside -63..63
_BITS, _MASK = 24, (1 << 24) - 1
Product = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


def minus_twice(queries: np.ndarray) -> np.ndarray:
    """-2 q as int8 [q, d].

    Its product with x is the cross term of |x - q|^2, and even, as ``float32_product`` needs.
    """
    return (-2 * queries).astype(np.int8)


@dataclass(frozen=True, eq=False)
class Similar:
    """The records at or above the threshold for one query, whatever their remaining budgets.

    ``rows``: int32 [m], distinct; ``weights``: uint8 [m], kernel values in units of 1/GRID, rounded
    down, 0..GRID. ``labels``: int64 [m], where the records are persons, whose rows differ.
    """

    rows: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    labels: np.ndarray | None = field(default=None, repr=False)


def threshold_steps(threshold: float) -> int:
    """The nearest step of the grid 1/STEPS, at least one: int in 1..STEPS."""
    return max(1, round(threshold * STEPS))


def cosine(threshold: float) -> "_Cosine":
    """max(0, q.x / (|q| |x|)) >= threshold. A zero vector is similar to nothing."""
    return _Cosine(threshold_steps(threshold))


@dataclass(frozen=True)
class _Cosine:
    """q.x > 0 and (q.x)^2 >= ceil(t^2 N / 2^24), with t = threshold * STEPS and N = |x|^2 |q|^2.

    N = 2^24 h + l gives the ceiling t^2 h + ceil(t^2 l / 2^24), where t^2 h < 2^48 and
    t^2 l < 2^48. The weight is floor(sqrt(floor(GRID^2 (q.x)^2 / N))) <= GRID, an integer square
    root from a table.
    """

    t: int

    def __call__(self, cross: np.ndarray, norms: np.ndarray, norm: int) -> Similar:
        """``cross``: -2 q.x int32 [n]; ``norms``: |x|^2 int32 [n]; ``norm``: |q|^2."""
        # A cheap superset first: float64 errs by a few 2^-53, and the bound is lowered by far more.
        coarse = np.sqrt(norms, dtype=np.float64) * self._slope(np.array(norm)) + 1
        rows = np.flatnonzero((cross <= coarse) & (cross < 0))
        dot, product = cross[rows].astype(np.int64) // -2, norms[rows].astype(np.int64) * norm
        squared, t2 = dot * dot, self.t * self.t
        exact = squared >= t2 * (product >> _BITS) + ((t2 * (product & _MASK) + _MASK) >> _BITS)
        weights = _roots()[GRID * GRID * squared[exact] // product[exact]]
        return Similar(rows[exact].astype(np.int32), weights)

    def bounds(self, least: int, largest: int, norms: np.ndarray) -> np.ndarray:
        """Scores |x|^2 - 2 q.x above which no record is selected: int32 [q].

        ``least``, ``largest``: of |x|^2 above 0; ``norms``: |q|^2 int32 [q]. The coarse bound is
        convex in |x|: its largest value is at an end.
        """
        slope = self._slope(norms)
        ends = [norm + math.sqrt(norm) * slope + 1 for norm in (least, largest)]
        return np.floor(np.maximum(*ends)).astype(np.int32)

    def _slope(self, norms: np.ndarray) -> np.ndarray:
        """The coarse bounds' factors of |x|, for each |q|^2."""
        return np.sqrt(norms, dtype=np.float64) * (-2 * (self.t / STEPS) * (1 - 1e-9))


def rbf(threshold: float, bandwidth: float, length: float, near: float = 0.0) -> "_Rbf":
    """exp(-max(0, |x - q|^2 - r^2) / nu^2) >= threshold, by a table of integer squared distances.

    nu = ``bandwidth`` * ``length`` and r = ``near`` * ``length``, in quantised units; ``length``
    (public) is that of a unit vector after quantisation. The table gives each weight's largest
    squared distance. Records within r weigh 1, so that the grid of weights covers the distances
    that occur. ``bandwidth``: above 0; it and ``near``: at most 1e6.
    """
    scale, plateau = (bandwidth * length) ** 2, (near * length) ** 2

    def farthest(inverse_weight: float) -> int:
        return math.floor(min(plateau + scale * math.log(inverse_weight), 2**30))

    reach = np.array([farthest(GRID / a) for a in range(GRID, 0, -1)], dtype=np.int64)
    return _Rbf(farthest(STEPS / threshold_steps(threshold)), reach)


@dataclass(frozen=True, eq=False)
class _Rbf:
    """``farthest``: the largest squared distance that is selected.

    ``reach``: int64 [GRID], ascending; entry i is the largest whose weight is GRID - i or more.
    """

    farthest: int
    reach: np.ndarray

    def __call__(self, cross: np.ndarray, norms: np.ndarray, norm: int) -> Similar:
        distances = cross + norms + np.int32(norm)  # below 2^26
        rows = np.flatnonzero(distances <= self.farthest)
        weights = GRID - np.searchsorted(self.reach, distances[rows].astype(np.int64), side="left")
        return Similar(rows.astype(np.int32), weights.astype(np.uint8))

    def bounds(self, least: int, largest: int, norms: np.ndarray) -> np.ndarray:
        return self.farthest - norms


# A kernel with its threshold. It decides for each record by its own numbers.
Select = _Cosine | _Rbf


@lru_cache(maxsize=1)
def _roots() -> np.ndarray:
    """floor(sqrt(v)) for v in 0..GRID^2: uint8 [GRID^2 + 1]."""
    return np.array([math.isqrt(v) for v in range(GRID * GRID + 1)], dtype=np.uint8)


def hyperplanes(count: int, dimensions: int, seed: int) -> np.ndarray:
    """int8 [count, dimensions]: nearly Gaussian integers from SHAKE-256 of the public seed.

    They are the same on every machine.
    """
    name = f"labelwall hyperplanes {seed} {count} {dimensions}"
    stream = hashlib.shake_256(name.encode()).digest(4 * count * dimensions)
    entries = np.frombuffer(stream, dtype=np.uint8).reshape(count, dimensions, 4)
    sums = entries.sum(axis=2, dtype=np.int16) - 510
    return np.clip(sums // DIVISOR, -MAX_ENTRY, MAX_ENTRY).astype(np.int8)


def codes(features: np.ndarray, planes: np.ndarray, bits: int, product: Product) -> np.ndarray:
    """Bucket of each row of int8 [n, d] in each table: uint16 [n, tables].

    Bit j is set if r.x >= 0 for the table's plane j. ``planes``: int8 [tables * bits, d].
    """
    tables = len(planes) // bits
    buckets = np.empty((len(features), tables), dtype=np.uint16)
    weights = (1 << np.arange(bits)).astype(np.uint16)
    doubled = minus_twice(planes)
    for start in range(0, len(features), HASH_ROWS):
        block = features[start : start + HASH_ROWS]
        cross = np.empty((len(planes), len(block)), dtype=np.int32)
        product(doubled, block, cross)  # -2 r.x
        sides = (cross <= 0).reshape(tables, bits, len(block))
        buckets[start : start + HASH_ROWS] = np.einsum("tbn,b->nt", sides, weights)
    return buckets


class HashTables:
    """Rows by bucket, of int8 [n, d] features; seconds for a million records."""

    def __init__(
        self, features: np.ndarray, tables: int, bits: int, seed: int, product: Product
    ) -> None:
        self.planes, self.bits = hyperplanes(tables * bits, features.shape[1], seed), bits
        buckets = codes(features, self.planes, bits, product)
        self._order = np.argsort(buckets, axis=0, kind="stable").T.astype(np.int32)  # [tables, n]
        edges, columns = np.arange((1 << bits) + 1), buckets.T.astype(np.int64)
        # Where each bucket begins: int64 [tables, 2^bits + 1]
        self._starts = np.stack([np.searchsorted(np.sort(column), edges) for column in columns])

    def candidates(self, buckets: np.ndarray) -> np.ndarray:
        """Rows in the query's bucket of at least one table (uint16 [tables]): int64, ascending."""
        marked = np.zeros(self._order.shape[1], dtype=bool)
        for order, starts, bucket in zip(self._order, self._starts, buckets.tolist(), strict=True):
            marked[order[starts[bucket] : starts[bucket + 1]]] = True
        return np.flatnonzero(marked)


def gathered_products(
    features: np.ndarray, rows: np.ndarray, query: np.ndarray, product: Product
) -> np.ndarray:
    """-2 q.x for ``rows`` of int8 [n, d] and one query, int8 [d]: int32 [len(rows)]."""
    cross, doubled = np.empty((1, len(rows)), dtype=np.int32), minus_twice(query[np.newaxis])
    for start in range(0, len(rows), GATHER_ROWS):
        block = slice(start, start + GATHER_ROWS)
        product(doubled, features.take(rows[block], axis=0), cross[:, block])
    return cross[0]
