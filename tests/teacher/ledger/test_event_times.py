"""Event times: private, written in the event's transaction, and in nothing that is sent."""

from collections import Counter
from itertools import product
from types import SimpleNamespace

import numpy as np

from labelwall.teacher.ledger import ledger_tables
from labelwall.teacher.ledger.ledger_tables import ADDED, CHARGED, REMOVED, charged_by_day, events
from labelwall.wall.messages import Queries
from tests.ledgers import parsed
from tests.teacher.service import tiny
from tests.teacher.service.tiny import clients, rows

DAY, TOLD = 86400, ("budget", "receipts")


def test_what_happened_when(tmp_path, place, monkeypatch):
    """A row that is present, and a known query, are no events."""
    now = [1_900_000_000]
    monkeypatch.setattr(ledger_tables, "time", SimpleNamespace(time=lambda: now[0]))
    made = tiny.make(tmp_path, place=place)
    teacher, queue, ledger = made.service.teacher, made.service.queue, made.service.ledger
    with clients(made, "ann", "bob") as (ann, bob):
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
        began = 1_900_000_000 // DAY
        by_date = [
            ledger.in_custody(lambda opened, at=at: charged_by_day(opened, (began + at) * DAY))
            for at in (0, 1, 2)
        ]
        told = [made.call(*each).json() for each in product(("ann", "carol"), TOLD)]
        ann.export(tmp_path / "copy.sqlite")
    by_day: Counter[tuple[str, int]] = Counter()
    for moment in charged:
        by_day[moment.caller, (moment.time - 1_900_000_000) // DAY] += moment.size
    assert by_day == {("ann", 0): 20, ("bob", 1): 7}
    expected = [(began, "ann", 20), (began + 1, "bob", 7)]
    assert [sorted(rows) for rows in by_date] == [expected, expected[1:], []]
    assert [(row.time, row.kind, row.size) for row in changes] == [
        (1_900_000_000 + 2 * DAY, ADDED, 3),
        (1_900_000_000 + 3 * DAY, REMOVED, 2),
    ]
    told += [content for _, content in parsed(tmp_path / "copy.sqlite")]
    # No time is among them; caps, positions and counts are.
    assert max(numbers([told, made.lines])) < DAY
    assert queue.usage.charged == {"ann": 20, "bob": 7}


def numbers(value):
    """All numbers in a JSON value, but for the budget's epsilon."""
    if isinstance(value, dict):
        value = [part for name, part in value.items() if name != "epsilon"]
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, int | float) else []
