"""A parallel map runs each row once, in order, and fails once all have stopped."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.threads import default_threads, parallel_map
from tests.teacher.search.indexes import brute_force, int_features


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 200])
def test_results_are_those_of_map(threads: int, count: int) -> None:
    found = parallel_map(threads, lambda a, b: a - b, range(count), range(0, 3 * count, 3))
    assert found == [-2 * i for i in range(count)]


def test_products_inside_start_no_threads_and_the_callers_number_is_as_before() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        gate = threading.Barrier(2)

        def inside(_: int) -> int:
            gate.wait(timeout=60)
            return default_threads()

        assert parallel_map(2, inside, range(2)) == [1, 1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failure_comes_when_nobody_works_any_more(failing: int) -> None:
    gate, working = threading.Barrier(2), []

    def work(number: int) -> None:
        gate.wait(timeout=60)
        if number == failing:
            raise ValueError("no")
        working.append(number)
        time.sleep(0.05)
        working.remove(number)

    with pytest.raises(ValueError, match="no"):
        parallel_map(2, work, range(2))
    assert working == []


def test_searches_of_many_threads_at_once_are_right() -> None:
    features, queries = int_features(1, 3000, 6, -5, 5), int_features(2, 40, 6, -5, 5)
    index = ExactIndex(features, np.arange(3000), threads=3)
    expected = brute_force(features, np.arange(3000), queries, 70)
    found: dict[int, np.ndarray] = {}

    def search(number: int) -> None:
        rows = [index.nearest(queries[i : i + 1], 70)[0][0] for i in range(len(queries))]
        found[number] = np.array(rows)

    callers = [threading.Thread(target=search, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=120)
    assert len(found) == 4
    for rows in found.values():
        np.testing.assert_array_equal(rows, expected)
