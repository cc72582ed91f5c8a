"""The scaling study runs, on a few rows: every part of its report, and lists that are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks import tiny_cache


def test_the_study_prints_every_part_and_draws(
    load: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In one process here, so that it takes seconds; times are chance, and are not asked."""
    _, _, measures, scale = load("figures", "scale_model", "scale_measures", "scale")
    monkeypatch.setattr(measures, "BLOCK", 1000)
    monkeypatch.setattr(measures, "SECONDS", 0)

    def here(work: str, scratch: str | None = None, **fields: Any) -> dict[str, float]:
        if work == "echoed":  # a Ray worker; tests/teacher/scale have those
            return {"100": 2.0, "2513": 26.13}
        return measures.WORKS[work](
            tmp_path / "-".join([work, *map(str, fields.values())]), **fields
        )

    monkeypatch.setattr(scale, "in_process", here)
    sizes = [
        "--rows",
        "3000",
        "6000",
        "--dimensions",
        "32",
        "--batches",
        "3",
        "--shards",
        "2",
        "--ray",
        "--ray_rows",
        "3000",
    ]
    options = [
        "--rounds",
        "1",
        "--threads",
        "1",
        "--results",
        str(tmp_path / "kept"),
        "--out",
        str(tmp_path),
    ]
    monkeypatch.setattr(measures, "BATCH", 4)
    monkeypatch.setattr(scale, "BATCH", 4)
    tiny_cache.run(scale, monkeypatch, *sizes, *options)
    printed = capsys.readouterr().out
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in printed.splitlines()
        if line.startswith("| ")
    ]
    lists = [row for row in rows if row[-1] in ("yes", "NO")]
    assert [row[0] for row in lists] == ["3000", "6000", "32", "3", "2"]
    assert all(row[-1] == "yes" for row in lists)
    assert "1000000000 records on 100 machines" in printed
    assert "2 shards in one process" in printed
    assert all(
        (tmp_path / f"scale_{name}.svg").read_text().count("<path") > 10
        for name in ("rows", "parts")
    )


def test_the_model_finds_the_constants_that_made_the_times(load: Any) -> None:
    """Times of a machine with known constants; then what they add up to for shards, by hand."""
    (model,) = load("scale_model")
    pair, entry = 1.5e-6, 2e-5
    times = {rows: pair * rows + entry * model.LIST for rows in (10**4, 10**5, 10**6)}
    echoes = {width: 3.0 + 1e-5 * 256 * width for width in (100, 500, 2513)}
    found = model.fitted(times, echoes, 256, 4e-5)
    assert (found.pair, found.entry, found.request, found.returned) == pytest.approx(
        (pair, entry, 3.0, 1e-5)
    )
    width = model.asked_for(100)
    assert width == 64  # 25.13 + 6 * 5.013 + 8 = 63.2, rounded up
    assert model.asked_for(1) == 2513
    parts = model.cost(found, 10**9, 100, 256, threads=16, ray=True)
    assert parts == pytest.approx(
        {
            "search": (15 + 64 * entry) / 16,
            "workers": 100 * 3.0 / 256 + 6400 * 1e-5,
            "merge": 6400 * 4e-5,
        }
    )
    alone = model.cost(found, 10**6, 4, 256)["search"]
    assert alone == pytest.approx(1.5 + 4 * model.asked_for(4) * entry)


def test_a_query_over_shards_on_disk_is_measured(
    load: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In one process here; memory is this one's, and its growth is not asked."""
    *_, disk = load("figures", "scale_model", "scale_measures", "scale", "scale_disk")
    folders, threads = disk.write(tmp_path, 3000, 2), torch.get_num_threads()
    assert disk.write(tmp_path, 3000, 2) == folders
    try:
        found = disk.measured([str(folder) for folder in folders], "local", 1)
    finally:
        torch.set_num_threads(threads)
    assert found["right"] == 1
    assert found["peak"] >= found["start"] > 0
    disk.show("Title", {3000: found})
    assert "| 3000 |" in capsys.readouterr().out


def test_lists_that_are_wrong_are_told(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (scale,) = load("scale_measures")
    monkeypatch.setattr(scale, "brute_force", lambda features, query, m: None)
    assert scale.one_size(tmp_path / "rows", 300, 8, 2, 1, 1)["right"] == 0
