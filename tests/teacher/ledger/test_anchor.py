"""An anchor lets one copy of a ledger continue: the first to write, whatever dies or is lost."""

import os
import stat
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.ledger import anchor as anchor_file
from labelwall.teacher.ledger.anchor import Anchor
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.wall.errors import LedgerMismatch
from tests.ledgers import created
from tests.make import plan_of
from tests.postgres import copied, rows

INDIVIDUAL = IndKnn(threshold=0.2, sigma_label=0.3, sigma_count=3.0, rho=2.0)


def in_use(place, anchor):
    goes_on(created(place, 20, anchor=anchor), "q")
    return place


def fork(place):
    return copied(place, f"f{uuid.uuid4().hex}")


def stored(place):
    return rows(place, "SELECT * FROM entries ORDER BY seq")


def goes_on(ledger, query):
    """Charge and record. Raises LedgerMismatch for a ledger that may not go on."""
    ledger.record(ledger.charge(0, "screen", [query]), {query: 1})


def is_refused(place, anchor, ledger=None):
    """Opened, or open, it charges nothing and gives nothing out."""
    before = stored(place)
    with pytest.raises(LedgerMismatch, match="anchor"):
        Ledger(place, anchor)
    for work in (
        lambda opened: opened.charge(0, "screen", ["x"]),
        lambda opened: opened.enrol(np.zeros(1, dtype=np.int64)),
        lambda opened: opened.analysts(),
        lambda opened: opened.in_custody(lambda _: None),
    ):
        if ledger is not None:
            with pytest.raises(LedgerMismatch, match="anchor"):
                work(ledger)
    assert stored(place) == before


@pytest.mark.parametrize("copy_first", [False, True])
def test_one_of_two_copies_goes_on(place, anchor, copy_first):
    """Whichever charges first, with the same query or another; both were open before that."""
    both = [in_use(place, anchor), fork(place)]
    first, second = reversed(both) if copy_first else both
    early = {here: Ledger(here, anchor) for here in both}
    for query in "ab":
        goes_on(early[first], query)
        is_refused(second, anchor, early[second])


@pytest.mark.parametrize("charged", [0, 1, 2])
def test_a_copy_from_any_time_is_refused_once_the_ledger_has_gone_on(place, anchor, charged):
    ledger = created(place, 20, anchor=anchor)
    for number in range(charged):
        goes_on(ledger, f"q{number}")
    early = fork(place)
    ledger.charge(0, "screen", ["a"])
    late = fork(place)
    goes_on(ledger, "b")
    is_refused(early, anchor)
    is_refused(late, anchor)
    goes_on(Ledger(place, anchor), "c")


@pytest.mark.parametrize("copy_first", [False, True])
def test_a_reservation_that_adds_no_entry_moves_the_anchor(place, anchor, copy_first):
    """Individual budgets draw after a commit of private rows alone."""
    ledger = Ledger.create(
        place, dataset="d", plan=plan_of(INDIVIDUAL, 9), unsafe=False, anchor=anchor
    )
    serials = ledger.enrol(np.arange(3))
    payment = np.ones(3, dtype=np.int64)

    def reserve(ledger, query):
        return ledger.charge_prepaid(0, "individual_budgets", [query], serials, lambda *_: payment)

    ledger.record_prepaid(reserve(ledger, "q"), {"q": 1}, payment)
    both = [place, fork(place)]
    first, second = (Ledger(here, anchor) for here in (reversed(both) if copy_first else both))
    reservation = reserve(first, "a")
    assert stored(both[0]) == stored(both[1])
    with pytest.raises(LedgerMismatch, match="anchor"):
        reserve(second, "a")
    first.record_prepaid(reservation, {"a": 1}, payment)


def test_an_anchor_begins_with_a_ledger_or_later_and_is_never_begun_again(place, anchor):
    ledger = Ledger(in_use(place, None), anchor)
    assert ledger.anchor_begun == 2
    goes_on(ledger, "a")
    assert Ledger(place, anchor).anchor_begun is None
    is_file = isinstance(anchor, Path)
    elsewhere = anchor.with_name("typo") if is_file else replace(anchor, schema="typo")
    with pytest.raises(LedgerMismatch, match=r"there is no anchor .*typo.* but the ledger has one"):
        Ledger(place, elsewhere)
    assert not (is_file and elsewhere.exists())
    goes_on(Ledger(place, anchor), "b")


def test_a_ledger_that_has_an_anchor_is_read_without_it_and_not_written(place, anchor, tmp_path):
    before = stored(in_use(place, anchor))
    assert len(rows(place, "SELECT nonce FROM nonces")) == 1
    if isinstance(place, Path):  # whose table of nonces the auditor knows
        assert not [problem for problem in audit(place).problems if "the file" in problem]
    ledger = Ledger(place)
    ledger.export(tmp_path / "export.sqlite")
    for work in (
        lambda: ledger.charge(0, "screen", ["a"]),
        lambda: ledger.enrol(np.zeros(1, dtype=np.int64)),
    ):
        with pytest.raises(LedgerMismatch, match="has an anchor"):
            work()
    assert stored(place) == before
    assert stored(tmp_path / "export.sqlite") == before
    goes_on(Ledger(place, anchor), "a")


