"""Processes that share a ledger with individual budgets: in any order of steps nobody fails."""

import threading
from dataclasses import replace
from pathlib import Path
from queue import Queue

import numpy as np
import pytest

from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.make import Watched, plan_of, rows

D, CLASSES, MANY = 6, 3, 1 << 40
SPEC = ExtractorSpec("raw", (D,), CLASSES)
MECHANISM = IndKnn(threshold=0.3, sigma_label=0.3, sigma_count=2.0, rho=0.6)  # four counts' worth
ASKED = np.abs(rows(5, 1))


class Exactly:
    """Noise that makes the released values what an identity says, whoever is a neighbour."""

    unsafe = True

    def __init__(self, key, able):
        self._count, self._label = int(key[:4], 16) % 50 - able, int(key[4:8], 16) % CLASSES

    def discrete_gaussian(self, sigma, keys, release, width):
        if release == "count":
            return np.full((1, width), self._count)
        return MANY * (np.arange(width)[np.newaxis] == self._label)


class Fixed(IndKnn):
    """Releases what its queries' identities fix; the records select, weigh and pay as ever."""

    def answer(self, similar, left, labels, c, *draw):
        keys, entropy, *_ = draw
        entropy.discrete_gaussian(1.0, keys, "count", 1)  # where a process can be halted
        values, before, left = [], left, left.copy()
        for near, key in zip(similar, keys, strict=True):
            able = int((left[near.rows] >= self._count_units()).sum())
            value, paid = super().answer([near], left, labels, c, [key], Exactly(key, able))
            values, left = [*values, value], left - paid
        return np.concatenate(values), before - left


class Process:
    """A teacher that asks, reserves and pays, one ``step`` at a time, over a shared ledger."""

    def __init__(self, folder, place, private, asked):
        folder.mkdir(parents=True)
        self._go, self._halted = Queue[None](), Queue[None]()
        ledger = Ledger(place)
        charge = ledger.charge_prepaid
        ledger.charge_prepaid = lambda *what: (self._halt(), charge(*what))[1]
        halting = Watched(lambda law, *_: law == "discrete_gaussian" and self._halt())
        self.teacher = Teacher(lambda: private, ledger, folder, CLASSES, halting)
        self.teacher.use_extractor(SPEC)
        self.teacher._mechanisms[0] = Fixed(**MECHANISM.fields())
        self.outcome: object = None
        self._thread = threading.Thread(target=self._answer, args=(asked,), daemon=True)

    def _halt(self):
        self._halted.put(None)
        self._go.get(timeout=60)

    def _answer(self, asked):
        try:
            answers = self.teacher.answer(Queries(asked))
            self.outcome = answers.labels.tolist(), answers.outcomes.tolist(), answers.receipt
        except Exception as error:
            self.outcome = type(error), str(error)
        for _ in range(3):  # steps that it did not need
            self._halted.put(None)

    def step(self):
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.put(None)
        self._halted.get(timeout=60)


# Of three steps each: a process asks, reserves and pays.
TELLING = [
    "aabbab",  # a asks and reserves, b asks and reserves, a pays, b pays
    "aabbba",  # the same, and b pays first
    "baabab",  # b asks, a reserves, b reserves, a pays, b pays
    "baaabb",  # b asks, a reserves and pays, b reserves
]
TWELVE = Records(-np.abs(rows(12, 0)), np.arange(12) % CLASSES, np.arange(12) * 7 + 5)
ONE = Records(ASKED[:1], np.array([1]), np.array([0]))  # under the first query
QUERIES = {
    "others": {"a": ASKED[:2], "b": ASKED[2:4]},
    "one_in_common": {"a": ASKED[:3], "b": ASKED[[4, 0, 3]]},
    "the_same": {"a": ASKED[:2], "b": ASKED[:2]},
}


def run(folder, place, private, order, asked):
    """All that is public of what two processes do, and what is left of the records' budgets."""
    Ledger.create(place, dataset="d", plan=plan_of(MECHANISM, 1), unsafe=False)
    pair = {name: Process(folder / name, place, private, asked[name]) for name in "ab"}
    for name in order:
        pair[name].step()
    Ledger(place).export(folder / "public.sqlite")
    assert audit(folder / "public.sqlite").problems == []
    outcomes = [process.outcome for process in pair.values()]
    assert all(isinstance(labels, list) for labels, *_ in outcomes), (order, outcomes)
    budgets = Ledger(place).individual_budgets
    left = budgets.remaining(0, budgets.serials(private.ids))
    return [*outcomes, (folder / "public.sqlite").read_bytes()], left


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
@pytest.mark.parametrize("order", TELLING)
def test_both_are_answered_and_a_record_changes_nothing_public(place, tmp_path, asked, order):
    worlds = []
    for name, private in (("with", TWELVE.joined(ONE)), ("without", TWELVE)):
        is_file = isinstance(place, Path)
        here = place.with_name(name) if is_file else replace(place, schema=f"{place.schema}_{name}")
        worlds.append(run(tmp_path / f"of {name}", here, private, order, QUERIES[asked]))
    (public, left), (other_public, others_left) = worlds
    assert public == other_public
    np.testing.assert_array_equal(left[:12], others_left)
    assert 0 <= left[12] < FULL
    assert ((others_left >= 0) & (others_left <= FULL)).all()
