"""A parallel map runs each row once, in order, and fails once all have stopped."""

import threading
import time

import numpy as np
import pytest
from numba.core.caching import CacheImpl

from labelwall.teacher.search.loops import compiled, parallel_map


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
