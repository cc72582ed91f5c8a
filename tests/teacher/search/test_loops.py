"""A parallel map runs each row once, in order, and fails once all have stopped."""

import threading
import time

import numpy as np
import pytest
import torch
from numba.core.caching import CacheImpl

from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.loops import compiled, default_threads, parallel_map
from tests.teacher.search.indexes import brute_force, int_features


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 200])
def test_results_are_those_of_map(threads, count):
    results = parallel_map(threads, lambda a, b: a - b, range(count), range(0, 3 * count, 3))
    assert results == [-2 * i for i in range(count)]


def test_products_inside_start_no_threads_and_the_callers_number_is_as_before():
    before, gate = torch.get_num_threads(), threading.Barrier(2)

    def inside(_: int) -> int:
        gate.wait(timeout=60)
        return default_threads()

    try:
        torch.set_num_threads(3)
        assert parallel_map(2, inside, range(2)) == [1, 1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_failure_comes_when_nobody_works_any_more():
    gate, working = threading.Barrier(2), []

    def work(number: int) -> None:
        gate.wait(timeout=60)
        if number == 0:
            raise ValueError("no")
        working.append(number)
        time.sleep(0.05)
        working.remove(number)

    with pytest.raises(ValueError, match="no"):
        parallel_map(2, work, range(2))
    assert working == []


def test_searches_of_many_threads_at_once_are_right():
    features, queries = int_features(1, 3000, 6, -5, 5), int_features(2, 40, 6, -5, 5)
    index = ExactIndex(features, np.arange(3000), threads=3)
    expected = brute_force(features, queries, 70)
    results: dict[int, np.ndarray] = {}

    def search(number: int) -> None:
        rows = [index.nearest(queries[i : i + 1], 70)[0][0] for i in range(len(queries))]
        results[number] = np.array(rows)

    callers = [threading.Thread(target=search, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=120)
    assert all(np.array_equal(results[number], expected) for number in range(4))


def test_without_a_place_to_keep_it_a_function_is_compiled_anew(monkeypatch):
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])

    def double(values: np.ndarray) -> None:
        for place in range(len(values)):
            values[place] *= 2

    values = np.arange(3)
    compiled(double)(values)
    assert values.tolist() == [0, 2, 4]
