"""Individual budgets: replayed, never refilled, never public, and missed when they are gone."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwall.teacher.accounting.plan import Release
from labelwall.teacher.ledger import ledger as ledger_file
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.individual_budgets import (
    ENROL,
    FULL,
    HOLD,
    SETTLE,
    IndividualBudgets,
    encode_integers,
    payment_row,
)
from labelwall.teacher.ledger.ledger import Ledger, Reservation
from labelwall.teacher.mechanisms.ind_knn import ANSWER, IndKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.kernels import GRID, Similar
from labelwall.wall.errors import InvalidInput, LedgerMismatch
from labelwall.wall.messages import Value
from tests.ledgers import identities, use_extractor
from tests.make import plan_of
from tests.postgres import rows
from tests.teacher.test_individual_processes import MECHANISM, Fixed

IDS = np.array([70, 10, 50], dtype=np.int64)
VALUE: Value = [31, 2]
PLAN = plan_of(MECHANISM, 1)


def payments(*amounts):
    """Units of three records."""
    return np.array([*amounts, 0, 0, 0][: max(3, len(amounts))], dtype=np.int64)


def paying(kind, slot, batch, token, *amounts):
    units = payments(*amounts)
    return payment_row(kind, slot, batch, token, np.arange(len(units)), units)


@pytest.fixture
def ledger(place):
    """IDS are enrolled."""
    made = Ledger.create(place, dataset="d", plan=PLAN, unsafe=False)
    made.enrol(IDS)
    return made


def reserve(ledger, name, most):
    everybody = np.arange(len(ledger.individual_budgets.ids))
    return ledger.charge_prepaid(0, ANSWER, [name], everybody, lambda granted, left: most)


def batch(ledger, name, most, paid):
    ledger.record_prepaid(reserve(ledger, name, most), {name: VALUE}, paid)


def spent(ledger):
    budgets = ledger.individual_budgets
    return (FULL - budgets.remaining(0, np.arange(len(budgets.ids)))).tolist()


def test_reopened_budgets_are_those_that_were_paid(ledger, place, tmp_path):
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


def test_payments_past_their_reservation_are_refused_with_the_answers(ledger, place):
    charge = reserve(ledger, "a", payments(3, 3))
    with pytest.raises(LedgerMismatch):
        ledger.record_prepaid(charge, {"a": [1, 1]}, payments(3, 4))
    again = Ledger(place)
    assert again.state.results == {}
    assert spent(again) == [3, 3, 0]


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
def test_damaged_budgets_fail_closed(ledger, place, statement):
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
def test_rows_that_make_no_sense_are_refused(row):
    budgets = IndividualBudgets()
    budgets.apply(1, (ENROL, -1, 0, encode_integers(IDS)))
    budgets.apply(2, paying(HOLD, 0, 0, b"t" * 16, 1, 3))
    with pytest.raises(LedgerMismatch):
        budgets.apply(3, row)


def test_who_is_not_enrolled_has_no_serial_and_nothing_left():
    budgets = IndividualBudgets()
    budgets.apply(1, (ENROL, -1, 0, encode_integers(IDS)))
    with pytest.raises(LedgerMismatch):
        budgets.serials(np.array([11]))
    with pytest.raises(LedgerMismatch):
        budgets.remaining(0, np.arange(4))


def test_what_nobody_has_can_not_be_reserved(ledger, place):
    with pytest.raises(LedgerMismatch):
        reserve(ledger, "a", payments(FULL + 1))
    assert Ledger(place).state.spent == {}
    ledger.catch_up()
    batch(ledger, "a", payments(3), payments(3))  # and the ledger still works


def test_a_prepaid_release_has_no_other_way_in(ledger):
    with pytest.raises(LedgerMismatch, match="reservation"):
        ledger.charge(0, ANSWER, ["a"])


def test_nothing_private_is_exported_and_an_export_can_not_take_the_ledgers_place(ledger, tmp_path):
    batch(ledger, "a", payments(3), payments(3))
    ledger.export(tmp_path / "copy.sqlite")
    tables = rows(tmp_path / "copy.sqlite", "SELECT name FROM sqlite_master WHERE type = 'table'")
    assert set(tables) == {("entries",), ("extractors",), ("head",)}
    restored = Ledger(tmp_path / "copy.sqlite")
    restored.enrol(IDS)
    with pytest.raises(LedgerMismatch, match="budgets"):
        reserve(restored, "b", payments(3))


# Several processes at once.


def test_an_answer_stays_the_first_one_and_the_second_draw_is_paid(ledger, place, tmp_path):
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


def test_processes_that_enrol_at_once_agree_on_every_place(ledger, place):
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


def test_the_table_is_there_after_enrolment_whoever_the_records_are(place):
    ledger = Ledger.create(place, dataset="d", plan=PLAN, unsafe=False)
    assert ledger.enrol(np.zeros(0, np.int64)).tolist() == []
    assert rows(place, "SELECT count(*) FROM private") == [(1,)]
    nobody = np.zeros(0, np.int64)
    batch(ledger, "a", nobody, nobody)
    assert ledger.enrol(IDS).tolist() == [2, 0, 1]
    assert spent(ledger) == [0, 0, 0]


def test_a_prepaid_release_is_charged_at_most_once():
    with pytest.raises(InvalidInput, match="prepaid"):
        Release(ANSWER, "zcdp", {"rho": 0.1}, 2, prepaid=True)


# Any interleaving of several owners' steps, in two worlds that differ by the last record.

RECORDS, OWNERS = 6, 3
NAMES = [f"{n:08x}" for n in np.random.default_rng(3).integers(0, 1 << 32, 6)]
WEIGHTS = np.random.default_rng(4).integers(1, GRID + 1, (len(NAMES), RECORDS)).astype(np.uint8)
NEAR = np.random.default_rng(5).random((len(NAMES), RECORDS)) < 0.6
NEAR[:, -1] = True
STEP = st.tuples(
    st.integers(0, OWNERS - 1),
    st.sampled_from(["reserve", "reserve", "pay", "pay", "crash"]),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
)


@dataclass
class World:
    """Owners at work over the first ``records`` of six; what they should have spent is counted."""

    place: Path
    records: int
    open: dict[int, tuple[Reservation, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self):
        self.mechanism = Fixed(**MECHANISM.fields())
        Ledger.create(self.place, dataset="d", plan=plan_of(MECHANISM, 1), unsafe=False)
        self.owners = [Ledger(self.place) for _ in range(OWNERS)]
        self.serials = self.owners[0].enrol(np.arange(self.records))
        self.paid = np.zeros(self.records, dtype=np.int64)  # exactly, for good
        self.abandoned = np.zeros(self.records, dtype=np.int64)

    def similar(self, names):
        chosen = [
            (NEAR[NAMES.index(name), : self.records], WEIGHTS[NAMES.index(name)]) for name in names
        ]
        return [
            Similar(np.flatnonzero(near).astype(np.int32), weights[: self.records][near])
            for near, weights in chosen
        ]

    def step(self, owner, action, names):
        """What is public of a step; to pay what nobody reserved is none."""
        if action == "reserve" and owner not in self.open:
            return self._reserve(owner, names)
        if action == "pay" and owner in self.open:
            return self._pay(owner)
        if action == "crash":
            if owner in self.open:
                self.abandoned += self.open.pop(owner)[1]
            self.owners[owner] = Ledger(self.place)
        return None

    def _reserve(self, owner, names):
        amounts = np.zeros(self.records, dtype=np.int64)

        def most(granted, left):
            np.testing.assert_array_equal(FULL - left, self.spent())
            amounts[:] = IndKnn.reserve(self.mechanism, self.similar(granted), left)
            return amounts

        held = self.owners[owner].charge_prepaid(0, ANSWER, names, self.serials, most)
        if held.granted:
            self.open[owner] = held, amounts
        return held.granted

    def _pay(self, owner):
        held, _ = self.open.pop(owner)
        near, labels = self.similar(held.granted), np.arange(self.records) % 3
        values, paid = self.mechanism.answer(
            near, held.remaining, labels, 3, held.granted, SystemEntropy()
        )
        results = dict(zip(held.granted, values.tolist(), strict=True))
        self.paid += paid
        return self.owners[owner].record_prepaid(held, results, paid), results

    def spent(self):
        return self.paid + self.abandoned + sum(amounts for _, amounts in self.open.values())

    def stored(self):
        return FULL - Ledger(self.place).individual_budgets.remaining(0, self.serials)


@settings(max_examples=25)
@given(st.lists(STEP, max_size=18), st.integers(1, 3))
def test_any_interleaving_pays_exactly_and_a_record_changes_no_outcome(steps, every):
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(ledger_file, "SNAPSHOT_EVERY", every),
    ):
        worlds = [World(Path(folder) / f"{n}.sqlite", n) for n in (RECORDS, RECORDS - 1)]
        for step in steps:
            outcomes = [world.step(*step) for world in worlds]
            assert outcomes[0] == outcomes[1]
        for world in worlds:
            np.testing.assert_array_equal(world.stored(), world.spent())  # to the unit
            assert (world.stored() >= world.paid).all()
            assert (world.stored() <= FULL).all()
        np.testing.assert_array_equal(worlds[0].stored()[:-1], worlds[1].stored())
        entries = [rows(world.place, "SELECT * FROM entries ORDER BY seq") for world in worlds]
        assert entries[0] == entries[1]
