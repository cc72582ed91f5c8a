"""The search benchmark runs, on a few synthetic rows, and its table names every method and part."""

from __future__ import annotations

import pytest
import torch

from tests.benchmarks import tiny_cache
from tests.teacher.search.indexes import DEVICES

pytest.importorskip("faiss")


def test_the_benchmark_prints_its_table(load, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("KMP_BLOCKTIME", "0")
    (limits, benchmark), out = load("limits", "search"), tmp_path / "table.md"
    limits.__dict__.update(SIZES={"cpu": (64, 128)}, COPIED_BYTES=1 << 20)
    sizes = ["--records", "9000", "--threads", "1", "--rounds", "1", "--batches", "2"]
    tiny_cache.run(benchmark, monkeypatch, *sizes, "--out", str(out))
    text = out.read_text()
    assert text in capsys.readouterr().out
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    assert len([row for row in rows if "labelwall" in row]) == 3
    parts = {"search: products", "search: selection", "inclusion bits", "votes", "noise", "all"}
    assert {benchmark.FAISS, "ledger: charge", "ledger: record", *parts} <= set(rows)
    shares = {
        line.split("|")[1].strip(): line
        for line in text.splitlines()
        if line.endswith(("| products |", "| memory |"))
    }
    assert "%" in shares["2"]
    assert "1.00x" in next(line for line in text.splitlines() if benchmark.FAISS in line)


@pytest.mark.parametrize("name", DEVICES)
def test_the_limit_is_of_the_device_and_bounds_a_batch(load, name):
    (limits,) = load("limits")
    limits.__dict__.update(SIZES={"cpu": (64, 128), "elsewhere": (256, 512)}, COPIED_BYTES=1 << 20)
    found = limits.limits_of(torch.device(name))
    assert found.operations > 0 < found.bytes
    known = limits.Limits(operations=1e9, bytes=1e6)
    assert known.least(1, 1000, 500) == (0.5, "memory")
    assert known.least(1000, 1000, 500) == (1.0, "products")
