"""How private rows are told apart: budgets and removals by numbers need the same rows there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from labelwall.teacher.records import record_updates
from labelwall.teacher.records.private_records import NUMBERS, Records, open_records
from labelwall.teacher.records.row_names import NAMES, require_names, require_places
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.sources import describe
from labelwall.wall.errors import LedgerMismatch

OTHERS = "these are other rows than before"


@pytest.fixture
def ledger() -> Iterator[sa.Connection]:
    with sa.create_engine("sqlite://").begin() as connection:
        yield connection


def opened(connection: sa.Connection, records: Records, budgets: bool = False) -> None:
    """What a process does that opens these records."""
    require_names(connection, records.names, budgets)
    require_places(connection, records, budgets)


def rows(count: int, names: str = NUMBERS) -> Records:
    """Rows whose marks tell them; their inputs are as public rows say, so they tell nothing."""
    inputs, labels = np.zeros((count, 3), dtype=np.float32), np.zeros(count, dtype=np.int64)
    ids, marks = np.arange(count, dtype=np.int64), np.arange(count, dtype=np.int64) ** 2
    return Records(inputs, labels, ids, names=names, marks=marks if names == NUMBERS else None)


def moved(records: Records) -> Records:
    """The same rows in another order, so under other numbers."""
    marks = None if records.marks is None else records.marks[::-1]
    return replace(records, inputs=records.inputs[::-1], marks=marks)


def test_rows_with_budgets_stay_in_their_places(ledger: sa.Connection) -> None:
    opened(ledger, rows(20))
    opened(ledger, rows(20), budgets=True)
    opened(ledger, rows(30), budgets=True)  # more may follow
    read_otherwise = replace(rows(30), inputs=np.ones((30, 4), np.float32))  # by other public rows
    opened(ledger, read_otherwise, budgets=True)
    without_one = rows(30).take(np.delete(np.arange(30), 4))
    for other in (moved(rows(30)), without_one, rows(29)):
        with pytest.raises(LedgerMismatch, match=OTHERS):
            opened(ledger, other, budgets=True)
    with pytest.raises(LedgerMismatch, match="by their numbers, and are by their ids now"):
        opened(ledger, rows(30, "ids"), budgets=True)
    assert len(ledger.execute(sa.select(NAMES)).all()) == 1


def test_rows_may_change_until_ids_come_into_use(ledger: sa.Connection) -> None:
    opened(ledger, rows(20))
    opened(ledger, rows(20, "ids"))
    opened(ledger, rows(0))
    opened(ledger, rows(20))
    opened(ledger, moved(rows(19)))
    record_updates.remove(ledger, np.array([3], dtype=np.int64))
    opened(ledger, moved(rows(19)))
    with pytest.raises(LedgerMismatch, match=OTHERS):  # row 3 would vote again
        opened(ledger, rows(19))
    with pytest.raises(LedgerMismatch, match="by their ids now"):
        opened(ledger, rows(19, "ids"))


def test_rows_with_ids_may_lie_anywhere(ledger: sa.Connection) -> None:
    named = rows(20, "ids")
    opened(ledger, named, budgets=True)
    opened(ledger, moved(named), budgets=True)
    opened(ledger, named.take(slice(7)), budgets=True)
    for names in (NUMBERS, "stems"):
        with pytest.raises(LedgerMismatch, match=f"by their {names} now"):
            opened(ledger, rows(20, names), budgets=True)


def test_numbered_rows_have_marks_of_their_own_cells(tmp_path: Path) -> None:
    """Public rows, by which cells are read, change no mark; the row's label and cells do."""
    lines = [f"{n / 4},{'ab'[n % 2]}" for n in range(40)]
    place = {split: tmp_path / f"{split}.csv" for split in ("private", "public", "test")}
    for path in place.values():
        path.write_text("\n".join(["size,label", *lines]))
    config = DataConfig("table", **{split: str(path) for split, path in place.items()})
    before = open_records(config, describe(config))
    place["public"].write_text("\n".join(["size,label", *lines, "900,a"]))
    lines[3] = "0.75,a"  # it was b
    lines[5] = "6.1,b"
    place["private"].write_text("\n".join(["size,label", *lines]))
    after = open_records(config, describe(config))
    assert (before.names, after.names) == (NUMBERS, NUMBERS)
    assert not np.array_equal(before.inputs, after.inputs)
    assert before.marks is not None
    assert after.marks is not None
    assert np.flatnonzero(before.marks != after.marks).tolist() == [3, 5]
    path = tmp_path / "rows.npz"
    x = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    every = []
    for label in ("a", "b"):
        y = np.array(["a", "b", label] * 3)
        both = {f"{split}_{what}": v for split in place for what, v in (("x", x), ("y", y))}
        np.savez(path, **both)
        arrays = DataConfig("arrays", path=str(path))
        found = open_records(arrays, describe(arrays)).marks
        assert found is not None
        assert len({*found.tolist()}) == 9
        every.append(found)
    assert np.flatnonzero(every[0] != every[1]).tolist() == [2, 5, 8]
