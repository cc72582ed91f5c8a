"""Connections to a ledger's server break, also during a commit: no release without a charge."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.ledger import LedgerUrl
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import LabelwallError, LedgerMismatch
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.ledgers import Watching
from tests.make import plan_of
from tests.postgres import Server
from tests.teacher.ledger.cutting import Wire, wire_to

KNN = PrivateKnn(k=5, threshold=0, sigma_screen=1.0, sigma_vote=1.0, sample_rate=0.5)
IND = IndKnn(threshold=0.2, sigma_label=0.3, sigma_count=3.0, rho=2.0)
RNG = np.random.default_rng(0)
X, Y, ASKED = (
    RNG.normal(size=(30, 4)).astype(np.float32),
    RNG.integers(0, 3, 30),
    RNG.normal(size=(4, 4)).astype(np.float32),
)
COMMIT = b"COMMIT\0"  # BEGIN says READ COMMITTED


@pytest.fixture
def wire(postgres: Server) -> Iterator[Wire]:
    with wire_to(postgres.home) as wire_:
        yield wire_


def ledger_at(
    wire: Wire, url: LedgerUrl, mechanism: Mechanism = KNN, anchor: Path | None = None
) -> Ledger:
    """A new ledger at ``url``, reached through the wire."""
    place, plan = replace(url, socket=str(wire.home)), plan_of(mechanism, 40)
    return Ledger.create(place, dataset="d", plan=plan, unsafe=False, anchor=anchor)


@pytest.mark.parametrize("stored", [False, True])
def test_a_charge_that_nobody_confirmed_is_never_forgotten(
    postgres: Server, wire: Wire, stored: bool, tmp_path: Path
) -> None:
    url, anchor = postgres.schema(), tmp_path / "anchor.json"
    ledger = ledger_at(wire, url, anchor=anchor)
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
    postgres: Server, wire: Wire, mechanism: PrivateKnn | IndKnn, stored: bool, tmp_path: Path
) -> None:
    """Cut the connection at each commit of a request in turn; repeat the request each time."""
    for number in range(1, 100):
        url = postgres.schema()
        witness, directory = Watching(url), tmp_path / str(number)
        directory.mkdir()
        ledger = ledger_at(wire, url, mechanism)
        teacher = Teacher(
            lambda: Records(X, Y, np.arange(30)), ledger, directory, 3, witness, batch_size=2
        )
        teacher.use_extractor(ExtractorSpec("raw", (4,), 3))
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


def check(url: LedgerUrl, teacher: Teacher, witness: Watching) -> None:
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
def test_a_connection_that_breaks_before_the_commit_changes_nothing(
    postgres: Server, wire: Wire, at: bytes
) -> None:
    url = postgres.schema()
    ledger = ledger_at(wire, url)
    for answered in (False, True):
        wire.arm(at, 1, answered)
        with pytest.raises(LedgerMismatch):
            ledger.charge(0, "screen", ["a"])
        assert Ledger(url).state.spent == {}
    assert ledger.charge(0, "screen", ["a"]).granted == ("a",)


@pytest.mark.parametrize("stored", [False, True])
def test_updates_of_records_can_be_repeated(
    postgres: Server, wire: Wire, stored: bool, tmp_path: Path
) -> None:
    url, ids = postgres.schema(), np.arange(30)
    ledger = ledger_at(wire, url)
    first, late = Records(X[:20], Y[:20], ids[:20]), Records(X[20:], Y[20:], ids[20:])
    teacher = Teacher(lambda: first, ledger, tmp_path, 3, SystemEntropy())
    teacher.use_extractor(ExtractorSpec("raw", (4,), 3))
    for update in (lambda: teacher.add(late), lambda: teacher.remove(ids[10:25])):
        wire.arm(COMMIT, 1, stored)
        with pytest.raises(LedgerMismatch):
            update()
        update()
    again = Teacher(lambda: first, Ledger(url), tmp_path, 3, SystemEntropy())
    for either in (teacher, again):
        assert either.records().ids.tolist() == [*range(10), *range(25, 30)]
