"""Benchmarks as modules, on a tiny cache of features."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    def module(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, found)  # dataclasses look their module up
        spec.loader.exec_module(found)
        return found

    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda *names: [module(name) for name in names]


@pytest.fixture
def radius(load) -> ModuleType:  # type: ignore[no-untyped-def]
    """benchmarks/radius.py with 200 rows in place of KEEL's, one batch a fold and few settings."""
    _, made = load("figures", "radius")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 2)).astype(np.float32)
    made.__dict__.update(keel=lambda: (rows, (rows[:, 0] > 0).astype(np.int64)), BATCHES=1, EPSILONS=(1.0,), QUERIES=(5, 9))
    made.__dict__.update(NEIGHBOURS=(5,), CONVERSION_EPSILONS=(1.0,), RADIUS=0.1)
    return made
