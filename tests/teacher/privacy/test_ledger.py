"""The ledger keeps its order, its caps and its chain, and never forgets a charge."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path

import pytest

from teacher.mechanisms.private_knn import PrivateKnn
from teacher.mechanisms.reverse_knn import ReverseKnn
from teacher.privacy.ledger import Ledger
from teacher.privacy.plan import Plan, Slot
from wall.errors import LedgerMismatch

MECHANISM = PrivateKnn(k=30, threshold=10, sigma_screen=8.0, sigma_vote=4.0, sampling_probability=0.5)


def plan(asked: int = 5, answered: int = 3) -> Plan:
    return Plan(1.0, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(asked, answered)),))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.sqlite", dataset="d", plan=plan(), unsafe=False)


def rows(path: Path) -> list[tuple]:
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT * FROM entries ORDER BY seq").fetchall()


def test_reopened_ledger_knows_charges_results_and_refusals(ledger: Ledger, tmp_path: Path) -> None:
    charge = ledger.charge(0, "screen", ["a", "b"])
    ledger.record(charge, {"a": 1, "b": 0})
    paid = ledger.charge(0, "screen", ["c", "d", "e", "f"])
    again = Ledger(tmp_path / "ledger.sqlite")
    assert paid.granted == ("c", "d", "e")
    assert again.state.results == {"a": {"screen": 1}, "b": {"screen": 0}}
    assert again.state.spent == {(0, "screen"): 5}
    assert again.state.refused == {"f"}
    assert again.state.plan == plan()


def test_charge_without_results_stays_spent(ledger: Ledger, tmp_path: Path) -> None:
    ledger.charge(0, "screen", ["a", "b", "c"])
    again = Ledger(tmp_path / "ledger.sqlite")
    assert again.state.left(0, "screen") == 2
    assert again.charge(0, "screen", ["a", "b", "c"]).granted == ("a", "b")


@pytest.mark.parametrize("results", [{"a": 1, "b": 1, "c": 1}, {}, {"a": 1.5}, {"a": True}, {"a": [1, 2.5]}, {"a": [[1]]}])
def test_results_that_were_not_paid_for_are_refused_and_nothing_changes(ledger: Ledger, tmp_path: Path, results: dict) -> None:
    charge = ledger.charge(0, "screen", ["a", "b"])
    before = rows(tmp_path / "ledger.sqlite")
    with pytest.raises(LedgerMismatch):
        ledger.record(charge, results)
    assert rows(tmp_path / "ledger.sqlite") == before
    ledger.record(charge, {"a": 1})  # and the ledger still works
    with pytest.raises(LedgerMismatch):
        ledger.record(charge, {"b": 1})  # a charge pays once


@pytest.mark.parametrize("wrong", [[], [1, True], [1.0], [[1]], "1", None])
def test_a_list_of_integers_may_be_released_where_the_curve_prices_the_whole_vector(tmp_path: Path, wrong: object) -> None:
    mechanism = ReverseKnn(cells=2, sigma=30.0)
    slot = Slot(mechanism.fields(), mechanism.releases(2, 2))
    vectors = Ledger.create(tmp_path / "ledger.sqlite", dataset="d", plan=Plan(1.0, 1e-5, (slot,)), unsafe=False)
    vectors.record(vectors.charge(0, "histogram", ["a"]), {"a": [3, -1]})
    assert Ledger(tmp_path / "ledger.sqlite").state.results == {"a": {"histogram": [3, -1]}}
    charge = vectors.charge(0, "histogram", ["b"])
    with pytest.raises(LedgerMismatch, match="released value"):
        vectors.record(charge, {"b": wrong})  # type: ignore[dict-item]


def test_the_votes_behind_an_argmax_are_not_priced_and_can_not_be_recorded(ledger: Ledger) -> None:
    for release in ("screen", "aggregate"):
        with pytest.raises(LedgerMismatch, match="released value"):
            ledger.record(ledger.charge(0, release, ["a"]), {"a": [3, -1]})


def test_second_result_for_a_query_is_refused(ledger: Ledger) -> None:
    ledger.record(ledger.charge(0, "screen", ["a"]), {"a": 1})
    with pytest.raises(LedgerMismatch, match="second release"):
        ledger.record(ledger.charge(0, "screen", ["a"]), {"a": 0})


def test_unknown_slot_and_release_fail_closed(ledger: Ledger, tmp_path: Path) -> None:
    before = rows(tmp_path / "ledger.sqlite")
    for slot, release in ((1, "screen"), (-1, "screen"), (0, "argmax")):
        with pytest.raises(LedgerMismatch):
            ledger.charge(slot, release, ["a"])
    assert rows(tmp_path / "ledger.sqlite") == before


@pytest.mark.parametrize(
    ("statement", "arguments"),
    [
        ("UPDATE entries SET body = ? WHERE seq = 1", ('{"count":1,"release":"screen","slot":0}',)),
        ("DELETE FROM entries WHERE seq = 1", ()),
        ("UPDATE entries SET kind = 'gift' WHERE seq = 2", ()),
        ("UPDATE entries SET hash = prev WHERE seq = 1", ()),
    ],
)
def test_tampered_file_is_refused(ledger: Ledger, tmp_path: Path, statement: str, arguments: tuple) -> None:
    ledger.record(ledger.charge(0, "screen", ["a", "b"]), {"a": 1})
    with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
        connection.execute(statement, arguments)
    with pytest.raises(LedgerMismatch):
        Ledger(tmp_path / "ledger.sqlite")


def test_two_writers_never_pass_a_cap_together(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, dataset="d", plan=plan(asked=40), unsafe=False)
    granted: list[str] = []

    def ask(name: str) -> None:
        own = Ledger(path)
        for number in range(15):
            granted.extend(own.charge(0, "screen", [f"{name}{number}"]).granted)

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == len(set(granted)) == 40
    assert Ledger(path).state.left(0, "screen") == 0


def test_anchor_refuses_a_restored_and_a_forked_copy(tmp_path: Path) -> None:
    path, anchor = tmp_path / "ledger.sqlite", tmp_path / "anchor.json"
    ledger = Ledger.create(path, dataset="d", plan=plan(), unsafe=False, anchor=anchor)
    old = path.read_bytes()
    ledger.charge(0, "screen", ["a"])
    newest = path.read_bytes()
    path.write_bytes(old)
    with pytest.raises(LedgerMismatch, match="anchor"):
        Ledger(path, anchor)
    Ledger(path).charge(0, "screen", ["b", "c"])  # a fork of the same length, written without the anchor
    with pytest.raises(LedgerMismatch, match="anchor"):
        Ledger(path, anchor)
    path.write_bytes(newest)
    assert Ledger(path, anchor).state.spent == {(0, "screen"): 1}


def test_export_holds_the_entries_and_is_a_function_of_them(ledger: Ledger, tmp_path: Path) -> None:
    ledger.record(ledger.charge(0, "screen", ["a"]), {"a": 1})
    ledger.export(tmp_path / "one.sqlite")
    ledger.export(tmp_path / "two.sqlite")
    assert rows(tmp_path / "one.sqlite") == rows(tmp_path / "ledger.sqlite")
    assert (tmp_path / "one.sqlite").read_bytes() == (tmp_path / "two.sqlite").read_bytes()


def test_every_commit_is_on_disk_with_full_durability(ledger: Ledger) -> None:
    with ledger._engine.begin() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA secure_delete").scalar() == 1


def test_a_plan_survives_its_json_form() -> None:
    assert Plan.from_json(json.loads(json.dumps(plan().to_json()))) == plan()
