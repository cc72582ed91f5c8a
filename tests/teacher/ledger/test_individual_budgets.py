"""Individual budgets: replayed, never refilled, never public, and missed when they are gone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.accounting.plan import Plan, Release, Slot
from labelwall.teacher.ledger import Place
from labelwall.teacher.ledger import ledger as ledger_file
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
from labelwall.wall.errors import InvalidInput, LedgerMismatch
from labelwall.wall.messages import Value
from tests.ledgers import identities, use_extractor
from tests.postgres import rows

MECHANISM = IndKnn(sigma_count=10.0, rho=0.03)
IDS = np.array([70, 10, 50], dtype=np.int64)
VALUE: Value = [31, 2]


def plan(slots: int = 1) -> Plan:
    return Plan(1.0, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(1, 1)),) * slots)


def payments(*amounts: int) -> np.ndarray:
    """Units of three records."""
    return np.array([*amounts, 0, 0, 0][: max(3, len(amounts))], dtype=np.int64)


def paying(kind: str, slot: int, batch: int, token: bytes, *amounts: int) -> Row:
    units = payments(*amounts)
    return payment_row(kind, slot, batch, token, np.arange(len(units)), units)


@pytest.fixture
def ledger(place: Place) -> Ledger:
    """IDS are enrolled."""
    made = Ledger.create(place, dataset="d", plan=plan(), unsafe=False)
    made.enrol(IDS)
    return made


def reserve(ledger: Ledger, name: str, most: np.ndarray, slot: int = 0) -> Reservation:
    everybody = np.arange(len(ledger.individual_budgets.ids))
    return ledger.charge_prepaid(slot, ANSWER, [name], everybody, lambda granted, left: most)


def batch(ledger: Ledger, name: str, most: np.ndarray, paid: np.ndarray, slot: int = 0) -> None:
    ledger.record_prepaid(reserve(ledger, name, most, slot), {name: VALUE}, paid)


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
    reserve(ledger, "a", payments(9, 8, 7))
    again = Ledger(place)
    assert spent(again) == [9, 8, 7]
    batch(again, "a", payments(100, 0, 0), payments(1, 0, 0))
    assert spent(Ledger(place)) == [10, 8, 7]


def test_payments_past_their_reservation_are_refused_with_the_answers(
    ledger: Ledger, place: Place
) -> None:
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
        paying(HOLD, 0, 0, b"s" * 16, 0, 0, 0, 1),  # of nobody
        (HOLD, 0, 0, b"s" * 16 + encode_integers(np.array([1, -1, 1, 1]))),  # unordered
        (HOLD, 0, 0, b"s" * 16 + encode_integers(np.array([0, -1]))),  # a refund
        paying(HOLD, 0, 0, b"t" * 16, 1),  # a token that is open
        paying(SETTLE, 0, 0, b"u" * 16, 1),  # one that is not
        paying(SETTLE, 1, 0, b"t" * 16, 1),  # of another slot
        paying(SETTLE, 0, 2, b"t" * 16, 1),  # a batch is missing
        paying(SETTLE, 0, 0, b"t" * 16, 0, 4),  # more than was reserved
        paying(SETTLE, 0, 0, b"", 1),
    ],
)
def test_rows_that_make_no_sense_are_refused(row: Row) -> None:
    budgets = IndividualBudgets()
    budgets.apply(1, (ENROL, -1, 0, encode_integers(IDS)))
    budgets.apply(2, paying(HOLD, 0, 0, b"t" * 16, 1, 3))
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
    batch(ledger, "a", payments(3), payments(3))
    ledger.export(tmp_path / "copy.sqlite")
    tables = rows(tmp_path / "copy.sqlite", "SELECT name FROM sqlite_master WHERE type = 'table'")
    assert set(tables) == {("entries",), ("extractors",), ("head",)}
    restored = Ledger(tmp_path / "copy.sqlite")
    restored.enrol(IDS)
    with pytest.raises(LedgerMismatch, match="budgets"):
        reserve(restored, "b", payments(3))


# Several processes at once.


def test_each_pays_in_place_of_its_own(ledger: Ledger, place: Place) -> None:
    """With no other token, and not twice."""
    other = Ledger(place)
    first, second = reserve(ledger, "a", payments(9, 8)), reserve(other, "b", payments(0, 5, 6))
    assert second.remaining.tolist() == [FULL - 9, FULL - 8, FULL]  # what the other holds is spent
    with pytest.raises(LedgerMismatch):
        other.record_prepaid(replace(first, token=bytes(16)), {"a": VALUE}, payments(1))
    assert Ledger(place).state.results == {}
    ledger.record_prepaid(first, {"a": VALUE}, payments(2, 3))
    with pytest.raises(LedgerMismatch):
        ledger.record_prepaid(first, {"a": VALUE}, payments(1))
    other.record_prepaid(second, {"b": VALUE}, payments(0, 1, 6))
    for found in (other, Ledger(place)):
        assert spent(found) == [2, 4, 6]
        assert found.individual_budgets.reserved == {0: {}}


def test_what_was_read_before_another_reserved_does_not_count(ledger: Ledger, place: Place) -> None:
    """Both take what there is; the second finds nothing, and neither fails."""

    other = Ledger(place)  # has read all budgets, full
    for one, name, left in ((ledger, "a", FULL), (other, "b", 0)):
        held = one.charge_prepaid(0, ANSWER, [name], np.arange(3), lambda granted, left: left)
        assert held.remaining.tolist() == [left] * 3
    assert spent(Ledger(place)) == [FULL] * 3


def test_an_answer_stays_the_first_one_and_the_second_draw_is_paid(
    ledger: Ledger, place: Place, tmp_path: Path
) -> None:
    a, b, c = identities(*"abc")
    use_extractor(ledger)
    other = Ledger(place)
    first = reserve(ledger, a, payments(9))
    second = other.charge_prepaid(
        0, ANSWER, [a, b], np.arange(3), lambda granted, remaining: payments(9)
    )
    third = reserve(Ledger(place), a, payments(0, 7))
    assert ledger.record_prepaid(first, {a: VALUE}, payments(2)) == (a,)
    assert other.record_prepaid(second, {a: [1, 1], b: [2, 2]}, payments(4)) == (b,)
    assert other.record_prepaid(third, {a: [3, 3]}, payments(0, 3)) == ()
    found = Ledger(place)
    assert found.state.results == {a: {ANSWER: VALUE}, b: {ANSWER: [2, 2]}}
    assert spent(found) == [6, 3, 0]
    batch(found, c, payments(1), payments(1))  # entries and budgets still match
    found.export(tmp_path / "copy.sqlite")
    assert audit(tmp_path / "copy.sqlite").problems == []


def test_what_another_has_answered_is_neither_charged_nor_reserved(
    ledger: Ledger, place: Place
) -> None:
    other = Ledger(place)
    batch(ledger, "a", payments(9), payments(2))
    assert reserve(other, "a", payments(9)).granted == ()
    held = other.charge_prepaid(
        0, ANSWER, ["b", "a", "c"], np.arange(3), lambda granted, left: payments(len(granted))
    )
    assert held.granted == ("b", "c")
    assert spent(Ledger(place)) == [4, 0, 0]


def test_a_snapshot_keeps_what_others_hold(
    ledger: Ledger, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process reserves and sleeps while another's batches are compacted away; then it pays,
    without having seen them."""
    monkeypatch.setattr(ledger_file, "SNAPSHOT_EVERY", 3)
    busy, lost = Ledger(place), reserve(Ledger(place), "lost", payments(0, 0, 50))
    sleeping = reserve(ledger, "late", payments(100, 100))
    for number in range(7):
        batch(busy, f"q{number}", payments(9, 9), payments(1, number))
        assert spent(Ledger(place)) == [100 + number + 1, 100 + number * (number + 1) // 2, 50]
    kinds = [kind for (kind,) in rows(place, "SELECT kind FROM private ORDER BY position")]
    assert kinds == ["enrol", "snapshot", "hold", "hold", "hold", "settle"]
    ledger.record_prepaid(sleeping, {"late": VALUE}, payments(5, 6))
    for found in (ledger, Ledger(place)):
        assert spent(found) == [12, 27, 50]
        assert list(found.individual_budgets.reserved[0]) == [lost.token]
    batch(busy, "last", payments(9), payments(9))
    assert spent(busy) == spent(Ledger(place)) == [21, 27, 50]


def test_processes_that_enrol_at_once_agree_on_every_place(ledger: Ledger, place: Place) -> None:
    """Each knew the table before the other wrote into it; 7 and 8 come in both."""
    other = Ledger(place)
    mine, theirs = np.array([7, 10, 8, 90]), np.array([8, 50, 7, 95, 70])
    serials = {"mine": ledger.enrol(mine).tolist(), "theirs": other.enrol(theirs).tolist()}
    found = Ledger(place).individual_budgets
    assert sorted(found.ids.tolist()) == [7, 8, 10, 50, 70, 90, 95]  # each once
    assert serials == {
        "mine": found.serials(mine).tolist(),
        "theirs": found.serials(theirs).tolist(),
    }
    assert ledger.enrol(theirs).tolist() == serials["theirs"]


def test_the_table_is_there_after_enrolment_whoever_the_records_are(place: Place) -> None:
    ledger = Ledger.create(place, dataset="d", plan=plan(), unsafe=False)
    assert ledger.enrol(np.zeros(0, np.int64)).tolist() == []
    assert rows(place, "SELECT count(*) FROM private") == [(1,)]
    nobody = np.zeros(0, np.int64)
    batch(ledger, "a", nobody, nobody)
    assert ledger.enrol(IDS).tolist() == [2, 0, 1]
    assert spent(ledger) == [0, 0, 0]


def test_a_prepaid_release_is_charged_at_most_once() -> None:
    with pytest.raises(InvalidInput, match="prepaid"):
        Release(ANSWER, "zcdp", {"rho": 0.1}, 2, prepaid=True)