def test_an_anchor_that_can_not_be_moved_stops_the_draw_and_nothing_else(
    place, anchor, monkeypatch
):
    ledger = Ledger(in_use(place, anchor), anchor)
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(anchor_file, "move", refuse)
            with pytest.raises(LedgerMismatch, match="disk is full"):
                ledger.charge(0, "screen", ["a"])
    assert ledger.charge(0, "screen", ["a"]).granted == ("a",)
    assert Ledger(place, anchor).state.spent == {(0, "screen"): 3}


def refuse(*_):
    raise LedgerMismatch("the disk is full")


def test_a_lost_anchor_is_made_by_hand(place, tmp_path):
    """By whoever knows that this is the newest copy: the guide says how."""
    anchor = tmp_path / "own.anchor"
    ledger = Ledger(in_use(place, anchor), anchor)
    anchor.unlink()
    with pytest.raises(LedgerMismatch, match="there is no anchor"):
        ledger.charge(0, "screen", ["a"])
    assert not anchor.exists()
    rows(anchor, "CREATE TABLE anchor (format, seq, hash, nonce)")
    is_refused(place, anchor)
    rows(anchor, "INSERT INTO anchor VALUES (1, 2, :hash, '')", hash=stored(place)[-1][4])
    goes_on(ledger, "a")


def test_the_file_is_its_owners_alone_and_links_are_refused(tmp_path):
    """What undoes a broken move lies beside one of two names, and the other would not see it."""
    anchor, place = tmp_path / "deep" / "own.anchor", tmp_path / "ledger.sqlite"
    anchor.parent.mkdir()
    in_use(place, anchor)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in anchor.parent.iterdir()} == {
        "own.anchor": 0o600
    }
    (tmp_path / "symbolic").symlink_to(anchor)
    os.link(anchor, tmp_path / "hard")
    (tmp_path / "dangling").symlink_to(tmp_path / "victim")
    for name in ("symbolic", "hard", "dangling", "deep", "deep/own.anchor"):
        is_refused(place, tmp_path / name)
    assert not (tmp_path / "victim").exists()
    is_refused(in_use(tmp_path / "new", None), tmp_path / "nowhere" / "own.anchor")
    with pytest.raises(LedgerMismatch, match="can not be created"):
        created(tmp_path / "nowhere" / "ledger.sqlite")
    (tmp_path / "hard").unlink()
    goes_on(Ledger(place, anchor), "a")


@pytest.mark.parametrize(
    "values", ["1, '2', ''", "1, 2, NULL", "1, 2.5, ''", "1, -1, ''", f"1, {2**62}, ''", "7, 2, ''"]
)
def test_a_forged_anchor_is_refused(tmp_path, values):
    anchor, place = tmp_path / "own.anchor", tmp_path / "ledger.sqlite"
    in_use(place, None)
    rows(anchor, "CREATE TABLE anchor (format, seq, hash, nonce)")
    rows(anchor, f"INSERT INTO anchor VALUES ({values}, '')")
    is_refused(place, anchor)
    assert not Anchor(tmp_path / "none").exists()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("content", [b"", b"7", b"SQLite format 3\0" + b"x" * 9000, b"whole"])
def test_a_damaged_anchor_is_refused(tmp_path, content):
    anchor, place = tmp_path / "own.anchor", tmp_path / "ledger.sqlite"
    in_use(place, anchor)
    whole = anchor.read_bytes()
    anchor.write_bytes(whole[:5000] if content == b"whole" else content)
    is_refused(place, anchor)
    anchor.write_bytes(whole)
    rows(anchor, "INSERT INTO anchor SELECT 2, seq, hash, nonce FROM anchor")
    is_refused(place, anchor)


def test_a_fork_of_the_same_length_is_refused(place, anchor):
    """It was written without the anchor, while nothing had been written under it."""
    ledger = created(place, 20, anchor=anchor)
    goes_on(Ledger(copy := fork(place)), "b")
    goes_on(ledger, "a")
    is_refused(copy, anchor)
    goes_on(Ledger(place, anchor), "c")


def test_whoever_reads_a_new_anchor_makes_it_durable(tmp_path, monkeypatch):
    """Its writer may have died there; a power failure would restore the previous anchor."""
    anchor, place = tmp_path / "own.anchor", tmp_path / "ledger.sqlite"
    ledger, synchronised = Ledger(in_use(place, anchor), anchor), []
    monkeypatch.setattr(anchor_file, "synchronise", lambda folder: synchronised.append(folder))
    ledger.catch_up()
    assert synchronised == []
    other = Ledger(place, anchor)
    other.catch_up()
    assert synchronised == [tmp_path]
    goes_on(ledger, "a")
    assert synchronised == [tmp_path] * 2  # before the record; the last one is its own
    other.catch_up()
    assert synchronised == [tmp_path] * 3
