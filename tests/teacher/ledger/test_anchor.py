"""An anchor lets one copy of a ledger continue: the first to write, however processes die."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.charges import Reservation
from labelwall.teacher.ledger.database import Place
from labelwall.teacher.ledger.individual_budgets import Payments
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.ledger.url import LedgerUrl
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.wall.errors import LedgerMismatch
from tests.postgres import address, rows
from tests.programs import PROGRAMS, REPOSITORY
from tests.teacher.ledger.anchors import create, fork, goes_on, in_use, is_refused, stored

CHARGING = PROGRAMS / "charging.py"
URL = "postgresql://owner@/postgres?schema={}&socket={}"
INDIVIDUAL = IndKnn(threshold=0.2, sigma_label=0.3, sigma_count=3.0, rho=2.0)


@pytest.mark.parametrize(
    ("copy_first", "open_early"),
    [
        (False, True),
        (True, False),
        pytest.param(False, False, marks=pytest.mark.slow),
        pytest.param(True, True, marks=pytest.mark.slow),
    ],
)
def test_one_of_two_copies_goes_on(
    place: Place, anchor: Place, copy_first: bool, open_early: bool
) -> None:
    """Whichever copy charges first, with the same query or another.

    Also where both are open before either charges.
    """
    both = [in_use(place, anchor), fork(place)]
    first, second = reversed(both) if copy_first else both
    early = {here: Ledger(here, anchor) for here in both} if open_early else {}
    goes_on(early.get(first) or Ledger(first, anchor), "a")
    is_refused(second, anchor, early.get(second))
    goes_on(early.get(first) or Ledger(first, anchor), "b")
    is_refused(second, anchor, early.get(second))


def test_an_anchored_ledger_in_use_is_audited(tmp_path: Path, anchor: Place) -> None:
    """The auditor knows the table of nonces, which no export has."""
    place = in_use(tmp_path / "ledger.sqlite", anchor)
    assert isinstance(place, Path)
    assert len(rows(place, "SELECT nonce FROM nonces")) == 1
    assert not [problem for problem in audit(place).problems if "the file" in problem]


@pytest.mark.parametrize("charged", [0, 1, 2])
def test_a_copy_from_any_time_is_refused_once_the_ledger_has_gone_on(
    place: Place, anchor: Place, charged: int
) -> None:
    ledger = create(place, anchor)
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
def test_a_reservation_that_adds_no_entry_moves_the_anchor(
    place: Place, anchor: Place, copy_first: bool
) -> None:
    """Individual budgets draw after a commit of private rows alone.

    So of two copies with the same entries only one may draw.
    """
    slot = Slot(INDIVIDUAL.fields(), INDIVIDUAL.releases(9, 9))
    ledger = Ledger.create(
        place, dataset="d", plan=Plan(1e9, 1e-5, (slot,)), unsafe=False, anchor=anchor
    )
    serials = ledger.enrol(np.arange(3))
    payment = Payments(serials, np.ones(3, dtype=np.int64))

    def reserve(ledger: Ledger, query: str) -> Reservation:
        return ledger.charge_prepaid(0, "individual_budgets", [query], serials, lambda *_: payment)

    ledger.record_prepaid(reserve(ledger, "q"), {"q": 1}, payment)
    both = [place, fork(place)]
    first, second = (Ledger(here, anchor) for here in (reversed(both) if copy_first else both))
    reservation = reserve(first, "a")
    assert stored(both[0]) == stored(both[1])
    with pytest.raises(LedgerMismatch, match="anchor"):
        reserve(second, "a")
    first.record_prepaid(reservation, {"a": 1}, payment)


def test_processes_and_threads_may_share_one_ledger(place: Place, anchor: Place) -> None:
    one, other = create(place, anchor), Ledger(place, anchor)
    for number, ledger in enumerate([one, other, other, one, other]):
        goes_on(ledger, f"q{number}")
    assert len(one.entries_after(-1, 99)) == 11
    assert Ledger(place, anchor).state.spent == {(0, "screen"): 5}


def test_processes_that_share_a_ledger_and_its_anchor_never_pass_its_cap(
    place: Place, anchor: Place
) -> None:
    create(place, anchor)
    command = [sys.executable, CHARGING, address(place), "12"]
    both = [
        subprocess.Popen([*command, name, address(anchor)], cwd=REPOSITORY, stdout=subprocess.PIPE)
        for name in "ab"
    ]
    granted = [json.loads(process.communicate()[0]) for process in both]
    assert sum(map(len, granted)) == 20
    assert all(granted)
    assert len(Ledger(place, anchor).state.results) == 20


def test_an_anchor_begins_with_a_ledger_or_later_and_is_never_begun_again(
    place: Place, anchor: Place
) -> None:
    ledger = Ledger(in_use(place, None), anchor)
    assert ledger.anchor_begun == 2
    goes_on(ledger, "a")
    assert Ledger(place, anchor).anchor_begun is None
    elsewhere = (
        anchor.with_name("typo")
        if isinstance(anchor, Path)
        else LedgerUrl.parse(URL.format("typo", anchor.socket))
    )
    with pytest.raises(LedgerMismatch, match=r"there is no anchor .*typo.* but the ledger has one"):
        Ledger(place, elsewhere)
    assert not (isinstance(elsewhere, Path) and elsewhere.exists())
    goes_on(Ledger(place, anchor), "b")


def test_a_ledger_that_has_an_anchor_is_read_without_it_and_not_written(
    place: Place, anchor: Place, tmp_path: Path
) -> None:
    before = stored(in_use(place, anchor))
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
