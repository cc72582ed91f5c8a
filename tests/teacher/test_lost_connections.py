"""Connections to a ledger's server break, also during a commit: no release without a charge."""

from dataclasses import replace

import numpy as np
import pytest

from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.teacher.records.private_records import Records
from labelwall.wall.errors import LabelwallError, LedgerMismatch
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.ledgers import Watching, created
from tests.make import plan_of, rows, teach
from tests.teacher.ledger.cutting import wire_to

KNN = PrivateKnn(k=5, threshold=0, sigma_screen=1.0, sigma_vote=1.0, sample_rate=0.5)
IND = IndKnn(threshold=0.2, sigma_label=0.3, sigma_count=3.0, rho=2.0)
RECORDS, ASKED = Records(rows(30, 0, 4), np.arange(30) % 3, np.arange(30)), rows(4, 1, 4)
SPEC = ExtractorSpec("raw", (4,), 3)
COMMIT = b"COMMIT\0"  # BEGIN says READ COMMITTED


@pytest.fixture
def wire(postgres):
    with wire_to(postgres.home) as wire_:
        yield wire_


def through(wire, url):
    """The place at ``url``, reached through the wire."""
    return replace(url, socket=str(wire.home))


@pytest.mark.parametrize("stored", [False, True])
def test_a_charge_that_nobody_confirmed_is_never_forgotten(postgres, wire, stored, tmp_path):
    url, anchor = postgres.schema(), tmp_path / "anchor.json"
    ledger = created(through(wire, url), anchor=anchor)
    wire.arm(COMMIT, 1, stored)
    with pytest.raises(LedgerMismatch):
        ledger.charge(0, "screen", ["a", "b"])
    assert Ledger(url, anchor).state.spent == ({(0, "screen"): 2} if stored else {})
    again = ledger.charge(0, "screen", ["a", "b"])
    assert again.granted == ("a", "b")
    wire.arm(COMMIT, 1, stored)
    with pytest.raises(LedgerMismatch):
        ledger.record(again, {"a": 1, "b": 0})
    state = Ledger(url, anchor).state
    assert state.results == ({"a": {"screen": 1}, "b": {"screen": 0}} if stored else {})
    assert state.spent == {(0, "screen"): 4 if stored else 2}
    if stored:
        with pytest.raises(LedgerMismatch, match="unused charge"):
            ledger.record(again, {"a": 0, "b": 1})  # no second draw in its place
    else:
        ledger.record(again, {"a": 1, "b": 0})
    assert Ledger(url, anchor).state.results == {"a": {"screen": 1}, "b": {"screen": 0}}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("mechanism", [KNN, IND], ids=["private_knn", "ind_knn"])
def test_whatever_is_cut_nothing_leaves_unpaid_and_no_answer_changes(
    postgres, wire, mechanism, stored, tmp_path
):
    """Cut the connection at each commit of a request in turn; repeat the request each time."""
    for number in range(1, 100):
        url = postgres.schema()
        witness, plan, place = Watching(url), plan_of(mechanism, 40), through(wire, url)
        teacher = teach(tmp_path / f"{number}", plan, RECORDS, SPEC, witness, 2, place=place)
        wire.arm(COMMIT, number, stored)
        try:
            teacher.answer(Queries(ASKED))
        except LabelwallError:
            pass
        else:
            break
        check(url, teacher, witness)
    assert number > 4
    assert wire.number > 0  # the last request met fewer commits than that
    Ledger(url).export(tmp_path / "copy.sqlite")
    assert audit(tmp_path / "copy.sqlite").problems == []


def check(url, teacher, witness):
    """Ask again after a cut: what was stored stands, and every draw was paid for."""
    before = Ledger(url)
    labels = teacher.answer(Queries(ASKED)).labels
    after = Ledger(url)
    assert witness.unpaid == 0
    for identity, values in before.state.results.items():
        assert after.state.results[identity].items() >= values.items()
    serials = np.arange(len(after.individual_budgets.ids))
    left = after.individual_budgets.remaining(0, serials)
    assert (left <= before.individual_budgets.remaining(0, serials)).all()
    assert ((left >= 0) & (left <= FULL)).all()
    assert teacher.answer(Queries(ASKED)).labels.tolist() == labels.tolist()


@pytest.mark.parametrize("at", [b"BEGIN", b"LOCK TABLE", b"INSERT INTO entries", b"UPDATE head"])
def test_a_connection_that_breaks_before_the_commit_changes_nothing(postgres, wire, at):
    url = postgres.schema()
    ledger = created(through(wire, url))
    for answered in (False, True):
        wire.arm(at, 1, answered)
        with pytest.raises(LedgerMismatch):
            ledger.charge(0, "screen", ["a"])
        assert Ledger(url).state.spent == {}
    assert ledger.charge(0, "screen", ["a"]).granted == ("a",)


@pytest.mark.parametrize("stored", [False, True])
def test_updates_of_records_can_be_repeated(postgres, wire, stored, tmp_path):
    url, late = postgres.schema(), RECORDS.take(slice(20, 30))
    first = tmp_path, plan_of(KNN, 40), RECORDS.take(slice(20)), SPEC
    teacher = teach(*first, place=through(wire, url))
    for update in (lambda: teacher.add(late), lambda: teacher.remove(np.arange(10, 25))):
        wire.arm(COMMIT, 1, stored)
        with pytest.raises(LedgerMismatch):
            update()
        update()
    for either in (teacher, teach(*first, place=url)):
        assert either.records().ids.tolist() == [*range(10), *range(25, 30)]
