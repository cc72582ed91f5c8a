"""What a person sees while a run works."""

from __future__ import annotations

import threading
import time

import pytest

from labelwall.experiment.run.console import Console


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    shown = Console()
    monkeypatch.setattr(shown, "interactive", True)
    return shown


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


class Clock:
    """Time that passes by seconds, when a test says so. One thread sleeps by it."""

    def __init__(self) -> None:
        self._now, self._asleep, self._go_on = 0.0, threading.Event(), threading.Event()

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._asleep.set()
        assert self._go_on.wait(60)
        self._go_on.clear()

    def tick(self) -> None:
        """A second passes, and the thread that sleeps does what is due."""
        assert self._asleep.wait(60)
        self._asleep.clear()
        self._now += 1.0
        self._go_on.set()


def test_a_step_that_reports_nothing_still_shows_that_it_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After three seconds, and then every five; the thread ends with the task."""
    clock, console, others = Clock(), Console(), set(threading.enumerate())
    monkeypatch.setattr("labelwall.experiment.run.console.time", clock)
    console.progress("certifying", 0, 3)
    (ticking,) = set(threading.enumerate()) - others
    for _ in range(8):
        clock.tick()
    assert clock._asleep.wait(60)
    console.progress("certifying", 3, 3)
    clock.tick()
    ticking.join(60)
    assert not console._ticking
    assert capsys.readouterr().err.splitlines() == ["certifying: 0 of 3"] * 2


def test_lines_without_a_terminal_come_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console = Console()
    for done in range(101):
        console.progress("reading", done, 100)
        now[0] += 1.0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading: 3 of 100, about 2 min left"
    assert len(lines) == 20
    for done in range(3):
        console.progress("brief", done, 2)
        now[0] += 1.0
    assert capsys.readouterr().err == ""
