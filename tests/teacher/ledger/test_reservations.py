"""Reservations of several processes at once: nothing is lost or paid twice, in any order."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwall.teacher.ledger import ledger as ledger_file
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.ledger.ledger import Ledger, Reservation
from labelwall.teacher.mechanisms.ind_knn import ANSWER, IndKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.kernels import GRID, Similar
from tests.make import plan_of
from tests.postgres import rows
from tests.teacher.test_individual_processes import MECHANISM, Fixed

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
