"""Reservations of several processes at once: nothing is lost or paid twice, in any order."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwall.teacher.ledger import Place
from labelwall.teacher.ledger import ledger as ledger_file
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.ledger.ledger import Ledger, Reservation
from labelwall.teacher.mechanisms.ind_knn import ANSWER, IndKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.kernels import GRID, Similar
from labelwall.wall.errors import LedgerMismatch
from labelwall.wall.messages import Value
from tests.ledgers import identities, use_extractor
from tests.make import plan_of
from tests.postgres import rows
from tests.teacher.ledger.test_individual_budgets import IDS, batch, payments, plan, reserve, spent
from tests.teacher.test_individual_processes import MECHANISM, Fixed

VALUE: Value = [31, 2]


@pytest.fixture
def ledger(place: Place) -> Ledger:
    made = Ledger.create(place, dataset="d", plan=plan(), unsafe=False)
    made.enrol(IDS)
    return made


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
    lost: int = 0

    def __post_init__(self) -> None:
        self.mechanism = Fixed(**MECHANISM.fields())
        Ledger.create(self.place, dataset="d", plan=plan_of(MECHANISM, 1), unsafe=False)
        self.owners = [Ledger(self.place) for _ in range(OWNERS)]
        self.serials = self.owners[0].enrol(np.arange(self.records))
        self.paid = np.zeros(self.records, dtype=np.int64)  # exactly, for good
        self.abandoned = np.zeros(self.records, dtype=np.int64)

    def similar(self, names: Sequence[str]) -> list[Similar]:
        chosen = [
            (NEAR[NAMES.index(name), : self.records], WEIGHTS[NAMES.index(name)]) for name in names
        ]
        return [
            Similar(np.flatnonzero(near).astype(np.int32), weights[: self.records][near])
            for near, weights in chosen
        ]

    def step(self, owner: int, action: str, names: Sequence[str]) -> object:
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

    def _reserve(self, owner: int, names: Sequence[str]) -> object:
        amounts = np.zeros(self.records, dtype=np.int64)

        def most(granted: tuple[str, ...], left: np.ndarray) -> np.ndarray:
            np.testing.assert_array_equal(FULL - left, self.spent())
            amounts[:] = IndKnn.reserve(self.mechanism, self.similar(granted), left)
            return amounts

        held = self.owners[owner].charge_prepaid(0, ANSWER, names, self.serials, most)
        if held.granted:
            self.open[owner] = held, amounts
        return held.granted

    def _pay(self, owner: int) -> object:
        held, _ = self.open.pop(owner)
        near, labels = self.similar(held.granted), np.arange(self.records) % 3
        values, paid = self.mechanism.answer(
            near, held.remaining, labels, 3, held.granted, SystemEntropy()
        )
        results = dict(zip(held.granted, values.tolist(), strict=True))
        self.paid += paid
        return self.owners[owner].record_prepaid(held, results, paid), results

    def spent(self) -> np.ndarray:
        return self.paid + self.abandoned + sum(amounts for _, amounts in self.open.values())

    def stored(self) -> np.ndarray:
        return FULL - Ledger(self.place).individual_budgets.remaining(0, self.serials)


@settings(max_examples=25)
@given(st.lists(STEP, max_size=18), st.integers(1, 3))
def test_any_interleaving_pays_exactly_and_a_record_changes_no_outcome(
    steps: list, every: int
) -> None:
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
