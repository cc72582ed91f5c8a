"""Radius neighbours over a batch: votes, exact privacy loss, one charge a batch, free replays."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.accounting.accountant import certificates, certified_epsilon
from labelwall.teacher.accounting.plan import Plan, Release, Slot
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.base import Priced
from labelwall.teacher.mechanisms.batch import BATCH, LABEL_NOISE, RadiusNeighbours, squared_radius
from labelwall.teacher.mechanisms.calibration import calibrate
from labelwall.teacher.mechanisms.overlap import MAX_QUERIES, clique_bounds
from labelwall.teacher.mechanisms.pate import Gnmax
from labelwall.teacher.mechanisms.registry import from_slot
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput, LedgerMismatch
from labelwall.wall.messages import Outcome, Queries
from tests.teacher.mechanisms import batches
from tests.teacher.mechanisms.batches import CLASSES, ZeroNoise

MECHANISM = RadiusNeighbours(radius=0.25, epsilon=1.0)


def ask(teacher: Teacher, x: np.ndarray) -> Any:
    return teacher.answer(Queries(x.astype(np.float32)))


def test_answers_are_those_of_a_loop(tmp_path: Path) -> None:
    silent = ZeroNoise()
    (x, y), (q, _) = batches.rows(60, 0), batches.rows(30, 1)
    answers = ask(batches.teach(tmp_path, MECHANISM, silent), q)
    expected = []
    for query in np.rint(126 * q.astype(np.float64) - 63):
        near = [
            label
            for row, label in zip(np.rint(126 * x.astype(np.float64) - 63), y, strict=True)
            if ((row - query) ** 2).sum() <= (126 * 0.25) ** 2
        ]
        expected.append(int(np.bincount(near, minlength=CLASSES).argmax()))
    assert answers.labels.tolist() == expected
    assert (answers.outcomes == Outcome.ANSWERED).all()
    # every query gets noise, empty balls too
    assert sum(keys for _, _, keys, _ in silent.scales) == 30
    assert {(release, width) for release, _, _, width in silent.scales} == {(LABEL_NOISE, CLASSES)}


def test_what_lies_outside_the_box_is_moved_to_its_edge(tmp_path: Path) -> None:
    teacher = batches.teach(tmp_path, MECHANISM, ZeroNoise())
    pair = ask(teacher, np.array([[1.0, 0.5], [9.0, 0.5]])).labels
    assert pair[0] == pair[1]


@pytest.mark.parametrize("noise", ["laplace", "exponential", "exponential_paper"])
@pytest.mark.parametrize("accounting", ["local", "component", "queries"])
def test_the_exact_loss_of_a_batch_is_at_most_epsilon(noise: Any, accounting: Any) -> None:
    """The worst loss of a batch by enumeration.

    Answers are independent given the records, so it is the sum of the queries' worst losses.
    Queries are on a line, four of them close together, with records at any place; each neighbour
    has one more record, at any place.
    """
    epsilon, radius = 1.5, 6 / 126
    queries = np.array([0, 2, 3, 5, 16, 30, 41])[:, None]
    mechanism = RadiusNeighbours(radius=radius, epsilon=epsilon, noise=noise, accounting=accounting)
    assert squared_radius(mechanism.radius) == 36
    worst = 0.0
    for seed, n in ((0, 0), (1, 1), (2, 12), (3, 60)):
        rng = np.random.default_rng(seed)
        records, labels = rng.integers(-10, 55, (n, 1)), rng.integers(0, CLASSES, n)
        laws = batch_laws(mechanism, records, labels, queries)
        for place, label in itertools.product(range(-10, 55), (0, CLASSES - 1)):
            added = batch_laws(
                mechanism, np.vstack([records, [[place]]]), np.append(labels, label), queries
            )
            worst = max(worst, float(np.abs(np.log(added / laws)).max(axis=1).sum()))
    assert worst <= epsilon * (1 + 1e-9)
    if accounting != "queries" and noise != "exponential_paper":
        assert worst > 0.7 * epsilon  # the accounting leaves little over


def batch_laws(
    mechanism: RadiusNeighbours, records: np.ndarray, labels: np.ndarray, queries: np.ndarray
) -> np.ndarray:
    """Exact law of each query's label, float64 [q, classes], by independent code."""
    reach = squared_radius(mechanism.radius)
    sizes = clique_bounds(
        queries.astype(np.int8), np.full(len(queries), reach), mechanism.accounting
    ).sizes
    laws = []
    for query, size in zip(queries, sizes.tolist(), strict=True):
        near = ((records - query) ** 2).sum(axis=1) <= reach
        votes = np.bincount(labels[near], minlength=CLASSES)
        share = Fraction(mechanism.epsilon or 0) / size
        if mechanism.noise == "laplace":
            laws.append(batches.laplace_wins(votes, float(1 / share)))
        else:
            laws.append(
                batches.choice_law(
                    -votes, share / (2 if mechanism.noise == "exponential_paper" else 1)
                )
            )
    return np.array(laws)


