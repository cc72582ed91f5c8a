"""Processes that share a ledger with individual budgets: in whatever order they reserve and pay,
nobody fails, and one record more or less changes nothing that is public."""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.ledger import Place
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.make import plan_of

D, CLASSES, MANY = 6, 3, 1 << 40
SPEC = ExtractorSpec("raw", (D,), CLASSES)
MECHANISM = IndKnn(threshold=0.3, sigma_label=0.3, sigma_count=2.0, rho=0.6)  # four counts' worth
ASKED = np.abs(np.random.default_rng(1).normal(size=(5, D))).astype(np.float32)


class Exactly:
    """Noise that makes the released values what an identity says, whoever is a neighbour."""

    unsafe = True

    def __init__(self, key: str, able: int) -> None:
        self._count, self._label = int(key[:4], 16) % 50 - able, int(key[4:8], 16) % CLASSES

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        if release == "count":
            return np.full((1, width), self._count)
        return MANY * (np.arange(width)[np.newaxis] == self._label)


class Fixed(IndKnn):
    """Releases what its queries' identities fix; the records select, weigh and pay as ever."""

    def answer(self, similar: Any, left: Any, labels: Any, c: int, *draw: Any) -> Any:
        keys, entropy, *_ = draw
        entropy.discrete_gaussian(1.0, keys, "count", 1)  # where a process can be halted
        values, before, left = [], left, left.copy()
        for near, key in zip(similar, keys, strict=True):
            able = int((left[near.rows] >= self._count_units()).sum())
            value, paid = super().answer([near], left, labels, c, [key], Exactly(key, able))
            values, left = [*values, value], left - paid
        return np.concatenate(values), before - left


class Halting(SystemEntropy):
    def __init__(self, halt: Callable[[], None]) -> None:
        super().__init__()
        self._halt = halt

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        self._halt()
        return super().discrete_gaussian(sigma, keys, release, width)


class Process:
    """A teacher with its own ledger object over the shared place.

    It asks, reserves and pays, one ``step`` at a time.
    """

    def __init__(self, folder: Path, place: Place, private: Records, asked: np.ndarray) -> None:
        folder.mkdir(parents=True)
        self._go, self._halted = Queue[None](), Queue[None]()
        ledger = Ledger(place)
        charge = ledger.charge_prepaid
        ledger.charge_prepaid = lambda *what: (self._halt(), charge(*what))[1]
        self.teacher = Teacher(lambda: private, ledger, folder, CLASSES, Halting(self._halt))
        self.teacher.use_extractor(SPEC)
        self.teacher._mechanisms[0] = Fixed(**MECHANISM.fields())
        self.outcome: object = None
        self._thread = threading.Thread(target=self._answer, args=(asked,), daemon=True)

    def _halt(self) -> None:
        self._halted.put(None)
        self._go.get(timeout=60)

    def _answer(self, asked: np.ndarray) -> None:
        """What it is told, or the error."""
        try:
            answers = self.teacher.answer(Queries(asked))
            self.outcome = answers.labels.tolist(), answers.outcomes.tolist(), answers.receipt
        except Exception as error:
            self.outcome = type(error), str(error)
        for _ in range(3):  # steps that it did not need
            self._halted.put(None)

    def step(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.put(None)
        self._halted.get(timeout=60)


# Of three steps each: a process asks, reserves and pays.
ORDERS = sorted({"".join(order) for order in itertools.permutations("aaabbb")})
TELLING = [
    "aabbab",  # a asks and reserves, b asks and reserves, a pays, b pays
    "aabbba",  # the same, and b pays first
    "baabab",  # b asks, a reserves, b reserves, a pays, b pays
    "baaabb",  # b asks, a reserves and pays, b reserves
]


def data(with_record: bool, near: bool) -> Records:
    """Twelve records, ``near`` the queries or far from all of them; and maybe one under the first
    query.
    """
    rows = np.abs(np.random.default_rng(0).normal(size=(12, D))).astype(np.float32)
    twelve = Records(rows if near else -rows, np.arange(12) % CLASSES, np.arange(12) * 7 + 5)
    one = Records(ASKED[:1], np.array([1]), np.array([0]))
    return twelve.joined(one) if with_record else twelve


@dataclass
class World:
    """Two processes on a ledger over one of two neighbouring data sets."""

    folder: Path
    place: Place
    private: Records

    def run(self, order: str, asked: dict[str, np.ndarray]) -> tuple[object, ...]:
        """All that is public of what they do: each one's outcome, and the entries."""
        Ledger.create(self.place, dataset="d", plan=plan_of(MECHANISM, 1), unsafe=False)
        pair = {
            name: Process(self.folder / name, self.place, self.private, asked[name])
            for name in "ab"
        }
        for name in order:
            pair[name].step()
        path = self.folder / "public.sqlite"
        Ledger(self.place).export(path)
        assert audit(path).problems == []
        return *(process.outcome for process in pair.values()), path.read_bytes()

    def left(self) -> np.ndarray:
        """Of the twelve records, and last of the one more: int64 [13] or [12] units."""
        budgets = Ledger(self.place).individual_budgets
        return budgets.remaining(0, budgets.serials(self.private.ids))


def beside(place: Place, name: str) -> Place:
    """Another ledger's place next to one."""
    if isinstance(place, Path):
        return place.with_name(name)
    return replace(place, schema=f"{place.schema}_{name}")


QUERIES = {
    "others": {"a": ASKED[:2], "b": ASKED[2:4]},
    "one_in_common": {"a": ASKED[:3], "b": ASKED[[4, 0, 3]]},
    "the_same": {"a": ASKED[:2], "b": ASKED[:2]},
}


def compare(
    place: Place, folder: Path, order: str, asked: dict[str, np.ndarray], near: bool
) -> None:
    """Run an order with a record and without it, and require the same of both in public."""
    worlds = [
        World(folder / order / name, beside(place, f"{order}_{name}"), data(name == "with", near))
        for name in ("with", "without")
    ]
    results = [world.run(order, asked) for world in worlds]
    assert results[0] == results[1], order
    for outcome in results[0][:2]:
        assert isinstance(outcome, tuple), order
        assert isinstance(outcome[0], list), order  # no failure
    left = [world.left() for world in worlds]
    np.testing.assert_array_equal(left[0][:12], left[1])
    assert 0 <= left[0][12] < FULL
    assert ((left[1] >= 0) & (left[1] <= FULL)).all()


@pytest.mark.parametrize(
    ("place", "asked"),
    [
        *(("sqlite", asked) for asked in QUERIES),
        ("postgresql", "one_in_common"),
        pytest.param("postgresql", "others", marks=pytest.mark.slow),
        pytest.param("postgresql", "the_same", marks=pytest.mark.slow),
    ],
    indirect=["place"],
)
def test_both_are_answered_and_a_record_changes_nothing_public(
    place: Place, tmp_path: Path, asked: str
) -> None:
    for order in TELLING:
        compare(place, tmp_path, order, QUERIES[asked], near=False)


@pytest.mark.slow
@pytest.mark.parametrize("near", [True, False], ids=["in_company", "alone"])
@pytest.mark.parametrize("asked", list(QUERIES))
def test_so_it_is_in_every_order(place: Place, tmp_path: Path, asked: str, near: bool) -> None:
    for order in ORDERS:
        compare(place, tmp_path, order, QUERIES[asked], near)
