"""LNMAX, GNMAX, Confident-GNMAX: draws, prices, and queries through a teacher."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.accounting.accountant import certificates, certified_epsilon
from labelwall.teacher.accounting.curves import ORDERS, argmax_rdp, laplace_rdp, screening_rdp
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.classifiers.linear_ensemble import KEY, shard_key, train_ensemble
from labelwall.teacher.mechanisms.pate import (
    ConfidentGnmax,
    Gnmax,
    Lnmax,
)
from labelwall.teacher.mechanisms.registry import from_slot
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import AGGREGATE, SCREEN
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ABSTAINED, ExtractorSpec, Outcome, Queries
from tests.make import teach

CLASSES, D = 3, 4
ALL = [
    Lnmax(teachers=9, scale=1.0),
    Gnmax(teachers=9, sigma_vote=1.0),
    ConfidentGnmax(teachers=9, threshold=5, sigma_screen=1.0, sigma_vote=1.0),
]


class ZeroNoise:
    """No noise; remembers what was asked for."""

    unsafe = True

    def __init__(self) -> None:
        self.drawn: list[tuple[str, float, str, int, int]] = []

    def inclusion(
        self, probability: float, keys: Sequence[str], release: str, ids: np.ndarray
    ) -> np.ndarray:
        raise AssertionError("PATE samples nobody")

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        return self._zeros("gaussian", sigma, keys, release, width)

    def discrete_laplace(
        self, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        return self._zeros("laplace", scale, keys, release, width)

    def _zeros(
        self, law: str, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        self.drawn.append((law, scale, release, len(keys), width))
        return np.zeros((len(keys), width), dtype=np.int64)


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    return (rng.normal(size=(n, D)) + 2 * np.eye(CLASSES, D)[labels]).astype(np.float32), labels


def plan(mechanism: object, asked: int, answered: int, delta: float = 1e-5) -> Plan:
    return Plan(1e9, delta, (Slot(mechanism.fields(), mechanism.releases(asked, answered)),))


def teacher(folder: Path, mechanism: object, entropy: Entropy) -> Teacher:
    # a random key now and then gives shards that agree on every query
    (folder / KEY).write_bytes(bytes(range(32)))
    records, spec = Records(*rows(120, 0), np.arange(120)), ExtractorSpec("raw", (D,), CLASSES)
    return teach(folder, plan(mechanism, 60, 30), records, spec, entropy)


def votes_of(folder: Path, queries: np.ndarray) -> np.ndarray:
    """The ensemble's votes, put together again from the custodian's key."""
    x, y = rows(120, 0)

    def quantised(v: np.ndarray) -> np.ndarray:
        wide = v.astype(np.float64)
        return np.clip(
            np.rint(63 * wide / np.linalg.norm(wide, axis=1, keepdims=True)), -63, 63
        ).astype(np.int8)

    known = train_ensemble(
        quantised(x), y, np.arange(120), num_classes=CLASSES, teachers=9, key=shard_key(folder)
    )
    return known.votes(quantised(queries))


@pytest.mark.parametrize("mechanism", ALL, ids=lambda m: m.kind)
def test_without_noise_answers_are_the_ensembles_plurality(
    tmp_path: Path, mechanism: Lnmax | Gnmax | ConfidentGnmax
) -> None:
    queries, silent = rows(50, 1)[0], ZeroNoise()
    answers = teacher(tmp_path, mechanism, silent).answer(Queries(queries))
    votes = votes_of(tmp_path, queries)
    passed = (
        votes.max(axis=1) > 5 if isinstance(mechanism, ConfidentGnmax) else np.ones(50, dtype=bool)
    )
    labels = np.where(passed, votes.argmax(axis=1), ABSTAINED)
    known = answers.outcomes != Outcome.CAP_REACHED
    np.testing.assert_array_equal(answers.labels[known], labels[known])
    aggregated = sum(d[3] for d in silent.drawn if d[2] == AGGREGATE)
    assert answers.receipt.charged[AGGREGATE] == aggregated
    if isinstance(mechanism, ConfidentGnmax):
        assert sum(d[3] for d in silent.drawn if d[2] == SCREEN) == 50
        assert {d[4] for d in silent.drawn if d[2] == SCREEN} == {1}
        assert 0 < (~passed).sum() < 50
    assert {(d[0], d[4]) for d in silent.drawn if d[2] == AGGREGATE} == {
        ("laplace" if mechanism.kind == "lnmax" else "gaussian", CLASSES)
    }


@pytest.mark.parametrize("mechanism", ALL, ids=lambda m: m.kind)
def test_asked_again_after_a_restart_nothing_is_charged(
    tmp_path: Path, mechanism: Lnmax | Gnmax | ConfidentGnmax
) -> None:
    queries = Queries(rows(20, 1)[0])
    first = teacher(tmp_path, mechanism, SystemEntropy()).answer(queries)
    again = teacher(tmp_path, mechanism, SystemEntropy()).answer(queries)
    np.testing.assert_array_equal(first.labels, again.labels)
    assert set(again.receipt.charged.values()) == {0}


def test_prices_are_the_curves_without_sampling() -> None:
    for mechanism, expected in (
        (Lnmax(scale=20.0), 30 * laplace_rdp(ORDERS, scale=20.0, sensitivity=2.0)),
        (Gnmax(sigma_vote=40.0), 30 * argmax_rdp(ORDERS, sigma=40.0, sampling_probability=1.0)),
    ):
        tight = certificates(plan(mechanism, 30, 30))["tight"]
        assert tight.epsilon <= (expected - math.log(1e-5) / (ORDERS - 1)).min()
    screen, argmax = ConfidentGnmax(sigma_screen=150.0, sigma_vote=40.0).releases(50, 30)
    assert (screen.cap, argmax.cap) == (50, 30)
    assert screen.parameters == {
        "max_votes": 250,
        "threshold": 200,
        "sigma": 150.0,
        "sampling_probability": 1.0,
    }
    assert (screening_rdp(ORDERS, **screen.parameters) > 0).all()


def test_lnmax_is_pure_and_its_brute_force_stays_below() -> None:
    """Three classes: the noisy winner's exact law on neighbouring votes, with ties, both ways."""
    scale, reach = 3.0, 60
    claim = 2.0 / scale
    z = np.arange(-reach, reach + 1)
    mass = np.exp(-np.abs(z) / scale)
    mass /= mass.sum()

    def law(votes: tuple[int, ...]) -> np.ndarray:
        at = np.arange(-reach - 10, reach + 11)
        pmf = np.stack([np.interp(at - v, z, mass, left=0, right=0) for v in votes])
        below = np.cumsum(pmf, axis=1)
        strict = below - pmf
        # class c wins with noisy count a: lower classes stay below a, higher ones do not exceed it
        others = {
            c: [strict[o] if o < c else below[o] for o in range(3) if o != c] for c in range(3)
        }
        return np.array([(pmf[c] * others[c][0] * others[c][1]).sum() for c in range(3)])

    worst = 0.0
    for n_a, n_b, n_c in itertools.product(range(0, 6, 2), repeat=3):
        p, q = law((n_a, n_b + 1, n_c)), law((n_a + 1, n_b, n_c))
        worst = max(worst, float(np.abs(np.log(p / q)).max()))
    assert 0.5 * claim < worst <= claim * (1 + 1e-6)
    assert certified_epsilon(plan(Lnmax(scale=scale), 1, 1)) == pytest.approx(claim, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Lnmax, {"teachers": 0}),
        (Lnmax, {"scale": 0.0}),
        (Gnmax, {"sigma_vote": math.nan}),
        (ConfidentGnmax, {"threshold": 251}),
        (ConfidentGnmax, {"sigma_screen": -1.0}),
        (ConfidentGnmax, {"teachers": 10_001}),
    ],
)
def test_bad_fields_are_refused(kind: type, wrong: dict) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        kind(**wrong)


@pytest.mark.parametrize("mechanism", ALL, ids=lambda m: m.kind)
def test_a_ledger_gives_the_mechanism_back(mechanism: Lnmax | Gnmax | ConfidentGnmax) -> None:
    assert from_slot(plan(mechanism, 5, 4).slots[0]) == mechanism


def test_an_empty_data_set_is_answered_with_noise() -> None:
    nobody = (
        np.zeros((0, D), dtype=np.int8),
        np.zeros(0, dtype=np.int64),
        np.zeros(0, dtype=np.int64),
    )
    ensemble = train_ensemble(*nobody, num_classes=CLASSES, teachers=5, key=bytes(32))
    queries = np.ones((400, D), dtype=np.int8)
    voters = Voters(
        ExactIndex(nobody[0], nobody[2]), nobody[1], CLASSES, queries, ensembles={5: ensemble}
    )
    winners = Gnmax(teachers=5, sigma_vote=20.0).draw(
        AGGREGATE, voters, [str(i) for i in range(400)], SystemEntropy()
    )
    # each wins with probability above 0.2: one is missed once in 10^38
    assert set(winners.tolist()) == {
        0,
        1,
        2,
    }
