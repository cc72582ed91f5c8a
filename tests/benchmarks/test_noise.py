"""The benchmark of the noise runs, on small batches, and its table names every law and batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_benchmark_prints_its_table(load, monkeypatch, tmp_path, capsys):
    (benchmark,), out = load("noise"), tmp_path / "table.md"
    benchmark.__dict__.update(SECONDS=0.0)
    cores = os.sched_getaffinity(0)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(
        sys, "argv", ["noise.py", "--batches", "1", "30", "--rounds", "2", "--out", str(out)]
    )
    benchmark.main()
    assert os.sched_getaffinity(0) == cores
    text = out.read_text()
    assert text == capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    assert [(row[0], row[2]) for row in rows] == [
        (benchmark.named(*law), n) for law in benchmark.LAWS for n in ("1", "30")
    ]
    assert all(float(cell.replace(",", "")) > 0 for row in rows for cell in (row[1], *row[3:5]))


def test_both_draw_what_is_asked(load):
    (benchmark,) = load("noise")
    for power, scale in benchmark.LAWS:
        for of in (benchmark.ours, benchmark.theirs):
            drawn = of(power, scale, 40)()
            assert (
                sum(len(row) for row in drawn) == 40 if of is benchmark.ours else len(drawn) == 40
            )
            assert len(set(map(str, drawn))) > 1 or of is benchmark.ours


def test_help_says_how(load):
    done = subprocess.run(
        [sys.executable, "benchmarks/noise.py", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "--batches" in done.stdout


@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_a_call_is_timed_at_least_once(load, seconds):
    (benchmark,), calls = load("noise"), []
    assert benchmark.nanoseconds(lambda: calls.append(1), 10, seconds) > 0
    assert calls
