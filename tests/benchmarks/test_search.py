"""The search benchmark runs, on a few synthetic rows, and its table names every method and part."""

from __future__ import annotations

import pytest

from tests.benchmarks import tiny_cache

pytest.importorskip("faiss")


def test_the_benchmark_prints_its_table(load, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("KMP_BLOCKTIME", "0")
    (benchmark,), out = load("search"), tmp_path / "table.md"
    sizes = ["--records", "700", "--threads", "1", "--rounds", "1", "--batches", "2"]
    tiny_cache.run(benchmark, monkeypatch, *sizes, "--out", str(out))
    text = out.read_text()
    assert text in capsys.readouterr().out
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    assert len([row for row in rows if "labelwall" in row]) == 2
    assert {benchmark.FAISS, "product", "selection", "noise", "all"} <= set(rows)
    assert "1.00x" in next(line for line in text.splitlines() if benchmark.FAISS in line)
