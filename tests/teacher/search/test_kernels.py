"""Bounds, tables and collision laws of kernels; a parallel map runs each row once, in order."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core.caching import CacheImpl

from labelwall.teacher.search import cpu, kernels
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.kernels import HashTables, codes, cosine, hyperplanes, rbf
from labelwall.teacher.search.loops import compiled, parallel_map
from tests.teacher.search.indexes import PRODUCTS

D, TABLES, BITS, SEED = 24, 5, 4, 3


@given(
    st.lists(st.lists(st.integers(-63, 63), min_size=3, max_size=3), min_size=1, max_size=12),
    st.lists(st.integers(-63, 63), min_size=3, max_size=3),
    st.sampled_from([0.001, 0.3, 0.9, 1.0]),
    st.integers(0, 3000),
)
def test_selected_records_are_within_the_bound(rows, query, threshold, beyond):
    """For the least and the largest norm above 0 that there are, and for wider ends."""
    x, q = np.array(rows, dtype=np.int64), np.array(query, dtype=np.int64)
    cross, norms = (-2 * x @ q).astype(np.int32), (x * x).sum(axis=1).astype(np.int32)
    norm, positive = int(q @ q), norms[norms > 0]
    least = max(0, int(positive.min(initial=0 if not len(positive) else 2**30)) - beyond)
    plain, near = rbf(threshold, 1.0, 60.0), rbf(threshold, 0.2, 60.0, near=0.8)
    for select in (cosine(threshold), plain, near):
        chosen = (cross + norms)[select(cross, norms, norm).rows]
        largest = int(positive.max(initial=0)) + beyond
        assert (chosen <= select.bounds(least, largest, np.array([norm], dtype=np.int32))).all()


def features(n, seed):
    x = np.random.default_rng(seed).normal(size=(n, D)) * 20
    x[1::9] = x[0]
    x[2] = 0
    return np.clip(np.rint(x), -63, 63).astype(np.int8)


def test_candidates_are_those_on_the_same_side_of_all_planes_of_a_table():
    x, q = features(400, 1), features(15, 2)
    planes = hyperplanes(TABLES * BITS, D, SEED).astype(np.int64).reshape(TABLES, BITS, D)
    sides = [np.einsum("tbd,nd->ntb", planes, rows.astype(np.int64)) >= 0 for rows in (x, q)]
    for product in PRODUCTS.values():
        tables = HashTables(x, TABLES, BITS, SEED, product)
        for j, row in enumerate(codes(q, tables.planes, BITS, product)):
            expected = (sides[0] == sides[1][j]).all(axis=2).any(axis=1)
            np.testing.assert_array_equal(tables.candidates(row), np.flatnonzero(expected))
            assert 0 < expected.sum() < 400


@pytest.mark.parametrize(
    "cost", [0, 10**6], ids=["candidates gathered", "products of the whole batch"]
)
def test_hashed_selection_is_the_exact_one_among_candidates_whatever_the_company(cost, monkeypatch):
    monkeypatch.setattr(cpu, "GATHER_COST", cost)
    monkeypatch.setattr(kernels, "GATHER_ROWS", 7)
    x, q, hashing = features(300, 1), features(12, 2), (TABLES, BITS, SEED)
    select = cosine(0.3)
    exact = ExactIndex(x, np.arange(300), threads=1).similar(q, select)
    hashed = ExactIndex(x, np.arange(300), threads=2).similar(q, select, hashing)
    alone = [
        ExactIndex(x[[i]], np.zeros(1, np.int64), threads=1).similar(q, select, hashing)
        for i in range(300)
    ]
    fewer = 0
    for j in range(12):
        full = dict(zip(exact[j].rows.tolist(), exact[j].weights.tolist(), strict=True))
        found = dict(zip(hashed[j].rows.tolist(), hashed[j].weights.tolist(), strict=True))
        assert found == {i: full[i] for i in range(300) if len(alone[i][j].rows)}
        fewer += len(found) < len(full)
    assert fewer > 5


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 200])
def test_results_are_those_of_map(threads, count):
    results = parallel_map(threads, lambda a, b: a - b, range(count), range(0, 3 * count, 3))
    assert results == [-2 * i for i in range(count)]


def test_a_failure_comes_when_nobody_works_any_more():
    gate, working = threading.Barrier(2), []

    def work(number):
        gate.wait(timeout=60)
        if number == 0:
            raise ValueError("no")
        working.append(number)
        time.sleep(0.05)
        working.remove(number)

    with pytest.raises(ValueError, match="no"):
        parallel_map(2, work, range(2))
    assert working == []


def test_without_a_place_to_keep_it_a_function_is_compiled_anew(monkeypatch):
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])

    def double(values):
        for place in range(len(values)):
            values[place] *= 2

    values = np.arange(3)
    compiled(double)(values)
    assert values.tolist() == [0, 2, 4]
