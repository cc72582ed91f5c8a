"""Benchmarks as modules, on a tiny cache of features."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
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

    return lambda *names: [module(name) for name in names]


@pytest.fixture
def radius(load) -> ModuleType:
    """benchmarks/radius.py with 200 rows in place of KEEL's, one batch a fold and few settings."""
    _, tables, made = load("figures", "tables", "radius")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 2)).astype(np.float32)
    tables.TABLES["banana"] = replace(
        tables.TABLES["banana"], read=lambda: (rows, (rows[:, 0] > 0).astype(np.int64))
    )
    made.__dict__.update(BATCHES=1, EPSILONS=(1.0,), QUERIES=(5, 9))
    made.__dict__.update(NEIGHBOURS=(5,), CONVERSION_EPSILONS=(1.0,))
    return made
