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
# Vertices coloured by a batch's exact search, which takes seconds. It is counted, not timed, so
# that no bound depends on the machine.
WORK = 1_000_000


def clique_bounds(
    queries: np.ndarray, squared_radii: np.ndarray, accounting: Accounting, work: int = WORK
) -> np.ndarray:
    """For each query a bound of the number of balls that any record of ITS ball lies in: int64 [q].

    Balls are around int8 [q, d] ``queries`` with int64 [q] ``squared_radii``. "queries": the number
    of queries. "component": the largest clique of the query's component (DMKD17 Algorithm 3), by
    branch and bound within ``work``, beyond it the number of colours of a greedy colouring.
    "local": the largest clique that the query itself belongs to, bounded by colouring its
    neighbours, never above the component's.

    For "local" as for the others, the sum of 1 / bound over the balls S that contain a record is at
    most 1: S is a clique, and the bound of each of its members is at least |S|.
    """
    sizes = np.full(len(queries), len(queries), dtype=np.int64)
    if accounting == "queries":
        return sizes
    graph = overlaps(queries, squared_radii)
    for vertices in components(graph):
        adjacency = bit_rows(graph[np.ix_(vertices, vertices)])
        bound, members, used = largest_clique(adjacency, work)
        work -= used
        sizes[vertices] = bound
        for i, vertex in enumerate(vertices.tolist() if accounting == "local" else ()):
            if not members >> i & 1:  # for a member no colouring can be smaller
                near = coloured(adjacency[i], adjacency)
                sizes[vertex] = min(bound, 1 + (near[-1][1] if near else 0))
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
    near = (gap <= 0) | (gap * gap <= 4 * squared_radii[:, None] * squared_radii)
    np.fill_diagonal(near, False)
    return near


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


def coloured(vertices: int, adjacency: list[int]) -> list[tuple[int, int]]:
    """Greedy colouring of a set of vertices: (vertex, colour) by ascending colour, from 1.

    No two neighbours share a colour, so a clique among the first i entries has at most as many
    vertices as the i-th's colour.
    """
    order = []
    colour = 0
    while vertices:
        colour += 1
        free = vertices
        while free:
            bit = free & -free
            vertex = bit.bit_length() - 1
            order.append((vertex, colour))
            vertices ^= bit
            free &= ~(adjacency[vertex] | bit)
    return order


def largest_clique(adjacency: list[int], max_work: int) -> tuple[int, int, int]:
    """(number of vertices of the largest clique, their bits, vertices coloured in the search).

    After ``max_work`` coloured vertices (an upper bound of the number, 0, the work).

    Branch and bound by colouring (Tomita, Seki 2003): a set of vertices contains no clique larger
    than its number of colours, so branches that can not beat the best clique found are cut.
    """
    vertices = (1 << len(adjacency)) - 1
    root = coloured(vertices, adjacency)
    bound, work = root[-1][1], len(root)
    best = greedy_clique(vertices, adjacency)
    branches = [(root, vertices, 0)]
    while branches:
        order, candidates, members = branches.pop()
        if not order or members.bit_count() + order[-1][1] <= best.bit_count():
            continue
        if work > max_work:
            return bound, 0, work
        vertex = 1 << order[-1][0]
        inside = candidates & adjacency[order.pop()[0]]
        extended = members | vertex
        branches.append((order, candidates & ~vertex, members))
        if not inside:
            best = max(best, extended, key=int.bit_count)
        else:
            branches.append((coloured(inside, adjacency), inside, extended))
            work += len(branches[-1][0])
    return best.bit_count(), best, work


def greedy_clique(candidates: int, adjacency: list[int]) -> int:
    """A clique by always taking the first remaining vertex (many neighbours come first)."""
    members = 0
    while candidates:
        bit = candidates & -candidates
        members |= bit
        candidates &= adjacency[bit.bit_length() - 1]
    return members
