"""Random-hyperplane hashing: which records a query looks at, decided by each record and public constants alone.

No bucket is capped, balanced or trained: a record's buckets do not depend on another record, so leaving one out changes
nobody's candidates. Products are integers, exact in every batch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from labelwall.teacher.search.int8_matmul import LARGEST, Product, minus_twice

AT_ONCE = 8192  # records hashed together
GATHERED = 512  # candidates copied together: their rows stay in the processor's cache
SPREAD = 8  # the sum of four random bytes has deviation 148: 18.5 after this, far inside -63..63


def hyperplanes(count: int, dimensions: int, seed: int) -> np.ndarray:
    """int8 [count, dimensions]: nearly Gaussian integers from SHAKE-256 of the public seed, the same on every machine."""
    stream = hashlib.shake_256(
        f"labelwall hyperplanes {seed} {count} {dimensions}".encode()
    ).digest(4 * count * dimensions)
    sums = (
        np.frombuffer(stream, dtype=np.uint8)
        .reshape(count, dimensions, 4)
        .sum(axis=2, dtype=np.int16)
        - 510
    )
    return np.clip(sums // SPREAD, -LARGEST, LARGEST).astype(np.int8)


def codes(features: np.ndarray, planes: np.ndarray, bits: int, product: Product) -> np.ndarray:
    """Bucket of each row in each table: uint16 [n, tables], bit j set where the row is on the far side of a table's plane j.

    ``features``: int8 [n, d]; ``planes``: int8 [tables * bits, d]; bits <= 16.
    """
    tables = len(planes) // bits
    found, weights = (
        np.empty((len(features), tables), dtype=np.uint16),
        (1 << np.arange(bits)).astype(np.uint16),
    )
    doubled = minus_twice(planes)
    for start in range(0, len(features), AT_ONCE):
        part = features[start : start + AT_ONCE]
        cross = np.empty((len(planes), len(part)), dtype=np.int32)
        product(doubled, part, cross)  # -2 r.x
        sides = (cross <= 0).reshape(tables, bits, len(part))
        found[start : start + AT_ONCE] = np.einsum("tbn,b->nt", sides, weights)
    return found


@dataclass(frozen=True, eq=False, repr=False)
class HashTables:
    """``order``: int32 [tables, n], rows by bucket; ``starts``: int64 [tables, 2^bits + 1], where each bucket begins."""

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
        starts = np.stack(
            [np.searchsorted(np.sort(column), edges) for column in buckets.T.astype(np.int64)]
        )
        return cls(planes, bits, order, starts)

    def candidates(self, buckets: np.ndarray) -> np.ndarray:
        """Rows that share a query's bucket (uint16 [tables]) in at least one table: int64 [m], ascending."""
        marked = np.zeros(self.order.shape[1], dtype=bool)
        edges = self.starts[
            np.arange(len(buckets))[:, None], buckets[:, None] + np.array([0, 1], dtype=np.int64)
        ]  # [tables, 2]
        marked[
            np.concatenate(
                [rows[a:b] for rows, (a, b) in zip(self.order, edges.tolist(), strict=True)]
            )
        ] = True
        return np.flatnonzero(marked)


def products_of(
    features: np.ndarray, rows: np.ndarray, query: np.ndarray, product: Product
) -> np.ndarray:
    """-2 q.x for some records of int8 [n, d] and one query, int8 [d]: int32 [len(rows)]."""
    cross = np.empty((1, len(rows)), dtype=np.int32)
    doubled, gathered = (
        minus_twice(query[np.newaxis]),
        np.empty((GATHERED, features.shape[1]), dtype=np.int8),
    )
    for start in range(0, len(rows), GATHERED):
        part = rows[start : start + GATHERED]
        np.take(
            features, part, axis=0, out=gathered[: len(part)], mode="clip"
        )  # other modes copy a second time
        piece = np.empty((1, len(part)), dtype=np.int32)
        product(doubled, gathered[: len(part)], piece)
        cross[:, start : start + len(part)] = piece
    return cross[0]
