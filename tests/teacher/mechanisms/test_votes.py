"""PATE's kinds and naive kNN: draws and prices."""

import math

import numpy as np
import pytest

from labelwall.teacher.accounting.accountant import certificates
from labelwall.teacher.accounting.curves import ORDERS, argmax_rdp, laplace_rdp, screening_rdp
from labelwall.teacher.classifiers.linear_ensemble import train_ensemble
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import (
    AGGREGATE,
    SCREEN,
    ConfidentGnmax,
    Gnmax,
    Lnmax,
    NaiveKnn,
)
from labelwall.teacher.search.cpu import ExactIndex
from tests.make import ZeroNoise, plan_of
from tests.seeded_noise import SeededNoise

CLASSES, D = 3, 4
ALL = [
    Lnmax(teachers=9, scale=1.0),
    Gnmax(teachers=9, sigma_vote=1.0),
    ConfidentGnmax(teachers=9, threshold=5, sigma_screen=1.0, sigma_vote=1.0),
]


@pytest.mark.parametrize("mechanism", ALL, ids=lambda m: m.kind)
def test_without_noise_the_ensembles_plurality_is_drawn(mechanism: Mechanism) -> None:
    rng, tape = np.random.default_rng(0), ZeroNoise()
    rows, queries = (rng.integers(-63, 64, (n, D)).astype(np.int8) for n in (120, 50))
    labels, ids = rng.integers(0, CLASSES, 120), np.arange(120)
    ensemble = train_ensemble(
        rows, labels, ids, num_classes=CLASSES, teachers=9, key=bytes(range(32))
    )
    voters = Voters(ExactIndex(rows, ids), labels, CLASSES, queries, ensembles={9: ensemble})
    votes, keys = ensemble.votes(queries), [str(i) for i in range(50)]
    passed = votes.max(axis=1) > 5
    for stage in mechanism.stages:
        expected = passed if stage == SCREEN else votes.argmax(axis=1)
        assert mechanism.draw(stage, voters, keys, tape).tolist() == expected.tolist()
    assert 0 < passed.sum() < 50
    law = "laplace" if mechanism.kind == "lnmax" else "gaussian"
    assert tape.drawn[-1] == (law, 1.0, AGGREGATE, 50, CLASSES)
    assert [draw[2:] for draw in tape.drawn[:-1]] == [(SCREEN, 50, 1)] * (len(mechanism.stages) - 1)


def test_prices_are_the_curves_without_sampling() -> None:
    for mechanism, expected in (
        (Lnmax(scale=20.0), 30 * laplace_rdp(ORDERS, scale=20.0, sensitivity=2.0)),
        (Gnmax(sigma_vote=40.0), 30 * argmax_rdp(ORDERS, sigma=40.0, sample_rate=1.0)),
        (NaiveKnn(sigma_vote=40.0), 30 * ORDERS / 40.0**2),  # the Gaussian's at sqrt(2)
    ):
        tight = certificates(plan_of(mechanism, 30))["tight"]
        assert tight.epsilon <= (expected - math.log(1e-5) / (ORDERS - 1)).min()
    screen, argmax = ConfidentGnmax(sigma_screen=150.0, sigma_vote=40.0).releases(50, 30)
    assert (screen.cap, argmax.cap) == (50, 30)
    priced = {"max_votes": 250, "threshold": 200, "sigma": 150.0, "sample_rate": 1.0}
    assert screen.parameters == priced
    assert (screening_rdp(ORDERS, **screen.parameters) > 0).all()


@pytest.mark.parametrize("k", [1, 7, 50])
def test_the_nearest_of_all_records_vote_and_the_noisy_plurality_wins(k: int) -> None:
    rng, mechanism, tape = np.random.default_rng(k), NaiveKnn(k=k, sigma_vote=2.5), SeededNoise(3)
    x, q = (rng.integers(-63, 64, (n, 4)).astype(np.int8) for n in (40, 9))
    labels = rng.integers(0, CLASSES, 40)
    ids = np.arange(40)
    keys = [f"q{i}" for i in range(9)]
    drawn = mechanism.draw("aggregate", Voters(ExactIndex(x, ids), labels, CLASSES, q), keys, tape)
    for j, query in enumerate(q.astype(int)):
        nearest = sorted(
            range(40), key=lambda i: (((x[i].astype(int) - query) ** 2).sum(), ids[i])
        )[:k]
        noise = tape.discrete_gaussian(2.5, [keys[j]], "aggregate", CLASSES)[0].tolist()
        noisy = [sum(labels[i] == c for i in nearest) + noise[c] for c in range(CLASSES)]
        assert drawn[j] == noisy.index(max(noisy))
