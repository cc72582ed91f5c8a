"""Individual budgets: replayed, never refilled, never public, and missed when they are gone."""

from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger import Place
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.individual_budgets import (
    ENROL,
    FULL,
    HOLD,
    SETTLE,
    IndividualBudgets,
    Row,
    encode_integers,
    payment_row,
)
from labelwall.teacher.ledger.ledger import Ledger, Reservation
from labelwall.teacher.mechanisms.ind_knn import ANSWER, IndKnn
from labelwall.wall.errors import LedgerMismatch
from tests.ledgers import identities, use_extractor
from tests.postgres import rows

MECHANISM = IndKnn(sigma_count=10.0, rho=0.03)
IDS = np.array([70, 10, 50], dtype=np.int64)


def plan(slots: int = 1) -> Plan:
    return Plan(1.0, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(1, 1)),) * slots)


def payments(*amounts: int) -> np.ndarray:
    """Units of three records."""
    return np.array([*amounts, 0, 0, 0][: max(3, len(amounts))], dtype=np.int64)


@pytest.fixture
def ledger(place: Place) -> Ledger:
    return Ledger.create(place, dataset="d", plan=plan(), unsafe=False)


def reserve(ledger: Ledger, name: str, most: np.ndarray, slot: int = 0) -> Reservation:
    everybody = np.arange(len(ledger.individual_budgets.ids))
    return ledger.charge_prepaid(slot, ANSWER, [name], everybody, lambda granted, left: most)


def batch(ledger: Ledger, name: str, most: np.ndarray, paid: np.ndarray, slot: int = 0) -> None:
    ledger.record_prepaid(reserve(ledger, name, most, slot), {name: [31, 2]}, paid)


def spent(ledger: Ledger, slot: int = 0) -> list[int]:
    budgets = ledger.individual_budgets
    return (FULL - budgets.remaining(slot, np.arange(len(budgets.ids)))).tolist()


def test_reopened_budgets_are_those_that_were_paid(
    ledger: Ledger, place: Place, tmp_path: Path
) -> None:
    assert ledger.enrol(IDS).tolist() == [2, 0, 1]  # ascending ids
    use_extractor(ledger)
    first, second = identities("a", "b")
    batch(ledger, first, payments(9, 9, 9), payments(5, 0, 9))
    batch(ledger, second, payments(FULL - 5, 1, 0), payments(7, 1, 0))
    assert ledger.enrol(np.array([50, 3, 10])).tolist() == [1, 3, 0]
    for opened in (ledger, Ledger(place)):
        assert spent(opened) == [12, 1, 9, 0]
        assert opened.state.spent == {(0, ANSWER): 1}  # charged once, in full
        assert opened.state.results == {first: {ANSWER: [31, 2]}, second: {ANSWER: [31, 2]}}
    ledger.export(tmp_path / "copy.sqlite")
    assert audit(tmp_path / "copy.sqlite").problems == []


def test_a_reservation_without_payments_stays_paid(ledger: Ledger, place: Place) -> None:
    ledger.enrol(IDS)
    reserve(ledger, "a", payments(9, 8, 7))
    again = Ledger(place)
    assert spent(again) == [9, 8, 7]
    batch(again, "a", payments(100, 0, 0), payments(1, 0, 0))
    assert spent(Ledger(place)) == [10, 8, 7]


def test_payments_past_their_reservation_are_refused_with_the_answers(
    ledger: Ledger, place: Place
) -> None:
    ledger.enrol(IDS)
    charge = reserve(ledger, "a", payments(3, 3))
    with pytest.raises(LedgerMismatch):
        ledger.record_prepaid(charge, {"a": [1, 1]}, payments(3, 4))
    again = Ledger(place)
    assert again.state.results == {}
    assert spent(again) == [3, 3, 0]


