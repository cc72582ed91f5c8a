"""A SIGKILL before a statement under an anchor: only one copy continues, draws stay paid."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.kill_runner import kills


@pytest.mark.slow
@pytest.mark.parametrize("anchor", ["file", "server"])
def test_kill_before_statements_under_an_anchor(
    tmp_path: Path, socket: str, anchor: str, request: pytest.FixtureRequest
) -> None:
    """Every fifth statement for files, fewer on a server; the two orders take turns."""
    anchor_socket = str(request.getfixturevalue("postgres").home) if anchor == "server" else ""
    stride = 29 if socket or anchor_socket else 5
    root = tmp_path / f"forks_{bool(socket):d}_{anchor}"
    found = kills("fork_sweep", root, stride, socket, anchor_socket)
    assert len(found) > (12 if stride > 5 else 60)
    for kill in found:
        first, second, again = kill["went_on"]
        # One of them continues, and the killed process does not decide which.
        assert first != second, kill
        assert again == first, kill
        if not kill["copy_first"]:
            assert first, kill
        if "drawn" in kill["noted"]:
            assert second if kill["copy_first"] else first, kill
    assert found[-1]["noted"] == ["drawn", "sent"]
    if stride == 5:  # the window is met: committed, not yet anchored, and the copy goes on
        assert any(kill["ahead"] and kill["copy_first"] and kill["went_on"][0] for kill in found)
