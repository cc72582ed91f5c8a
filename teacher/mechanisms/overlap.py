"""Bounds of the number of a batch's balls that one record can lie in (DMKD17, section 3.2).

Everything here is a function of public data: the queries and their radii. Two balls that share a
point have centres at most the sum of their radii apart (triangle inequality), so the balls around a
record are pairwise neighbours in the region overlap graph: a clique. Any UPPER bound of the largest
clique is a sound sensitivity; the size of a clique that was found is not.

Sets of vertices are bits of Python's integers: a set operation on 2,000 queries costs less than a
microsecond.
"""

from typing import Literal

import numpy as np

Accounting = Literal["local", "component", "queries"]
MAX_QUERIES = 2048  # of a batch: its graph may have every edge


def clique_bounds(
    queries: np.ndarray, squared_radii: np.ndarray, accounting: Accounting
) -> np.ndarray:
    """Bounds, by query, of the balls that any record of ITS ball lies in: int64 [q].

    Balls are around int8 [q, d] ``queries`` with int64 [q] ``squared_radii``. "queries": the number
    of queries. "component": a bound of the largest clique of the query's component (DMKD17
    Algorithm 3), the number of colours of a greedy colouring. "local": of the largest clique that
    the query itself belongs to, by colouring its neighbours, never above the component's.

    The sum of 1 / bound over the balls of a record is at most 1: docs/privacy.md, section 15.
    """
    sizes = np.full(len(queries), len(queries), dtype=np.int64)
    if accounting == "queries":
        return sizes
    graph = overlaps(queries, squared_radii)
    for vertices in components(graph):
        adjacency = bit_rows(graph[np.ix_(vertices, vertices)])
        sizes[vertices] = bound = colours((1 << len(vertices)) - 1, adjacency)
        for i, vertex in enumerate(vertices.tolist() if accounting == "local" else ()):
            sizes[vertex] = min(bound, 1 + colours(adjacency[i], adjacency))
    return sizes


def overlaps(queries: np.ndarray, squared_radii: np.ndarray) -> np.ndarray:
    """Whether two balls may share a point: bool [q, q], False on the diagonal.

    d <= r + s for d^2 = D, r^2 = A, s^2 = B is D <= A + B + 2 sqrt(AB), that is, D <= A + B or
    (D - A - B)^2 <= 4AB: integers. D, A, B are at most 4000 * 126^2 < 2^26, so products in float64
    and squares in int64 are exact.
    """
    x = queries.astype(np.float64)
    norms = (x * x).sum(axis=1)
    distances = (norms[:, None] + norms - 2 * (x @ x.T)).astype(np.int64)
    gap = distances - squared_radii[:, None] - squared_radii
    overlap = (gap <= 0) | (gap * gap <= 4 * squared_radii[:, None] * squared_radii)
    np.fill_diagonal(overlap, False)
    return overlap


def components(graph: np.ndarray) -> list[np.ndarray]:
    """Vertices of each connected component of bool [q, q].

    Those with many neighbours come first, which needs fewer colours.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    number, which = connected_components(csr_array(graph), directed=False)
    order = np.argsort(-graph.sum(axis=1), kind="stable")
    return [order[which[order] == component] for component in range(number)]


def bit_rows(graph: np.ndarray) -> list[int]:
    """Neighbours of each vertex as bits of an integer."""
    packed = np.packbits(graph, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def colours(vertices: int, adjacency: list[int]) -> int:
    """Number of colours of a greedy colouring of a set of vertices, bits of an integer.

    No two neighbours share a colour, so no clique in the set has more vertices.
    """
    number = 0
    while vertices:
        number += 1
        free = vertices
        while free:
            bit = free & -free
            vertices ^= bit
            free &= ~(adjacency[bit.bit_length() - 1] | bit)
    return number