def test_slots_do_not_share_budgets(place: Place) -> None:
    ledger = Ledger.create(place, dataset="d", plan=plan(2), unsafe=False)
    ledger.enrol(IDS)
    batch(ledger, "a", payments(FULL), payments(FULL), slot=0)
    batch(ledger, "b", payments(4), payments(4), slot=1)
    assert (spent(ledger, 0), spent(ledger, 1)) == ([FULL, 0, 0], [4, 0, 0])
    # Each is accounted.
    assert [release.parameters["rho"] for release in plan(2).releases()] == [0.03, 0.03]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM private WHERE kind = 'settle'",
        "DELETE FROM private",
        "UPDATE private SET body = CAST('rubbish' AS {binary}) WHERE kind = 'settle'",
        "UPDATE private SET kind = 'gift' WHERE kind = 'settle'",
        "UPDATE private SET batch = 7 WHERE kind = 'settle'",
    ],
)
def test_damaged_budgets_fail_closed(ledger: Ledger, place: Place, statement: str) -> None:
    ledger.enrol(IDS)
    batch(ledger, "a", payments(3), payments(3))
    rows(place, statement.format(binary="blob" if isinstance(place, Path) else "bytea"))
    with pytest.raises(LedgerMismatch):  # noqa: PT012 - as it is opened, or as it is asked
        (opened := Ledger(place)).enrol(IDS)
        reserve(opened, "b", payments(3))


@pytest.mark.parametrize(
    "row",
    [
        (ENROL, -1, 0, encode_integers(IDS[:1])),  # enrolled twice
        (HOLD, 0, 0, b"short"),
        payment_row(HOLD, 0, 0, b"s" * 16, payments(0, 0, 0, 1)),  # of nobody
        (HOLD, 0, 0, b"s" * 16 + encode_integers(np.array([1, -1, 1, 1]))),  # unordered
        (HOLD, 0, 0, b"s" * 16 + encode_integers(np.array([0, -1]))),  # a refund
        payment_row(HOLD, 0, 0, b"t" * 16, payments(1)),  # a token that is open
        payment_row(SETTLE, 0, 0, b"u" * 16, payments(1)),  # one that is not
        payment_row(SETTLE, 1, 0, b"t" * 16, payments(1)),  # of another slot
        payment_row(SETTLE, 0, 2, b"t" * 16, payments(1)),  # a batch is missing
        payment_row(SETTLE, 0, 0, b"t" * 16, payments(0, 4)),  # more than was reserved
        payment_row(SETTLE, 0, 0, b"", payments(1)),
    ],
)
def test_rows_that_make_no_sense_are_refused(row: Row) -> None:
    budgets = IndividualBudgets()
    budgets.apply(1, (ENROL, -1, 0, encode_integers(IDS)))
    budgets.apply(2, payment_row(HOLD, 0, 0, b"t" * 16, payments(1, 3)))
    with pytest.raises(LedgerMismatch):
        budgets.apply(3, row)


def test_who_is_not_enrolled_has_no_serial_and_nothing_left() -> None:
    budgets = IndividualBudgets()
    budgets.apply(1, (ENROL, -1, 0, encode_integers(IDS)))
    with pytest.raises(LedgerMismatch):
        budgets.serials(np.array([11]))
    with pytest.raises(LedgerMismatch):
        budgets.remaining(0, np.arange(4))


def test_what_nobody_has_can_not_be_reserved(ledger: Ledger, place: Place) -> None:
    ledger.enrol(IDS)
    with pytest.raises(LedgerMismatch):
        reserve(ledger, "a", payments(FULL + 1))
    assert Ledger(place).state.spent == {}
    ledger.catch_up()
    batch(ledger, "a", payments(3), payments(3))  # and the ledger still works


def test_a_prepaid_release_has_no_other_way_in(ledger: Ledger) -> None:
    with pytest.raises(LedgerMismatch, match="reservation"):
        ledger.charge(0, ANSWER, ["a"])


def test_nothing_private_is_exported_and_an_export_can_not_take_the_ledgers_place(
    ledger: Ledger, tmp_path: Path
) -> None:
    ledger.enrol(IDS)
    batch(ledger, "a", payments(3), payments(3))
    ledger.export(tmp_path / "copy.sqlite")
    tables = rows(tmp_path / "copy.sqlite", "SELECT name FROM sqlite_master WHERE type = 'table'")
    assert set(tables) == {("entries",), ("extractors",), ("head",)}
    restored = Ledger(tmp_path / "copy.sqlite")
    restored.enrol(IDS)
    with pytest.raises(LedgerMismatch, match="budgets"):
        reserve(restored, "b", payments(3))
