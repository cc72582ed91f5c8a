"""How many balls of a batch one record can lie in: the region overlap graph of DMKD17, section 3.2, and bounds of its cliques.

Everything here is a function of public things: the queries and their radii. Two balls that share a point have centres at
most the sum of their radii apart (triangle inequality), so the balls around a record are pairwise neighbours in the graph: a
clique. Any UPPER bound of the largest clique is a sound sensitivity; a clique that was merely found is not.

Sets of vertices are bits of Python's integers, so that a set operation on 2,000 queries costs less than a microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from labelwall.wall.errors import InvalidInput

Accounting = Literal["local", "component", "queries"]
MOST_QUERIES = 2048  # of a batch: its graph may have every edge
WORK = 1_000_000  # vertices coloured by a batch's exact search, seconds; counted, not timed: no bound depends on the machine


@dataclass(frozen=True)
class Bounds:
    """``sizes``: int64 [q], for each query at least the number of balls that any record of ITS ball lies in.

    ``exact``: bool [q], whether the size is a clique number (of the component, or of all queries), not a colouring's bound.
    """

    sizes: np.ndarray = field(repr=False)
    exact: np.ndarray = field(repr=False)


def clique_bounds(
    queries: np.ndarray, squared_radii: np.ndarray, accounting: Accounting, work: int = WORK
) -> Bounds:
    """Bounds for balls around int8 [q, d] ``queries`` with int64 [q] ``squared_radii``.

    "queries": the number of queries. "component": the largest clique of the query's component (DMKD17 Algorithm 3), exact by
    branch and bound within ``work``, past it the colours of a greedy colouring. "local": the largest clique that the query
    itself belongs to, bounded by colouring its neighbours, never above the component's.

    For "local" as for the others a record in the balls S has sum over S of 1 / sizes <= 1: S is a clique, and the size of each
    of its members is at least |S|.
    """
    count = len(queries)
    if accounting == "queries":
        return Bounds(np.full(count, count, dtype=np.int64), np.ones(count, dtype=bool))
    graph = overlaps(queries, squared_radii)
    sizes, exact = np.ones(count, dtype=np.int64), np.ones(count, dtype=bool)
    for vertices in components(graph):
        adjacency = bit_rows(graph[np.ix_(vertices, vertices)])
        found = largest_clique(adjacency, work)
        work -= found.work
        sizes[vertices], exact[vertices] = found.bound, found.exact
        if accounting == "local":
            inside = [
                found.exact and bool(found.members >> i & 1) for i in range(len(vertices))
            ]  # no colouring can be smaller
            around = [
                found.bound if i else 1 + colours(row, adjacency)
                for i, row in zip(inside, adjacency, strict=True)
            ]
            sizes[vertices], exact[vertices] = np.minimum(found.bound, around), inside
    return Bounds(sizes, exact)


def check_accounting(name: str, value: object) -> None:
    """Raises InvalidInput for another way of accounting than these."""
    if value not in get_args(Accounting):
        raise InvalidInput(f"mechanism.{name}", f"one of {', '.join(get_args(Accounting))}", value)


def overlaps(queries: np.ndarray, squared_radii: np.ndarray) -> np.ndarray:
    """Whether two balls may share a point: bool [q, q], False on the diagonal.

    d <= r + s for d^2 = D, r^2 = A, s^2 = B is D <= A + B + 2 sqrt(AB), that is, D <= A + B or (D - A - B)^2 <= 4AB: integers.
    D, A, B are at most 4000 * 126^2 < 2^26, so products in float64 and squares in int64 are exact.
    """
    x = queries.astype(np.float64)
    norms = (x * x).sum(axis=1)
    gap = (
        (norms[:, None] + norms - 2 * (x @ x.T)).astype(np.int64)
        - squared_radii[:, None]
        - squared_radii
    )
    near = (gap <= 0) | (gap * gap <= 4 * squared_radii[:, None] * squared_radii)
    np.fill_diagonal(near, False)
    return near


def components(graph: np.ndarray) -> list[np.ndarray]:
    """Vertices of each connected component of bool [q, q], many neighbours first: fewer colours then do."""
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
    """Greedy colouring of a set of vertices: (vertex, colour) by ascending colour, colours from 1. No two neighbours share one,
    so a clique among the first i entries has at most as many vertices as the i-th's colour."""
    order, colour = [], 0
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


def colours(vertices: int, adjacency: list[int]) -> int:
    """How many colours the greedy colouring needs: at least the clique number."""
    order = coloured(vertices, adjacency)
    return order[-1][1] if order else 0


@dataclass(frozen=True)
class Clique:
    """``bound``: at least the clique number, and equal to it where ``exact``; ``members``: bits of the largest clique found.

    ``work``: vertices coloured in the search.
    """

    bound: int
    exact: bool
    members: int
    work: int


def largest_clique(adjacency: list[int], most: int) -> Clique:
    """The largest clique, or past ``most`` vertices coloured an upper bound of its size by colouring.

    Branch and bound by colouring (Tomita, Seki 2003): a set of vertices holds no clique larger than its colours, so branches
    that can not beat the best clique found are left out.
    """
    everything = (1 << len(adjacency)) - 1
    root = coloured(everything, adjacency)
    bound, best, work = root[-1][1], greedy_clique(everything, adjacency), len(root)
    branches = [(root, everything, 0)]
    while branches:
        order, candidates, members = branches.pop()
        if not order or members.bit_count() + order[-1][1] <= best.bit_count():
            continue
        if work > most:
            return Clique(bound, False, best, work)
        vertex = 1 << order[-1][0]
        inside, members_too = candidates & adjacency[order.pop()[0]], members | vertex
        branches.append((order, candidates & ~vertex, members))
        if not inside:
            best = max(best, members_too, key=int.bit_count)
        else:
            branches.append((coloured(inside, adjacency), inside, members_too))
            work += len(branches[-1][0])
    return Clique(best.bit_count(), True, best, work)


def greedy_clique(candidates: int, adjacency: list[int]) -> int:
    """Some clique: always the first vertex that is left (those with many neighbours come first)."""
    members = 0
    while candidates:
        bit = candidates & -candidates
        members |= bit
        candidates &= adjacency[bit.bit_length() - 1]
    return members
