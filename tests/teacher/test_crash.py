"""A SIGKILL before any statement of a release loses no charge and changes no recorded answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.kill_runner import kills


@pytest.mark.slow
def test_kill_before_every_statement(tmp_path: Path, socket: str) -> None:
    """On a server before some statements; test_lost_connections.py breaks every commit."""
    deaths = kills("crash_sweep", tmp_path / "crash", 97 if socket else 1, socket, "private_knn")
    assert len(deaths) > (5 if socket else 200)
    for kill in deaths:
        assert kill["problems"] == kill["audit_after"] == [], kill
        assert kill["paid"], kill  # nothing was drawn that was not on record as paid
        assert kill["kept"], kill  # what was recorded before the kill is the answer after it
        assert kill["double"] <= 3, kill  # at most the batch in flight is paid again
    assert deaths[-1]["sent"]
    # The sweep does hit the window between charge and record.
    assert socket or any(kill["double"] for kill in deaths)


@pytest.mark.slow
def test_kill_while_a_batch_is_answered(tmp_path: Path) -> None:
    deaths = kills("crash_sweep", tmp_path / "batch", 7, "", "radius")
    assert len(deaths) > 12
    for kill in deaths:
        assert kill["problems"] == kill["audit_after"] == [], kill
        assert kill["paid"], kill
        assert kill["kept"], kill
        assert kill["double"] <= 1, kill  # the batch in flight, as a whole
    assert deaths[-1]["sent"]
    assert any(kill["double"] for kill in deaths)


@pytest.mark.slow
def test_kill_around_the_payments_of_individual_budgets(tmp_path: Path, socket: str) -> None:
    deaths = kills("individual_sweep", tmp_path / "individual", 131 if socket else 11, socket, "")
    assert len(deaths) > (5 if socket else 30)
    for kill in deaths:
        assert kill["problems"] == [], kill
        assert kill["reserved"], kill  # no noise was drawn before its most was on disk as paid
        assert kill["kept"], kill
        assert kill["in_range"], kill  # nobody is refilled, nobody overdraws
        assert kill["open"] <= 1, kill  # at most the batch in flight stays paid at its most
    assert deaths[-1]["sent"]
    if socket:
        return  # too few kills to meet the window between reservation and payment for sure
    lost = [kill["paid"] for kill in deaths if kill["open"]]
    # The window between reservation and payment is hit.
    assert any(kill["open"] and kill["answered"] for kill in deaths)
    assert sum(lost) / len(lost) > deaths[-1]["paid"]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["after", "during"])
def test_kill_while_another_process_pays_from_the_same_budgets(
    tmp_path: Path, socket: str, when: str
) -> None:
    """It has reserved before, asks one of the same queries, and pays after the kill or during the
    first draw before it."""
    deaths = kills("individual_sweep", tmp_path / when, 701 if socket else 131, socket, when)
    assert len(deaths) > (4 if socket else 15)
    for kill in deaths:
        assert kill["beside"], kill  # whoever is killed, the other one is answered
        assert kill["problems"] == [], kill
        assert kill["reserved"], kill
        assert kill["kept"], kill
        assert kill["in_range"], kill
        assert kill["open"] <= 1, kill  # the batch in flight; the other process has settled its own
    assert deaths[-1]["sent"]
    assert deaths[-1]["open"] == 0
    assert socket or any(kill["open"] for kill in deaths)
