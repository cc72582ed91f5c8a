"""A service killed under load, or in the midst of a removal, answers rightly afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.programs import PROGRAMS, environment

PLACES = pytest.mark.parametrize(
    "socket", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)


def swept(program: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """What a program of kills says in its last line."""
    folder.mkdir(parents=True)
    command = [sys.executable, PROGRAMS / program, folder, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}


@PLACES
def test_kill_under_load(tmp_path: Path, socket: str) -> None:
    """All of this holds for any noise and any times of the kills; no test fails by chance."""
    kills = swept("service_kill_sweep.py", tmp_path / "service" / "kills", "3", socket)
    assert kills["failed"] == 0, kills["stderr"]  # every client got all its answers in the end
    assert kills["told"] > 0
    assert kills["wrong"] == 0
    assert kills["paid"]
    assert kills["problems"] == []
    assert kills["lost"] <= 5 * 8  # a kill loses the charge of one stage of one batch of 8 at most


@PLACES
def test_a_removal_that_is_killed_between_two_analysts(tmp_path: Path, socket: str) -> None:
    removal = swept("removal_sweep.py", tmp_path / "service" / "removal", socket)
    assert removal["status"] == 0, removal["stderr"]
    # the transaction, two teachers, their caches and the third one's, the directory's mark
    assert removal["steps"] >= 8
    # present before the transaction, gone after it, and again once done
    assert removal["found"] == [0] + [1] * removal["steps"]
