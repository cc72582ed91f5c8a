"""Ledgers under an anchor, their copies, and what tests ask of them."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

from labelwall.teacher.ledger.database import Place
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.wall.errors import LedgerMismatch
from tests.postgres import copied, rows
from tests.teacher.ledger.test_ledger import plan


class Killed(BaseException):
    """Ends a process's work where a SIGKILL would."""


def create(place: Place, anchor: Place | None = None) -> Ledger:
    return Ledger.create(place, dataset="d", plan=plan(asked=20), unsafe=False, anchor=anchor)


def in_use(place: Place, anchor: Place | None) -> Place:
    """A ledger with one answer."""
    ledger = create(place, anchor)
    ledger.record(ledger.charge(0, "screen", ["q"]), {"q": 1})
    return place


def fork(place: Place) -> Place:
    return copied(place, f"f{uuid.uuid4().hex}")


def stored(place: Place) -> list[tuple]:
    return rows(place, "SELECT * FROM entries ORDER BY seq")


def goes_on(ledger: Ledger, query: str) -> None:
    """Charge and record. Raises LedgerMismatch for a ledger that may not go on."""
    ledger.record(ledger.charge(0, "screen", [query]), {query: 1})


def is_refused(place: Place, anchor: Place, ledger: Ledger | None = None) -> None:
    """Opened, or open, it charges nothing and gives nothing out."""
    before = stored(place)
    with pytest.raises(LedgerMismatch, match="anchor"):
        Ledger(place, anchor)
    for work in (
        lambda opened: opened.charge(0, "screen", ["x"]),
        lambda opened: opened.enrol(np.zeros(1, dtype=np.int64)),
        lambda opened: opened.entries_after(0, 9),
        lambda opened: opened.in_custody(lambda _: None),
    ):
        if ledger is not None:
            with pytest.raises(LedgerMismatch, match="anchor"):
                work(ledger)
    assert stored(place) == before
