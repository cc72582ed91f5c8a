"""Compiled loops need no place on the disk."""

from __future__ import annotations

import numpy as np
from numba.core.caching import CacheImpl

from labelwall.teacher.search.compiled import compiled


def test_without_a_place_to_keep_it_a_function_is_compiled_anew(monkeypatch) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])

    def double(values: np.ndarray) -> None:
        for place in range(len(values)):
            values[place] *= 2

    values = np.arange(3)
    compiled(double)(values)
    assert values.tolist() == [0, 2, 4]
