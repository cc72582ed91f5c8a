"""The Ind-KNN benchmark runs, on a few rows, and prints every method."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ind_knn.py"


def test_the_benchmark_prints_its_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    spec = importlib.util.spec_from_file_location("benchmark_ind_knn", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark_ind_knn", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    sizes = ["--records", "800", "--dimensions", "40", "--batch", "8", "--rounds", "1", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *sizes])
    threads = torch.get_num_threads()
    try:
        module.main()
    finally:
        torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].split(",")[0].strip() for line in lines if line.startswith("| ") and "method" not in line] == [
        "exact",
        "hashed 30 x 8",
        "the paper's loop in numpy",
    ]
    assert lines[-1].startswith("ledger:")
