"""The benchmark of batches runs on a small data set and prints its tables, plots and export."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def test_it_prints_its_tables_and_draws_its_plots(
    radius: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["radius.py", "--out", str(tmp_path), "--figures", "radius", "conversion"]
    )
    radius.main()
    printed = capsys.readouterr().out
    assert [line.split("|")[1].strip() for line in printed.splitlines() if "±" in line] == [
        "non-private",
        *radius.CLASSIFIERS,
    ]
    assert printed.count(" / ") > 3
    assert {path.name for path in tmp_path.iterdir()} == {"dmkd17_radius.svg"}


def test_the_export_is_a_source_of_arrays(
    radius: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["radius.py", "--export", str(tmp_path / "banana.npz"), "--fold", "4"]
    )
    radius.main()
    with np.load(tmp_path / "banana.npz") as stored:
        every = np.vstack([stored[f"{part}_x"] for part in ("private", "public", "test")])
        assert sorted(map(tuple, every)) == sorted(map(tuple, radius.TABLES["banana"].read()[0]))
        assert {name: len(stored[name]) for name in stored.files} == {
            **dict.fromkeys(("private_x", "private_y", "private_id"), 160),
            **dict.fromkeys(("public_x", "public_y", "test_x", "test_y"), 20),
        }
