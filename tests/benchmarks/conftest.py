"""Benchmarks as commands, on few rows."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`run(module, options, path, ...)`: what a command prints; torch's threads are as before."""

    def output(module: ModuleType, options: str, *values: object) -> str:
        words = options.format(*values).split()
        monkeypatch.setattr(sys, "argv", [str(module.__file__), *words])
        threads = torch.get_num_threads()
        try:
            module.main()
        finally:
            torch.set_num_threads(threads)
        return capsys.readouterr().out

    return output