@pytest.mark.parametrize("noise", ["laplace", "exponential"])
def test_draws_follow_the_exact_law(noise: Any) -> None:
    """700 batches.

    A frequency is off by 0.13 with probability below 2 exp(-2 * 700 * 0.13^2) = 1.1e-10
    (Hoeffding).
    """
    mechanism = RadiusNeighbours(radius=6 / 126, epsilon=2.0, noise=noise)
    queries = np.array([[0], [4], [30]])
    records, labels = np.array([[-2], [1], [2], [5], [33]]), np.array([0, 2, 2, 1, 1])
    voters, drawn = batches.voters(records, labels, queries), np.zeros((3, CLASSES))
    for number in range(700):
        found = mechanism.draw(BATCH, voters, [f"{number} {i}" for i in range(3)], SystemEntropy())[
            :, 0
        ]
        drawn[np.arange(3), found] += 1
    assert np.abs(drawn / 700 - batch_laws(mechanism, records, labels, queries)).max() < 0.13


def test_noise_is_that_of_each_queries_clique() -> None:
    silent, queries = ZeroNoise(), np.array([[0], [1], [2], [40], [41], [60]])
    epsilon = 0.3
    mechanism = RadiusNeighbours(radius=1 / 126, epsilon=epsilon)
    found = mechanism.draw(
        BATCH,
        batches.voters(np.zeros((0, 1)), np.zeros(0, dtype=int), queries),
        list("abcdef"),
        silent,
    )
    assert found[:, 1].tolist() == [3, 3, 3, 2, 2, 1]
    for _, scale, keys, _ in silent.scales:
        size = {1: 1, 2: 2, 3: 3}[keys]
        assert Fraction(size) / Fraction(scale) <= Fraction(epsilon)  # rounded, but never below
        assert scale == pytest.approx(size / epsilon)


def test_one_charge_a_batch_and_stored_answers_for_ever(tmp_path: Path) -> None:
    (q, _), entropy = batches.rows(40, 1), SystemEntropy()
    # which is for other mechanisms
    teacher = batches.teach(tmp_path, MECHANISM, entropy, batch_size=7)
    first = ask(teacher, np.vstack([q[:20], q[:3]]))
    assert (first.receipt.charged, first.receipt.left, first.receipt.served) == (
        {BATCH: 1},
        {BATCH: 1},
        0,
    )
    assert first.labels[20:].tolist() == first.labels[:3].tolist()
    assert set(first.receipt.cliques) == {"largest", "by_colouring"}
    assert 1 <= first.receipt.cliques["largest"] <= 20
    again = ask(batches.teach(tmp_path, MECHANISM, entropy), q[:20])  # also after a restart
    assert again.labels.tolist() == first.labels[:20].tolist()
    assert (again.receipt.charged, again.receipt.served) == ({BATCH: 0}, 20)
    assert again.receipt.cliques == first.receipt.cliques
    more = ask(teacher, q[10:])  # 10 known, 20 new: the new ones are the second batch
    assert (more.receipt.charged, more.receipt.left, more.receipt.served) == (
        {BATCH: 1},
        {BATCH: 0},
        10,
    )
    assert more.labels[:10].tolist() == first.labels[10:20].tolist()
    assert (more.outcomes == Outcome.ANSWERED).all()
    finding = audit(tmp_path / batches.LEDGER)
    assert (finding.problems, finding.charged, finding.released) == (
        [],
        {"0/batch": 2},
        {"0/batch": 40},
    )


