"""Overlap graphs against exact arithmetic, components and cliques against networkx."""

import itertools
from decimal import Decimal, localcontext

import networkx as nx
import numpy as np
import pytest

from labelwall.teacher.mechanisms.overlap import (
    bit_rows,
    clique_bounds,
    colours,
    components,
    overlaps,
)


def batch(rng, count, dimensions):
    """Centres, some of them equal, and radii of a common scale, some of them 0 or huge."""
    centres = rng.integers(-63, 64, (count, dimensions)).astype(np.int8)
    centres[rng.integers(0, count, count // 4)] = centres[0]
    scale = rng.choice([1, 10, 40, 120]) * np.sqrt(dimensions)
    radii = np.floor((scale * rng.random(count) ** rng.choice([0.2, 1, 3])) ** 2).astype(np.int64)
    radii[rng.random(count) < 0.05] = 0
    return centres, np.minimum(radii, 1 << 26)


def test_overlaps_are_those_of_forty_digits():
    rng = np.random.default_rng(0)
    pair = np.array([[0, 0], [3, 4]], dtype=np.int8)
    touching = [(pair, np.array(r)) for r in ([4, 9], [4, 8], [9, 3], [25, 0], [24, 0], [1, 16])]
    drawn = [batch(rng, 12, d) for d in (1, 2, 3, 20) for _ in range(10)]
    for centres, radii in [*touching, *drawn]:
        graph = overlaps(centres, radii)
        assert not graph.diagonal().any()
        with localcontext() as context:
            context.prec = 40
            for i, j in itertools.combinations(range(len(radii)), 2):
                distance = int(((centres[i].astype(int) - centres[j].astype(int)) ** 2).sum())
                reach = Decimal(int(radii[i])).sqrt() + Decimal(int(radii[j])).sqrt()
                assert graph[i, j] == graph[j, i] == (Decimal(distance).sqrt() <= reach)


def test_the_largest_arguments_do_not_overflow():
    corners = np.stack([np.full(4000, -63), np.full(4000, 63), np.zeros(4000)]).astype(np.int8)
    assert overlaps(corners, np.full(3, 1 << 26)).sum() == 6
    assert overlaps(corners, np.zeros(3, dtype=np.int64)).sum() == 0
    # half the diagonal each: they touch
    assert overlaps(corners, np.array([4000 * 63**2] * 3)).sum() == 6
    assert overlaps(corners, np.array([4000 * 63**2 - 1] * 3))[0, 1] == 0


@pytest.mark.parametrize("density", [0.05, 0.3, 0.6, 0.9, 1.0])
def test_cliques_and_components_are_those_of_networkx(density):
    rng = np.random.default_rng(int(100 * density))
    for _ in range(15):
        upper = np.triu(rng.random((24, 24)) < density, 1)
        graph = upper | upper.T
        oracle = nx.from_numpy_array(graph)
        assert {frozenset(c.tolist()) for c in components(graph)} == {
            frozenset(c) for c in nx.connected_components(oracle)
        }
        number = nx.max_weight_clique(oracle, weight=None)[1]
        assert number <= colours((1 << 24) - 1, bit_rows(graph)) <= 1 + graph.sum(axis=1).max()


def test_each_bound_is_at_least_the_clique_it_bounds_and_near_it():
    rng, near = np.random.default_rng(5), 0
    for _ in range(60):
        centres, radii = batch(rng, 16, int(rng.integers(1, 5)))
        graph, largest = overlaps(centres, radii), np.zeros(16, dtype=int)
        cliques = list(nx.find_cliques(nx.from_numpy_array(graph)))
        mine = np.array([max(len(c) for c in cliques if i in c) for i in range(16)])
        for component in components(graph):
            largest[component] = mine[component].max()
        whole, local = (clique_bounds(centres, radii, how) for how in ("component", "local"))
        assert (whole >= largest).all()
        assert (mine <= local).all()
        assert (local <= whole).all()
        near += int((local == mine).sum())
        assert clique_bounds(centres, radii, "queries").tolist() == [16] * 16
    assert near > 0.99 * 60 * 16


def points(rng, centres):
    """Points in many balls: centres, between pairs and triples of them, near them, anywhere."""
    few = [centres[rng.integers(0, len(centres), (24, size))].mean(axis=1) for size in (1, 2, 3, 5)]
    near = few[0] + rng.integers(-3, 4, few[0].shape)
    drawn = np.concatenate([*few, near, rng.integers(-63, 64, few[0].shape)])
    return np.clip(np.rint(drawn), -63, 63).astype(np.int64)


def test_no_record_lies_in_more_balls_than_the_bounds_allow():
    """3,000 random batches in 1 to 20 dimensions; a record spends at most 1."""
    rng, fullest = np.random.default_rng(7), 0.0
    for number in range(3000):
        centres, radii = batch(rng, int(rng.integers(2, 25)), 1 + number % 20)
        where = points(rng, centres)
        distances = ((where[:, None] - centres.astype(np.int64)) ** 2).sum(axis=2)  # [points, q]
        inside = distances <= radii
        for how in ("component", "local"):
            bounds = clique_bounds(centres, radii, how)
            spent = (inside / bounds).sum(axis=1)
            assert spent.max() <= 1 + 1e-12, (number, how)
            assert (inside.sum(axis=1) <= np.where(inside, bounds, 25).min(axis=1)).all()
            fullest = max(fullest, spent.max()) if len(centres) > 5 and how == "local" else fullest
    assert fullest > 0.99  # the bound is met: a smaller one would have failed
