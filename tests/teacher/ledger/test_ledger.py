"""The ledger keeps its order, caps and chain and never forgets a charge, on both engines."""

import pytest

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger import ledger_tables
from labelwall.teacher.ledger.anchor import Anchor, StoredLedger
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.database import open_database
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.sums import ReverseKnn
from labelwall.wall.errors import LedgerMismatch
from tests.ledgers import created, identity, plan, use_extractor
from tests.postgres import rows


@pytest.fixture
def ledger(place):
    return created(place)


def entries(place):
    return rows(place, "SELECT * FROM entries ORDER BY seq")


def test_reopened_ledger_knows_charges_results_and_refusals(ledger, place):
    """A charge without results stays spent."""
    charge = ledger.charge(0, "screen", ["a", "b"])
    ledger.record(charge, {"a": 1, "b": 0})
    ledger.charge(0, "screen", ["c", "d"])
    again = Ledger(place)
    assert again.state.lost() == {"screen": 2}
    assert again.state.remaining(0, "screen") == 1
    again.record(again.charge(0, "screen", ["c", "d"]), {"c": 1})
    assert again.state.lost() == {"screen": 2}
    again = Ledger(place)
    assert again.state.results == {"a": {"screen": 1}, "b": {"screen": 0}, "c": {"screen": 1}}
    assert again.state.spent == {(0, "screen"): 5}
    assert again.state.refused == {"d"}
    assert again.state.plan == plan()


def test_results_and_the_next_charge_in_one_commit_are_the_entries_of_two(ledger, place, tmp_path):
    screened = {"a": 1, "b": 0, "c": 1}
    charge = ledger.charge(0, "screen", list(screened))
    passed = ledger.record(
        charge,
        screened,
        "aggregate",
        lambda: [key for key, found in ledger.state.results.items() if found["screen"]],
    )
    assert passed.granted == ("a", "c")
    other = created(tmp_path / "other.sqlite")
    other.record(other.charge(0, "screen", list(screened)), screened)
    assert other.charge(0, "aggregate", ["a", "c"]) == passed
    assert entries(place) == entries(tmp_path / "other.sqlite")


def test_where_the_results_are_refused_nothing_is_charged(ledger, place):
    charge = ledger.charge(0, "screen", ["a"])
    before = entries(place)
    with pytest.raises(LedgerMismatch):
        ledger.record(charge, {"a": 1, "b": 1}, "aggregate", lambda: ["a"])
    with pytest.raises(LedgerMismatch, match="release"):
        ledger.record(charge, {"a": 1}, "another", lambda: ["a"])
    assert entries(place) == before
    assert Ledger(place).state.results == {}


@pytest.mark.parametrize(
    "results",
    [
        {"a": 1, "b": 1, "c": 1},
        {},
        {"a": 1.5},
        {"a": True},
        {"a": [1, 2.5]},
        {"a": [[1]]},
        {"a": [3, -1]},  # the votes behind a bit have no price
    ],
)
@pytest.mark.parametrize("release", ["screen", "aggregate"])
def test_results_that_were_not_paid_for_are_refused_and_nothing_changes(tmp_path, results, release):
    place = tmp_path / "ledger.sqlite"
    ledger = created(place)
    charge = ledger.charge(0, release, ["a", "b"])
    before = entries(place)
    with pytest.raises(LedgerMismatch):
        ledger.record(charge, results)
    assert entries(place) == before
    ledger.record(charge, {"a": 1})  # and the ledger still works
    with pytest.raises(LedgerMismatch):
        ledger.record(charge, {"b": 1})  # a charge pays once


