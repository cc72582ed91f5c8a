"""A record is removed from all analysts' teachers or from none, whenever the service dies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import PROGRAMS, environment

SWEEP = PROGRAMS / "removal_sweep.py"


@pytest.mark.parametrize(
    "socket", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
def test_a_removal_that_is_killed_between_two_analysts(tmp_path: Path, socket: str) -> None:
    folder = tmp_path / "service" / "removal"
    folder.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, SWEEP, folder, socket], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["status"] == 0, done.stderr
    # the transaction, two teachers, their caches and the third one's, the directory's mark
    assert found["steps"] >= 8
    # present before the transaction, gone after it, and again once done
    assert found["found"] == [0] + [1] * found["steps"]
