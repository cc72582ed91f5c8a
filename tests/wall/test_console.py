"""What a person sees while a run works."""

import json
import time

import pytest

from labelwall.wall.console import Console


@pytest.fixture
def console(monkeypatch) -> Console:
    shown = Console()
    monkeypatch.setattr(shown, "interactive", True)
    return shown


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


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
            (what, done / total, 1)
        ]
    console.progress("asking", 40, 40)
    assert console._bar is None
    console.progress("training", 1, 2)
    assert console._bar is not None
    assert [task.description for task in console._bar.tasks] == ["training"]
    console.progress("training", 2, 2)
    assert console._bar is None


def test_lines_without_a_terminal_come_now_and_then(clock, capsys) -> None:
    console = Console()
    for done in range(101):
        console.progress("reading", done, 100)
        clock[0] += 1.0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading: 3 of 100, about 2 min left"
    assert len(lines) == 4  # after 3, 33, 63 and 93 seconds
    for done in range(3):
        console.progress("brief", done, 2)
        clock[0] += 1.0
    assert capsys.readouterr().err == ""


def test_a_part_inside_another_counts_once(clock) -> None:
    console = Console(quiet=True)
    for seconds in (2.0, 3.0):
        with console.timed("asking"):
            clock[0] += 1.0
            with console.timed("embedding"):
                clock[0] += seconds
    assert console.seconds == {"asking": 2.0, "embedding": 5.0}


PARTS = {"rehearsal": 40.0, "reading": 10.0, "round 1: training": 20.0, "round 2: training": 30.0}


def test_a_run_is_one_bar_over_all_its_parts(console: Console, clock) -> None:
    seen = []

    def look(task: str, done: int, total: int) -> None:
        console.progress(task, done, total)
        assert console._bar is not None
        (bar,) = console._bar.tasks
        seen.append((bar.description, round(bar.completed, 3), bar.total, bar.fields["left"]))

    with console.whole(PARTS):
        with console.timed("rehearsal"):
            look("rehearsing", 0, 2)
            clock[0] += 20.0
            look("rehearsing", 1, 2)
            clock[0] += 60.0  # longer than was expected
            look("rehearsing", 2, 2)
        for part in ("round 1: training", "round 2: training"):  # the reading was done before
            with console.timed(part):
                look("steps", 0, 10)
                clock[0] += 40.0
                look("steps", 9, 10)
    assert seen == [
        ("rehearsal", 0.0, 1, "about 2 min left"),
        ("rehearsal", 0.2, 1, "about 80 s left"),
        ("rehearsal", 0.571, 1, "about 60 s left"),
        ("round 1: training", 0.643, 1, "about 50 s left"),
        ("round 1: training", 0.791, 1, "about 34 s left"),
        ("round 2: training", 0.791, 1, "about 40 s left"),  # as long as the first one took
        ("round 2: training", 0.975, 1, "about 4 s left"),
    ]
    assert console._bar is None


def test_a_part_within_another_is_done_when_it_ended(clock) -> None:
    console, seen = Console(json=True), []
    with console.whole({"asking": 2.0, "embedding": 60.0, "training": 38.0}):
        with console.timed("asking"):
            seen.append(console._whole.reached(clock[0], 0.0))
            with console.timed("embedding"):
                clock[0] += 30.0
                seen.append(console._whole.reached(clock[0], 0.0))
                clock[0] += 30.0
            clock[0] += 1.0
            seen.append(console._whole.reached(clock[0], 0.0))
        with console.timed("training"):
            seen.append(console._whole.reached(clock[0], 0.0))
    assert seen == [(0.0, 100.0), (0.32, 68.0), (0.61, 39.0), (0.62, 38.0)]


def test_how_long_private_rows_take_tells_nothing_of_other_parts(clock) -> None:
    expected = {f"round {n}: {part}": 10.0 for n in (1, 2) for part in ("embedding", "asking")}
    left = []
    for took in (1.0, 500.0):
        console = Console(json=True)
        with console.whole(expected):
            for part in ("round 1: embedding", "round 1: asking"):
                with console.timed(part):
                    clock[0] += took
            with console.timed("round 2: embedding"):
                left.append(console._whole.reached(clock[0], 0.0))
    assert left[0] == left[1] == (0.5, 20.0)


def test_a_run_without_a_terminal_is_a_line_each_half_minute(clock, capsys) -> None:
    console = Console()
    with console.whole(PARTS), console.timed("rehearsal"):
        for task in range(40):  # of two seconds each
            console.progress(f"task {task}", 0, 1)
            clock[0] += 2.0
    assert capsys.readouterr().err.splitlines() == [
        "rehearsal, 4% of the run, about 2 min left",
        "rehearsal, 34% of the run, about 66 s left",
        "rehearsal, 52% of the run, about 60 s left",
    ]


def test_json_tells_of_the_whole_run_and_quiet_of_nothing(clock, capsys) -> None:
    for console in (Console(json=True), Console(quiet=True)):
        with console.whole(PARTS), console.timed("rehearsal"):
            clock[0] += 10.0
            console.progress("rehearsing", 1, 4)
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line) == {
        "task": "rehearsing",
        "done": 1,
        "total": 4,
        "seconds_left": 0,
        "whole": 0.1,
        "left_s": 90,
    }
