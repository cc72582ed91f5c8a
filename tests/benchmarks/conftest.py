"""Benchmarks as modules, on few rows."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def load(monkeypatch):
    def module(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, loaded)  # dataclasses look their module up
        spec.loader.exec_module(loaded)
        return loaded

    return lambda *names: [module(name) for name in names]


@pytest.fixture
def run(monkeypatch, capsys) -> Callable[..., str]:
    """`run(module, options, path, ...)`: what a command prints; torch's threads are as before."""

    def output(module: ModuleType, options: str, *values: object) -> str:
        monkeypatch.setattr(
            sys, "argv", [f"{module.__name__}.py", *options.format(*values).split()]
        )
        threads = torch.get_num_threads()
        try:
            module.main()
        finally:
            torch.set_num_threads(threads)
        return capsys.readouterr().out

    return output