def test_a_list_of_integers_may_be_released_where_the_curve_prices_the_whole_vector(place):
    mechanism = ReverseKnn(centroids=2, sigma=30.0)
    slot = Slot(mechanism.fields(), mechanism.releases(2, 2))
    vectors = Ledger.create(place, dataset="d", plan=Plan(1.0, 1e-5, (slot,)), unsafe=False)
    vectors.record(vectors.charge(0, "histogram", ["a"]), {"a": [3, -1]})
    assert Ledger(place).state.results == {"a": {"histogram": [3, -1]}}
    charge = vectors.charge(0, "histogram", ["b"])
    for wrong in ([], [1, True], [1.0], [[1]], "1", None):
        with pytest.raises(LedgerMismatch, match="released value"):
            vectors.record(charge, {"b": wrong})


def test_unknown_slot_and_release_fail_closed(ledger, place):
    before = entries(place)
    for slot, release in ((1, "screen"), (-1, "screen"), (0, "argmax")):
        with pytest.raises(LedgerMismatch):
            ledger.charge(slot, release, ["a"])
    assert entries(place) == before


@pytest.mark.parametrize(
    "statement",
    [
        r"""UPDATE entries SET body = '{"count"\:1,"release"\:"screen","slot"\:0}' WHERE seq = 1""",
        "DELETE FROM entries WHERE seq = 1",
        "DELETE FROM entries WHERE seq = 2",
        "UPDATE entries SET kind = 'gift' WHERE seq = 2",
        "UPDATE entries SET hash = prev WHERE seq = 1",
    ],
)
def test_a_tampered_ledger_is_refused(ledger, place, statement):
    ledger.record(ledger.charge(0, "screen", ["a", "b"]), {"a": 1})
    rows(place, statement)
    with pytest.raises(LedgerMismatch):
        Ledger(place)


def test_export_holds_the_entries_and_is_a_function_of_them(tmp_path, postgres):
    """Of nothing else: a file and a server export the same entries to the same bytes."""
    exported = []
    for name, place in (("one", tmp_path / "ledger.sqlite"), ("two", postgres.schema())):
        ledger = created(place)
        use_extractor(ledger)
        ledger.record(ledger.charge(0, "screen", [identity("a")]), {identity("a"): 1})
        for again in range(2):
            ledger.export(tmp_path / f"{name}{again}.sqlite")
            exported.append((tmp_path / f"{name}{again}.sqlite").read_bytes())
        assert entries(tmp_path / f"{name}0.sqlite") == entries(place)
        assert audit(tmp_path / f"{name}0.sqlite").problems == []
    assert len(set(exported)) == 1


def test_entries_are_read_page_by_page(tmp_path, monkeypatch):
    """The export and the state are the same, and what is written meanwhile is in neither."""
    place = tmp_path / "ledger.sqlite"
    ledger = created(place)
    use_extractor(ledger)
    for name in "abc":
        ledger.record(ledger.charge(0, "screen", [identity(name)]), {identity(name): 1})
    ledger.export(tmp_path / "whole.sqlite")
    for size in (1, 2, 8, 3):  # of 8 entries
        monkeypatch.setattr(ledger_tables, "PAGE", size)
        assert Ledger(place).state == ledger.state
        reader = Ledger(place)
        if size == 3:
            monkeypatch.setattr(ledger_tables, "page_after", meanwhile(ledger))
        reader.export(tmp_path / "pages.sqlite")
        assert (tmp_path / "pages.sqlite").read_bytes() == (tmp_path / "whole.sqlite").read_bytes()
    assert ledger.state.spent == {(0, "screen"): 4}


def two_processes(folder, cap):
    use_extractor(first := created(folder / "ledger.sqlite", cap, cap))
    return first, Ledger(folder / "ledger.sqlite")


def test_what_another_process_has_answered_is_neither_charged_nor_refused(tmp_path):
    """Also with the last release of the cap, and where the answer came after ``due`` was asked."""
    first, second = two_processes(tmp_path, cap=1)
    query = identity("a")
    charge = first.charge(0, "screen", [query])
    charge = first.record(charge, {query: 1}, "aggregate", lambda: [query])
    first.record(charge, {query: 3})
    late = second.charge(0, "aggregate", [query, identity("b")])
    assert (late.granted, late.count) == ((), 0)
    assert second.state.refused == {identity("b")}
    assert second.state.results[query] == {"screen": 1, "aggregate": 3}


