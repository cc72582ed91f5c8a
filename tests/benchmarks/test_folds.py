"""Several comparisons as one table: medians over all cells."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


def test_cells_of_all_folds_are_one_row(
    load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folds,) = load("folds")
    for number, accuracy in enumerate((0.5, 0.9, 0.6)):
        cell = {
            "method": "a",
            "budget": 1.0,
            "epsilon": 0.99,
            "labels": 7,
            "label_accuracy": 0.8,
            "cpu_seconds": 2.0,
        }
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comparison.json").write_text(
            json.dumps({"cells": [{**cell, "accuracy": accuracy}]})
        )
    monkeypatch.setattr(
        sys,
        "argv",
        ["folds.py", *(str(tmp_path / n) for n in "012"), "--out", str(tmp_path / "out")],
    )
    folds.main()
    assert "| a | 0.99 | 7 | 80.0% | 60.00% (50.00 to 90.00) | 3 | 2 |" in capsys.readouterr().out
    assert (tmp_path / "out" / "accuracy_by_epsilon.svg").exists()
