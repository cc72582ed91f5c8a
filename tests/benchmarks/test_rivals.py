"""Figure 15's benchmark runs on a small data set: a line for every method, a plot."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest


def test_it_prints_a_line_for_each_method_and_draws_a_plot(
    load,
    radius: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (rivals,) = load("rivals")
    assert rivals.folds is radius.folds  # the small data set's
    rivals.__dict__.update(EPSILONS=(1.0,), QUERIES=9, K=5)
    monkeypatch.setattr(sys, "argv", ["rivals.py", "--out", str(tmp_path)])
    rivals.main()
    printed = capsys.readouterr().out
    assert [line.split("|")[1].strip() for line in printed.splitlines() if "±" in line] == list(
        rivals.methods(1.0, 160, 0.1)
    )
    assert {path.name for path in tmp_path.iterdir()} == {"dmkd17_rivals.svg"}