def test_two_draws_of_the_same_queries_end_with_the_first_one_recorded(tmp_path):
    """Both are paid. A batch of which another process answered a part is refused as a whole."""
    first, second = two_processes(tmp_path, cap=10)
    both, more = [identity("a"), identity("b")], [identity("b"), identity("c")]
    mine, theirs = first.charge(0, "screen", both), second.charge(0, "screen", both)
    partly = second.charge(0, "screen", more)
    first.record(mine, dict.fromkeys(both, 1))
    second.record(theirs, dict.fromkeys(both, 0))
    assert second.state.results == {name: {"screen": 1} for name in both}
    assert second.state.spent == {(0, "screen"): 6}
    with pytest.raises(LedgerMismatch, match="second release"):
        second.record(partly, dict.fromkeys(more, 0))
    first.export(tmp_path / "copy.sqlite")
    assert not audit(tmp_path / "copy.sqlite").problems


def meanwhile(writer):
    """The pages that a reader gets; one more charge is stored after the first of them."""
    page_after = ledger_tables.page_after
    charges = iter([lambda: writer.charge(0, "screen", [identity("d")])])

    def charged(connection, seq):
        page = page_after(connection, seq)
        if seq == 2 and (charge := next(charges, None)):
            connection.rollback()
            charge()
        return page

    return charged


def test_a_copy_of_a_ledger_that_is_replaced_meanwhile_is_refused(tmp_path, monkeypatch):
    ledger, copy = created(tmp_path / "ledger.sqlite"), tmp_path / "copy.sqlite"
    ledger.export(copy)
    before = copy.read_bytes()
    monkeypatch.setattr(ledger_tables, "page_after", lambda *_: [])  # as of an older one
    with pytest.raises(LedgerMismatch, match="replaced by another one"):
        ledger.export(copy)
    assert copy.read_bytes() == before


def test_a_ledger_is_not_created_over_another_nor_by_opening_it(place):
    for _ in range(2):
        with pytest.raises(LedgerMismatch, match="there is no ledger"):
            Ledger(place)
    created(place).charge(0, "screen", ["a"])
    with pytest.raises(LedgerMismatch):
        created(place)
    assert Ledger(place).state.spent == {(0, "screen"): 1}


def test_a_ledger_that_goes_back_behind_a_living_process_is_refused(ledger, place):
    """As after a fail-over to a server without the last commits."""
    before = entries(place), rows(place, "SELECT * FROM head")
    ledger.record(ledger.charge(0, "screen", ["a"]), {"a": 1})
    rows(place, "DELETE FROM entries WHERE seq > 0")
    rows(place, "UPDATE head SET seq = :seq, hash = :hash", seq=0, hash=before[1][0][2])
    assert (entries(place), rows(place, "SELECT * FROM head")) == before
    for _ in range(2):  # the second time, from an empty memory
        with pytest.raises(LedgerMismatch, match="older"):
            ledger.charge(0, "screen", ["b"])
    other = Ledger(place)  # a process that has seen nothing of it has no means to know
    other.record(other.charge(0, "screen", ["c", "d"]), {"c": 1})
    with pytest.raises(LedgerMismatch, match="forked"):
        ledger.charge(0, "screen", ["b"])


def test_every_commit_is_on_disk_with_full_durability(tmp_path):
    """A power failure leaves no anchor ahead of its ledger, and undoes no move."""
    for database, level in (
        (open_database(tmp_path / "ledger.sqlite"), 2),
        (StoredLedger(tmp_path / "ledger.sqlite", tmp_path / "anchor")._database, 3),
        (Anchor(tmp_path / "anchor")._database, 3),
    ):
        with database.transaction() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == level
            assert connection.exec_driver_sql("PRAGMA secure_delete").scalar() == 1
