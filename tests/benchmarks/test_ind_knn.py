"""The Ind-KNN benchmark runs, on a few rows, and prints every method."""

from __future__ import annotations

import pytest

from tests.benchmarks import tiny_cache


def test_the_benchmark_prints_its_table(
    load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (benchmark,) = load("ind_knn")
    sizes = [
        "--records",
        "800",
        "--dimensions",
        "40",
        "--batch",
        "8",
        "--rounds",
        "1",
        "--threads",
        "1",
    ]
    tiny_cache.run(benchmark, monkeypatch, *sizes)
    lines = capsys.readouterr().out.splitlines()
    assert [
        line.split("|")[1].split(",")[0].strip()
        for line in lines
        if line.startswith("| ") and "method" not in line
    ] == ["exact", "hashed 30 x 8", "the paper's loop in numpy"]
    assert lines[-1].startswith("ledger:")
