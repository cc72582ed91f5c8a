"""What a person sees while a run works."""

import time

import pytest

from labelwall.wall.console import Console


@pytest.fixture
def console(monkeypatch) -> Console:
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
        assert console._bar is not None
        assert [(task.description, task.completed, task.total) for task in console._bar.tasks] == [
            (what, done, total)
        ]
    console.progress("asking", 40, 40)
    assert console._bar is None
    console.progress("training", 1, 2)
    assert console._bar is not None
    assert [task.description for task in console._bar.tasks] == ["training"]
    console.progress("training", 2, 2)
    assert console._bar is None


def test_lines_without_a_terminal_come_now_and_then(monkeypatch, capsys) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console = Console()
    for done in range(101):
        console.progress("reading", done, 100)
        now[0] += 1.0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading: 3 of 100, about 2 min left"
    assert len(lines) == 4  # after 3, 33, 63 and 93 seconds
    for done in range(3):
        console.progress("brief", done, 2)
        now[0] += 1.0
    assert capsys.readouterr().err == ""


def test_a_part_inside_another_counts_once(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console = Console(quiet=True)
    for seconds in (2.0, 3.0):
        with console.timed("asking"):
            now[0] += 1.0
            with console.timed("embedding"):
                now[0] += seconds
    assert console.seconds == {"asking": 2.0, "embedding": 5.0}
