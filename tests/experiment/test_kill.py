"""A run that gets SIGKILL at any commit boundary is finished by the same command, and pays for no
answer twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.kill_runner import kills


@pytest.mark.slow
def test_kill_at_every_commit(tmp_path: Path) -> None:
    deaths = kills("run_kill_sweep", tmp_path / "runs")
    assert deaths[-1]["status"] == 0  # the sweep went on until a run was not killed any more
    assert len(deaths) > 20
    for kill in deaths:
        assert kill["resumed"] == 0, kill
        assert kill["kept"], kill  # what was answered before the kill is the answer after it
        assert kill["asked"] == 24, kill
        # Nothing answered is paid again; at most the batch in flight is
        assert kill["again"] <= 5, kill
        assert kill["exported"], kill
        assert kill["audited"] == 0, kill
    assert any(kill["again"] for kill in deaths)
    assert deaths[-1]["again"] == 0
