"""Processes that share a ledger with individual budgets: in whatever order they reserve and pay,
nobody fails, and one record more or less changes nothing that is public."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.database import Place
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
        return np.array(
            [
                [
                    self._count if release == "count" else MANY * (c == self._label)
                    for c in range(width)
                ]
            ]
        )


class Told(IndKnn):
    """Releases what its queries' identities fix; the records select, weigh and pay as ever."""

    def answer(
        self,
        similar: Any,
        left: Any,
        labels: Any,
        c: int,
        keys: Any,
        entropy: Any,
        reused: Any = None,
    ) -> Any:
        entropy.discrete_gaussian(
            1.0, keys, "count", 1
        )  # the draw, at which a process can be halted
        values, before, left = [], left, left.copy()
        for found, key in zip(similar, keys, strict=True):
            able = int((left[found.rows] >= self._count_units()).sum())
            value, paid = super().answer([found], left, labels, c, [key], Exactly(key, able))
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
    """A teacher with a ledger object of its own over the shared place, which asks, reserves and
    pays
    when it is told to."""

    def __init__(self, folder: Path, place: Place, held: Records, asked: np.ndarray) -> None:
        folder.mkdir(parents=True)
        self.charge, self.draw = Gate(), Gate()
        ledger = Ledger(place)
        ledger.charge_prepaid = self._halting(ledger.charge_prepaid)
        self.teacher = Teacher(lambda: held, ledger, folder, CLASSES, Halting(self.draw))
        self.teacher.use_extractor(SPEC)
        self.teacher._mechanisms[0] = Told(**MECHANISM.fields())
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


ORDERS = sorted(
    {"".join(order) for order in itertools.permutations("aaabbb")}
)  # of three steps each
TELLING = [
    "aabbab",  # a asks and reserves, b asks and reserves, a pays, b pays
    "aabbba",  # the same, and b pays first
    "baabab",  # b asks, a reserves, b reserves, a pays, b pays
    "baaabb",  # b asks, a reserves and pays, b reserves
]


def data(with_record: bool, near: bool) -> Records:
    """Twelve records, ``near`` the queries or far from all of them; and one under the first query,
    or
    not."""
    rows = np.random.default_rng(0).normal(size=(12, D)).astype(np.float32)
    held = Records(
        np.abs(rows) if near else -np.abs(rows), np.arange(12) % CLASSES, np.arange(12) * 7 + 5
    )
    return held.joined(Records(ASKED[:1], np.array([1]), np.array([0]))) if with_record else held


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
        held = data(self.with_record, self.near)
        pair = {name: Process(self.folder / name, self.place, held, asked[name]) for name in "ab"}
        steps = {name: iter(STEPS) for name in "ab"}
        for name in order:
            pair[name].step(next(steps[name]))
        Ledger(self.place).export(self.folder / "public.sqlite")
        assert audit(self.folder / "public.sqlite").problems == []
        return *(public(pair[name].outcome) for name in "ab"), (
            self.folder / "public.sqlite"
        ).read_bytes()

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
    return (
        place.with_name(name)
        if isinstance(place, Path)
        else replace(place, schema=f"{place.schema}_{name}")
    )


QUERIES = {
    "others": {"a": ASKED[:2], "b": ASKED[2:4]},
    "one_in_common": {"a": ASKED[:3], "b": ASKED[[4, 0, 3]]},
    "the_same": {"a": ASKED[:2], "b": ASKED[:2]},
}


def compare(
    place: Place, folder: Path, order: str, asked: dict[str, np.ndarray], near: bool
) -> None:
    """Run an order with a record and without it, and require the same of both in public."""
    names = ("with", "without")
    worlds = [
        World(folder / order / name, beside(place, f"{order}_{name}"), name == "with", near)
        for name in names
    ]
    found = [world.run(order, asked) for world in worlds]
    assert found[0] == found[1], order
    assert all(
        isinstance(outcome, tuple) and isinstance(outcome[0], list) for outcome in found[0][:2]
    ), order  # no failure
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
