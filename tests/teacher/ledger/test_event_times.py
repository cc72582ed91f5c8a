"""Event times: private, written in the event's transaction, and in nothing that is sent."""

import json
import sqlite3
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from labelwall.teacher.ledger import Place, tables
from labelwall.teacher.ledger.tables import ADDED, CHARGED, REMOVED, events, note_event
from labelwall.wall.messages import Queries
from tests.teacher.service import tiny
from tests.teacher.service.tiny import call, client, rows, served

DAY = 86400


def test_what_happened_when(tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by a day after each step.

    A row that is present, and a known query, are no events.
    """
    now = [1_900_000_000]
    monkeypatch.setattr(tables, "time", SimpleNamespace(time=lambda: now[0]))
    made = tiny.make(tmp_path, place=place)
    teacher, queue, ledger = made.service.teacher, made.service.queue, made.service.ledger
    with (
        served(made) as url,
        client(url, made.tokens["ann"]) as ann,
        client(url, made.tokens["bob"]) as bob,
    ):
        ann.answer(Queries(rows(20, 1)))
        now[0] += DAY
        bob.answer(Queries(rows(5, 1)))  # known: nothing is charged
        bob.answer(Queries(rows(7, 2)))
        now[0] += DAY
        extra = tiny.Records(rows(3, 50), np.array([0, 1, 2]), np.array([500, 501, 502]))
        teacher.add(extra)
        teacher.add(extra)
        now[0] += DAY
        teacher.remove(np.array([3, 500]))
        charged = ledger.in_custody(lambda connection: events(connection, CHARGED))
        changes = ledger.in_custody(lambda opened: events(opened, ADDED, REMOVED))
        told = [
            call(url, made.tokens[name], path=path).json()
            for name in ("ann", "carol")
            for path in ("budget", "receipts")
        ]
        ann.export(tmp_path / "copy.sqlite")
    by_day: Counter[tuple[str, int]] = Counter()
    for moment in charged:
        by_day[moment.caller, (moment.time - 1_900_000_000) // DAY] += moment.size
    assert by_day == {("ann", 0): 20, ("bob", 1): 7}
    assert [(row.time, row.kind, row.size) for row in changes] == [
        (1_900_000_000 + 2 * DAY, ADDED, 3),
        (1_900_000_000 + 3 * DAY, REMOVED, 2),
    ]
    with sqlite3.connect(tmp_path / "copy.sqlite") as copy:
        assert {
            name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        } == {"entries", "extractors", "head"}
        told += [json.loads(body) for (body,) in copy.execute("SELECT body FROM entries")]
    # No time is among them; caps, positions and counts are.
    assert max(numbers([told, made.lines])) < DAY
    assert queue.usage.charged == {"ann": 20, "bob": 7}


def numbers(value: object) -> list[float]:
    """All numbers in a JSON value, but for the budget's epsilon."""
    if isinstance(value, dict):
        value = [part for name, part in value.items() if name != "epsilon"]
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, int | float) else []


def test_a_change_that_fails_leaves_no_time(tmp_path: Path) -> None:
    """The time stands in the same transaction."""
    made = tiny.make(tmp_path)
    ledger = made.service.ledger
    with pytest.raises(ZeroDivisionError):
        ledger.in_custody(lambda connection: note_event(connection, REMOVED, 2) or 1 / 0)
    assert ledger.in_custody(lambda connection: events(connection, REMOVED)) == []
    made.custodian.close()
