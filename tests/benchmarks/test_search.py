"""The search benchmark runs, on a few synthetic rows, and its table names every method and part."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("faiss")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "search.py"


def test_the_benchmark_prints_its_table(monkeypatch, tmp_path, capsys):
    import torch

    spec = importlib.util.spec_from_file_location("benchmark_search", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark_search", module)  # dataclasses look their module up
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("KMP_BLOCKTIME", "0")
    spec.loader.exec_module(module)
    out, threads = tmp_path / "table.md", torch.get_num_threads()
    arguments = ["--records", "700", "--threads", "1", "--rounds", "1", "--batches", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    try:
        module.main()
    finally:
        torch.set_num_threads(threads)
    text = out.read_text()
    assert text in capsys.readouterr().out
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    assert len([row for row in rows if "labelwall" in row]) == 2
    assert {module.FAISS, "product", "selection", "noise", "all"} <= set(rows)
    assert "1.00x" in next(line for line in text.splitlines() if module.FAISS in line)
