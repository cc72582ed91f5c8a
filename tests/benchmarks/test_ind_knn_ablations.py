"""The ablations run, on a few rows, and what was measured is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import tiny_cache

SCRIPTS = (*tiny_cache.ACCURACY, "ind_knn_ablations")


def test_every_part_prints_its_rows_and_draws(
    load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What is right how often is chance, and is not asked here."""
    features, *_, ablations = load(*SCRIPTS)
    monkeypatch.setattr(features, "CHUNK", tiny_cache.CHUNK)
    for name, few in (("LEVELS", (0.3, 0.5)), ("COPIES", (1, 2)), ("TABLES", (3,))):
        monkeypatch.setattr(ablations, name, few)
    tiny_cache.write(tmp_path, 140)
    sizes = [
        "--private",
        "300",
        "--validation",
        "100",
        "--pool",
        "40",
        "--asked",
        "10",
        "20",
        "30",
        "--sets",
        "2",
    ]
    options = [
        "--cache",
        str(tmp_path),
        *sizes,
        "--results",
        str(tmp_path / "kept"),
        "--out",
        str(tmp_path),
    ]
    tiny_cache.run(ablations, monkeypatch, *options)
    printed = capsys.readouterr().out
    rows = [line.split("|")[1].strip() for line in printed.splitlines()[2:]]
    assert [row for row in rows if row.startswith("queries")] == [
        "queries 10",
        "queries 20",
        "queries 30",
    ]
    assert [row for row in rows if row.startswith("for")] == [
        "for 20, asked 30",
        "for 20, asked 30, reused",
    ]
    assert [row for row in rows if row.startswith("records")] == ["records 300", "records 600"]
    assert len([row for row in rows if row.startswith("threshold")]) == 4
    assert len([row for row in rows if row.startswith(("exact", "3 tables"))]) == 6
    for part in ablations.PARTS:
        assert (tmp_path / f"ind_knn_{part}.svg").read_text().startswith("<?xml")
    monkeypatch.setattr(ablations, "ask_ind_knn", None)
    tiny_cache.run(ablations, monkeypatch, *options)
    assert capsys.readouterr().out == printed