def test_past_the_cap_all_are_refused_and_nothing_is_drawn(tmp_path: Path) -> None:
    (q, _), silent = batches.rows(30, 1), ZeroNoise()
    teacher = batches.teach(tmp_path, MECHANISM, silent, batches=1)
    ask(teacher, q[:10])
    drawn = len(silent.scales)
    refused = ask(teacher, q[5:])
    assert refused.outcomes.tolist() == [Outcome.ANSWERED] * 5 + [Outcome.CAP_REACHED] * 20
    assert refused.labels[5:].tolist() == [-1] * 20
    assert len(silent.scales) == drawn
    assert refused.receipt.charged == {BATCH: 0}


def test_a_batch_that_is_too_large_is_refused_before_the_charge(tmp_path: Path) -> None:
    many = np.random.default_rng(0).random((MAX_QUERIES + 1, 2))
    with pytest.raises(InvalidInput, match="in a batch"):
        ask(batches.teach(tmp_path, MECHANISM, ZeroNoise()), many)
    assert Ledger(tmp_path / batches.LEDGER).state.spent == {}


def test_a_charge_for_a_batch_pays_for_no_second_one(tmp_path: Path) -> None:
    ledger = Ledger.create(
        tmp_path / batches.LEDGER, dataset="d", plan=batches.plan(MECHANISM, 2), unsafe=False
    )
    charge = ledger.charge(0, BATCH, ["a", "b", "c"])
    assert (charge.granted, ledger.state.spent) == (("a", "b", "c"), {(0, BATCH): 1})
    ledger.record(charge, {"a": [0, 1, 1, 9], "b": [1, 1, 1, 9]})
    for charge_again in (charge,):
        with pytest.raises(LedgerMismatch, match="unused charge"):
            ledger.record(charge_again, {"c": [0, 1, 1, 9]})


def faked(**changes: Any) -> Slot:
    release = MECHANISM.releases(2, 2)[0]
    fields = {
        "name": BATCH,
        "curve": release.curve,
        "parameters": release.parameters,
        "cap": 2,
        "batch": True,
        **changes,
    }
    return Slot(MECHANISM.fields(), (Release(**fields),))


@pytest.mark.parametrize(
    "slot",
    [
        faked(parameters={"epsilon": 0.5}),
        faked(curve="zcdp", parameters={"rho": 0.01}),
        faked(batch=False),
        Slot(Gnmax(teachers=5, sigma_vote=40.0).fields(), faked().releases),
    ],
)
def test_the_auditor_and_the_registry_refuse_a_batch_priced_as_something_else(
    tmp_path: Path, slot: Slot
) -> None:
    Ledger.create(
        tmp_path / batches.LEDGER, dataset="d", plan=Plan(1e6, 1e-5, (slot,)), unsafe=False
    ).close()
    assert any("batch" in problem for problem in audit(tmp_path / batches.LEDGER).problems)
    with pytest.raises(LedgerMismatch):
        from_slot(slot)
    assert from_slot(faked()) == MECHANISM


def test_a_release_can_not_be_prepaid_and_by_the_batch() -> None:
    with pytest.raises(InvalidInput, match="batch"):
        Release("x", "pure", {"epsilon": 1.0}, 1, prepaid=True, batch=True)


def test_the_budget_is_split_over_the_planned_batches_and_never_exceeded() -> None:
    for epsilon, asked in ((1.0, 3), (0.1, 7), (2.0, 49), (1.0, 1)):
        (planned,) = calibrate([Priced(RadiusNeighbours(), asked, asked)], epsilon, 1e-5)
        whole = Plan(epsilon, 1e-5, (Slot(planned.fields(), planned.releases(asked, asked)),))
        assert certified_epsilon(whole) <= epsilon
        # many small ones cost less together than their sum
        assert certified_epsilon(whole) == pytest.approx(epsilon, rel=0.01)
        assert certificates(whole)["pure_added"].epsilon >= epsilon * 0.99
    with pytest.raises(InvalidInput, match=r"mechanism\.epsilon"):
        RadiusNeighbours().releases(1, 1)
