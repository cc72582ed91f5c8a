"""A SIGKILL before any statement of a release loses no charge and changes no answer that was recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SWEEP = Path(__file__).with_name("crash_sweep.py")


@pytest.mark.slow
def test_kill_before_every_statement(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SWEEP, tmp_path, "1"], capture_output=True, text=True, check=True, cwd=SWEEP.parents[2]
    )
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert kills[-1]["finished"]
    assert len(kills) > 200
    for kill in kills:
        assert kill["problems"] == kill["audit_after"] == [], kill
        assert kill["paid"], kill  # nothing was drawn that was not on record as paid
        assert kill["kept"], kill  # what was recorded before the kill is the answer after it
        assert kill["double"] <= 3, kill  # at most the batch in flight is paid again
    assert kills[-1]["sent"]
    assert any(kill["double"] for kill in kills)  # the sweep does hit the window between charge and record


@pytest.mark.slow
def test_kill_around_the_payments_of_individual_budgets(tmp_path: Path) -> None:
    sweep = SWEEP.with_name("individual_sweep.py")
    done = subprocess.run(
        [sys.executable, sweep, tmp_path, "11"], capture_output=True, text=True, check=True, cwd=SWEEP.parents[2]
    )
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert kills[-1]["finished"]
    assert len(kills) > 30
    for kill in kills:
        assert kill["problems"] == [], kill
        assert kill["reserved"], kill  # no noise was drawn before its most was on disk as paid
        assert kill["kept"], kill
        assert kill["in_range"], kill  # nobody is refilled, nobody overdraws
        assert kill["open"] <= 1, kill  # at most the batch in flight stays paid at its most
    assert kills[-1]["sent"]
    lost = [kill["paid"] for kill in kills if kill["open"]]
    assert any(kill["open"] and kill["answered"] for kill in kills)  # the window between reservation and payment is hit
    assert sum(lost) / len(lost) > kills[-1]["paid"]
