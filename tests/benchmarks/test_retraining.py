"""The retraining benchmark runs, on a few rows: every method, what updates do, and the pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.mechanisms.ind_knn import IndKnn
from tests.benchmarks import tiny_cache

SCRIPTS = (*tiny_cache.ACCURACY, "retraining")


def test_the_benchmark_prints_its_table_and_draws(
    load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What is right how often is chance, and is not asked here."""
    *_, retraining = modules = load(*SCRIPTS)
    monkeypatch.setattr(modules[0], "CHUNK", tiny_cache.CHUNK)
    monkeypatch.setattr(retraining, "MOVED", 30)
    monkeypatch.setattr(retraining, "RATES", (1.0,))
    tiny_cache.write(tmp_path, 150)
    sizes = [
        "--private",
        "1000",
        "--validation",
        "100",
        "--queries",
        "50",
        "--every",
        "20",
        "--epochs",
        "1",
    ]
    options = ["--cache", str(tmp_path), *sizes, "--epsilon", "8", "--epsilons", "1"]
    tiny_cache.run(
        retraining,
        monkeypatch,
        *options,
        "--results",
        str(tmp_path / "kept"),
        "--out",
        str(tmp_path),
    )
    printed = capsys.readouterr().out
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in printed.splitlines()
        if line.startswith("| ")
    ]
    assert rows[0][3] == "with 3 data sets"
    assert [row[0] for row in rows[1:]] == ["Ind-KNN", "Ind-KNN-Hash 30 x 8", "NoisySGD"]
    assert [row[4:] for row in rows[1:3]] == [["8", "8"]] * 2
    assert float(rows[3][4]) <= 1 < float(rows[3][5])
    assert float(rows[3][2]) < float(rows[3][3])
    for name in ("retraining_seconds.svg", "retraining_epsilon.svg"):
        assert (tmp_path / name).read_text().count("<path") > 10
    assert "CUSTODIAN ONLY" in (tmp_path / "retraining_epsilon.svg").read_text()


def test_a_stream_asks_the_records_that_are_there(load) -> None:
    """Records of one class leave, those of another join: with little noise the answers follow.

    Noise of deviation 0.0055 sqrt(30) on 30 and more votes for the only class: the other wins with
    probability below 1e-100.
    """
    *_, accuracy, retraining = load(*SCRIPTS)
    retraining.MOVED = 40
    same = np.tile(np.array([[40, 20, 10, 5]], dtype=np.int8), (80, 1))
    private = accuracy.Split(same, np.repeat([3, 7], 40))
    queries = accuracy.Split(same[:4] + np.eye(4, dtype=np.int8), np.array([3, 3, 7, 7]))
    mechanism = IndKnn(threshold=0.5, sigma_label=0.005, sigma_count=0.5, rho=1e6)
    found = retraining.stream(private, queries, mechanism, 1e7, 2)
    assert found["right"] == 1.0
    assert len(found["spent"]) == 2
    assert found["seconds"]["update"] > 0
