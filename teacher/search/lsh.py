"""Random-hyperplane hashing: candidates of a query, by each record and public constants alone.

No bucket is capped, balanced or trained: a record's buckets do not depend on other records, so
removing one does not change the others' candidacy. Products are integers, exact in every batch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from .int8_matmul import LARGEST, Product, minus_twice

HASH_ROWS = 8192  # records hashed together
GATHER_ROWS = 512  # candidates copied together: their rows stay in the processor's cache
DIVISOR = 8  # the sum of four random bytes has deviation 148: 18.5 after this, far inside -63..63


def hyperplanes(count: int, dimensions: int, seed: int) -> np.ndarray:
    """int8 [count, dimensions]: nearly Gaussian integers from SHAKE-256 of the public seed.

    They are the same on every machine.
    """
    name = f"labelwall hyperplanes {seed} {count} {dimensions}"
    stream = hashlib.shake_256(name.encode()).digest(4 * count * dimensions)
    entries = np.frombuffer(stream, dtype=np.uint8).reshape(count, dimensions, 4)
    sums = entries.sum(axis=2, dtype=np.int16) - 510
    return np.clip(sums // DIVISOR, -LARGEST, LARGEST).astype(np.int8)


def codes(features: np.ndarray, planes: np.ndarray, bits: int, product: Product) -> np.ndarray:
    """Bucket of each row of int8 [n, d] in each table: uint16 [n, tables].

    Bit j is set if r.x >= 0 for the table's plane j. ``planes``: int8 [tables * bits, d].
    """
    tables = len(planes) // bits
    buckets = np.empty((len(features), tables), dtype=np.uint16)
    weights = (1 << np.arange(bits)).astype(np.uint16)
    doubled = minus_twice(planes)
    for start in range(0, len(features), HASH_ROWS):
        part = features[start : start + HASH_ROWS]
        cross = np.empty((len(planes), len(part)), dtype=np.int32)
        product(doubled, part, cross)  # -2 r.x
        sides = (cross <= 0).reshape(tables, bits, len(part))
        buckets[start : start + HASH_ROWS] = np.einsum("tbn,b->nt", sides, weights)
    return buckets


@dataclass(frozen=True, eq=False, repr=False)
class HashTables:
    """Rows by bucket: ``order``, int32 [tables, n].

    ``starts``: int64 [tables, 2^bits + 1], where each bucket begins.
    """

    planes: np.ndarray = field(repr=False)
    bits: int
    order: np.ndarray = field(repr=False)
    starts: np.ndarray = field(repr=False)

    @classmethod
    def build(
        cls, features: np.ndarray, tables: int, bits: int, seed: int, product: Product
    ) -> HashTables:
        """Tables of int8 [n, d] features; seconds for a million records."""
        planes = hyperplanes(tables * bits, features.shape[1], seed)
        buckets = codes(features, planes, bits, product)
        order = np.argsort(buckets, axis=0, kind="stable").T.astype(np.int32)
        edges = np.arange((1 << bits) + 1)
        columns = buckets.T.astype(np.int64)
        starts = np.stack([np.searchsorted(np.sort(column), edges) for column in columns])
        return cls(planes, bits, order, starts)

    def candidates(self, buckets: np.ndarray) -> np.ndarray:
        """Rows in the query's bucket of at least one table (uint16 [tables]): int64, ascending."""
        marked = np.zeros(self.order.shape[1], dtype=bool)
        tables = np.arange(len(buckets))[:, None]
        edges = self.starts[tables, buckets[:, None] + np.array([0, 1], dtype=np.int64)].tolist()
        rows = [order[start:stop] for order, (start, stop) in zip(self.order, edges, strict=True)]
        marked[np.concatenate(rows)] = True
        return np.flatnonzero(marked)


def gathered_products(
    features: np.ndarray, rows: np.ndarray, query: np.ndarray, product: Product
) -> np.ndarray:
    """-2 q.x for ``rows`` of int8 [n, d] and one query, int8 [d]: int32 [len(rows)]."""
    cross = np.empty((1, len(rows)), dtype=np.int32)
    doubled = minus_twice(query[np.newaxis])
    gathered = np.empty((GATHER_ROWS, features.shape[1]), dtype=np.int8)
    for start in range(0, len(rows), GATHER_ROWS):
        part = rows[start : start + GATHER_ROWS]
        block = gathered[: len(part)]
        np.take(features, part, axis=0, out=block, mode="clip")  # other modes copy a second time
        own = np.empty((1, len(part)), dtype=np.int32)
        product(doubled, block, own)
        cross[:, start : start + len(part)] = own
    return cross[0]
