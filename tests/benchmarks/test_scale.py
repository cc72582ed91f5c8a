"""The scaling study runs, on a few rows: every part of its report, and lists that are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import tiny_cache


def test_the_study_prints_every_part_and_draws(
    load: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In one process here, so that it takes seconds; times are chance, and are not asked."""
    _, scale = load("figures", "scale")
    monkeypatch.setattr(scale, "BLOCK", 1000)

    def here(work: str, scratch: str | None = None, **fields: Any) -> dict[str, float]:
        folder = tmp_path / "-".join([work, *map(str, fields.values())])
        return {"size": scale.one_size, "sharded": scale.sharded}[work](folder, **fields)

    monkeypatch.setattr(scale, "in_process", here)
    sizes = ["--rows", "3000", "6000", "--dimensions", "32", "--batches", "3", "--shards", "2", "--ray", "--ray_rows", "3000"]
    options = ["--rounds", "1", "--threads", "1", "--results", str(tmp_path / "kept"), "--out", str(tmp_path)]
    monkeypatch.setattr(scale, "BATCH", 4)
    tiny_cache.run(scale, monkeypatch, *sizes, *options)
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if line.startswith("| ")]
    lists = [row for row in rows if row[-1] in ("yes", "NO")]
    assert [row[0] for row in lists] == ["3000", "6000", "32", "3", "2"]
    assert all(row[-1] == "yes" for row in lists)
    assert "1000000000 records on 100 machines" in printed
    assert (tmp_path / "scale_rows.svg").read_text().count("<path") > 10


def test_lists_that_are_wrong_are_told(load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (scale,) = load("scale")
    monkeypatch.setattr(scale, "brute_force", lambda features, query, m: None)
    assert scale.one_size(tmp_path / "rows", 300, 8, 2, 1, 1)["right"] == 0
