"""Benchmarks as modules, on a tiny cache of features."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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
