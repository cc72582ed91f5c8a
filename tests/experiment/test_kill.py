"""A run that gets SIGKILL at any commit boundary is finished by the same command, and pays for no
answer twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import PROGRAMS, environment

SWEEP = PROGRAMS / "run_kill_sweep.py"


@pytest.mark.slow
def test_kill_at_every_commit(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SWEEP, tmp_path], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kills = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("KILL ")]
    assert kills[-1]["status"] == 0  # the sweep went on until a run was not killed any more
    assert len(kills) > 20
    for kill in kills:
        assert kill["resumed"] == 0, kill
        assert kill["kept"], kill  # what was answered before the kill is the answer after it
        assert kill["asked"] == 24, kill
        # Nothing answered is paid again; at most the batch in flight is
        assert kill["again"] <= 5, kill
        assert kill["exported"], kill
        assert kill["audited"] == 0, kill
    assert any(kill["again"] for kill in kills)
    assert kills[-1]["again"] == 0
