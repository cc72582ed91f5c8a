"""How private rows are told apart: budgets and removals by numbers need the same rows there."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa

from labelwall.teacher.records import record_updates
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.records.row_names import NAMES, require_same
from labelwall.wall.errors import LedgerMismatch

WITHOUT, OTHERS = "had no ids and have some now", "no longer the same rows"


@pytest.fixture
def ledger() -> Iterator[sa.Connection]:
    with sa.create_engine("sqlite://").begin() as connection:
        yield connection


def rows(count: int, numbered: bool = True) -> Records:
    inputs = np.random.default_rng(5).normal(size=(100, 3)).astype(np.float32)[:count]
    labels, ids = np.arange(count, dtype=np.int64) % 3, np.arange(count, dtype=np.int64)
    return Records(inputs, labels, ids, numbered=numbered)


def moved(records: Records) -> Records:
    """The same rows in another order, so under other numbers."""
    return replace(records, inputs=records.inputs[::-1], labels=records.labels[::-1])


def test_rows_with_budgets_stay_in_their_places(ledger: sa.Connection) -> None:
    require_same(ledger, rows(20), budgets=True)
    require_same(ledger, rows(30), budgets=True)  # more may follow
    require_same(ledger, rows(30).take(np.arange(30)), budgets=True)
    relabelled = replace(rows(30), labels=np.roll(rows(30).labels, 1))
    without_one = rows(30).take(np.delete(np.arange(30), 4))
    for other in (moved(rows(30)), relabelled, without_one, rows(29)):
        with pytest.raises(LedgerMismatch, match=OTHERS):
            require_same(ledger, other, budgets=True)
    with pytest.raises(LedgerMismatch, match=WITHOUT):
        require_same(ledger, rows(30, numbered=False), budgets=True)
    assert len(ledger.execute(sa.select(NAMES)).all()) == 1


def test_other_rows_may_change_until_ids_come_into_use(ledger: sa.Connection) -> None:
    require_same(ledger, rows(20), budgets=False)
    require_same(ledger, rows(20, numbered=False), budgets=False)
    require_same(ledger, moved(rows(20)), budgets=False)
    record_updates.remove(ledger, np.array([3], dtype=np.int64))
    require_same(ledger, moved(rows(20)), budgets=False)
    with pytest.raises(LedgerMismatch, match=OTHERS):  # row 3 would vote again
        require_same(ledger, rows(20), budgets=False)
    with pytest.raises(LedgerMismatch, match=WITHOUT):
        require_same(ledger, rows(20, numbered=False), budgets=False)


def test_rows_with_ids_may_lie_anywhere(ledger: sa.Connection) -> None:
    named = rows(20, numbered=False)
    require_same(ledger, named, budgets=True)
    require_same(ledger, moved(named), budgets=True)
    require_same(ledger, named.take(slice(7)), budgets=True)
    with pytest.raises(LedgerMismatch, match=WITHOUT):
        require_same(ledger, rows(20), budgets=True)
