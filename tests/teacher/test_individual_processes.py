"""Processes that share a ledger with individual budgets: in whatever order they reserve and pay,
nobody fails, and one record more or less changes nothing that is public."""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
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
from labelwall.wall.messages import Answers, ExtractorSpec, Queries
from tests.make import plan_of

D, CLASSES, MANY = 6, 3, 1 << 40
SPEC = ExtractorSpec("raw", (D,), CLASSES)
MECHANISM = IndKnn(threshold=0.3, sigma_label=0.3, sigma_count=2.0, rho=0.6)  # four counts' worth
ASKED = np.abs(np.random.default_rng(1).normal(size=(5, D))).astype(np.float32)
STEPS = ("asks", "reserves", "pays")


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


@dataclass
class Gate:
    """A place where a process waits until it is let through."""

    arrived: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        self.arrived.set()
        assert self.opened.wait(60)


class Halting(SystemEntropy):
    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        self._gate.wait()
        return super().discrete_gaussian(sigma, keys, release, width)


class Process:
    """A teacher with its own ledger object over the shared place. Each step waits for its call."""

    def __init__(self, folder: Path, place: Place, private: Records, asked: np.ndarray) -> None:
        folder.mkdir(parents=True)
        self.charge, self.draw = Gate(), Gate()
        ledger = Ledger(place)
        ledger.charge_prepaid = self._halting(ledger.charge_prepaid)
        self.teacher = Teacher(lambda: private, ledger, folder, CLASSES, Halting(self.draw))
        self.teacher.use_extractor(SPEC)
        self.teacher._mechanisms[0] = Fixed(**MECHANISM.fields())
        self.outcome: Answers | Exception | None = None
        self._asked = asked
        self._thread = threading.Thread(target=self._answer)

    def _halting(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def halting(*arguments: Any) -> Any:
            self.charge.wait()
            return work(*arguments)

        return halting

    def _answer(self) -> None:
        try:
            self.outcome = self.teacher.answer(Queries(self._asked))
        except Exception as error:
            self.outcome = error
        self.charge.arrived.set()
        self.draw.arrived.set()

    def step(self, name: str) -> None:
        if name == "asks":
            self._thread.start()
            assert self.charge.arrived.wait(60)
        elif name == "reserves":
            self.charge.opened.set()
            assert self.draw.arrived.wait(60)
        else:
            self.draw.opened.set()
            self._thread.join(60)
            assert not self._thread.is_alive()


# Of three steps each.
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
    return (
        twelve.joined(Records(ASKED[:1], np.array([1]), np.array([0]))) if with_record else twelve
    )


@dataclass
class World:
    """Two processes on a ledger over one of two neighbouring data sets."""

    folder: Path
    place: Place
    with_record: bool
    near: bool = True

    def __post_init__(self) -> None:
        Ledger.create(self.place, dataset="d", plan=plan_of(MECHANISM, 1), unsafe=False)

    def run(self, order: str, asked: dict[str, np.ndarray]) -> tuple[object, ...]:
        """All that is public of what they do: each one's outcome, and the entries."""
        private = data(self.with_record, self.near)
        pair = {
            name: Process(self.folder / name, self.place, private, asked[name]) for name in "ab"
        }
        steps = {name: iter(STEPS) for name in "ab"}
        for name in order:
            pair[name].step(next(steps[name]))
        path = self.folder / "public.sqlite"
        Ledger(self.place).export(path)
        assert audit(path).problems == []
        return *(public(pair[name].outcome) for name in "ab"), path.read_bytes()

    def left(self) -> np.ndarray:
        """Of the twelve records, and last of the one more: int64 [13] or [12] units."""
        budgets = Ledger(self.place).individual_budgets
        return budgets.remaining(0, budgets.serials(data(self.with_record, self.near).ids))


def public(outcome: Answers | Exception | None) -> object:
    if isinstance(outcome, Answers):
        return outcome.labels.tolist(), outcome.outcomes.tolist(), outcome.receipt
    return type(outcome), str(outcome)


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
        World(folder / order / name, beside(place, f"{order}_{name}"), name == "with", near)
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
