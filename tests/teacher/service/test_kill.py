"""A service killed under load answers the same afterwards, and released nothing uncharged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import PROGRAMS, environment

SWEEP = PROGRAMS / "service_kill_sweep.py"


@pytest.mark.parametrize(
    "socket", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
def test_kill_under_load(tmp_path: Path, socket: str) -> None:
    """All of this holds for any noise and any times of the kills; no test fails by chance."""
    folder = tmp_path / "service" / "kills"
    folder.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, SWEEP, folder, "3", socket],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failed"] == 0, done.stderr  # every client got all its answers in the end
    assert found["told"] > 0
    assert found["wrong"] == 0
    assert found["paid"]
    assert found["problems"] == []
    assert found["lost"] <= 5 * 8  # a kill loses the charge of one stage of one batch of 8 at most
