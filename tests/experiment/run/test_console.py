"""What a person sees while a run works."""

from __future__ import annotations

import time

import pytest

from labelwall.experiment.run.console import Console


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    made = Console()
    monkeypatch.setattr(made, "interactive", True)
    return made


def test_one_bar_at_a_time(console: Console) -> None:
    """A request that waits and then runs is one bar, which goes when all is done."""
    for what, done, total in (
        ("asking (queued)", 0, 40),
        ("asking (running)", 0, 40),
        ("asking (running)", 16, 40),
    ):
        console.progress(what, done, total)
        assert console._bars is not None
        assert [(task.description, task.completed, task.total) for task in console._bars.tasks] == [
            (what, done, total)
        ]
    console.progress("asking", 40, 40)
    assert console._bars is None
    console.progress("training", 1, 2)
    assert console._bars is not None
    assert [task.description for task in console._bars.tasks] == ["training"]
    console.progress("training", 2, 2)
    assert console._bars is None


def test_without_a_terminal_there_is_no_bar() -> None:
    quiet = Console(quiet=True)
    quiet.progress("training", 1, 2)
    assert quiet._bars is None


def test_a_step_that_reports_nothing_still_shows_that_it_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labelwall.experiment.run.console.QUIET_FOR", 0.5)
    console = Console()
    console.progress("certifying", 0, 3)
    time.sleep(2.5)
    console.progress("certifying", 3, 3)
    assert capsys.readouterr().err.splitlines() == ["certifying: 0 of 3"]
    time.sleep(1.5)
    assert not console._ticking
