"""Naive kNN: the winner of votes and the tape's noise by hand, its price, its refusals."""

from __future__ import annotations

import numpy as np
import pytest

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.curves import ORDERS, argmax_rdp
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import NaiveKnn
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.messages import Outcome
from tests.seeded_noise import SeededNoise

CLASSES = 3


@pytest.mark.parametrize("k", [1, 7, 50])
def test_the_nearest_of_all_records_vote_and_the_noisy_plurality_wins(k: int) -> None:
    rng, mechanism, tape = np.random.default_rng(k), NaiveKnn(k=k, sigma_vote=2.5), SeededNoise(3)
    x, q = (rng.integers(-63, 64, (n, 4)).astype(np.int8) for n in (40, 9))
    labels = rng.integers(0, CLASSES, 40)
    ids = rng.permutation(40)
    keys = [f"q{i}" for i in range(9)]
    drawn = mechanism.draw("aggregate", Voters(ExactIndex(x, ids), labels, CLASSES, q), keys, tape)
    for j, query in enumerate(q.astype(int)):
        nearest = sorted(
            range(40), key=lambda i: (((x[i].astype(int) - query) ** 2).sum(), ids[i])
        )[:k]
        noise = tape.discrete_gaussian(2.5, [keys[j]], "aggregate", CLASSES)[0].tolist()
        noisy = [sum(labels[i] == c for i in nearest) + noise[c] for c in range(CLASSES)]
        assert drawn[j] == noisy.index(max(noisy))


def test_every_query_pays_for_an_unsampled_winner() -> None:
    mechanism = NaiveKnn(k=20, sigma_vote=40.0)
    (release,) = mechanism.releases(100, 3)
    assert (release.cap, release.prepaid, release.curve) == (100, False, "argmax")
    assert release.parameters == {"sigma": 40.0, "sampling_probability": 1.0}
    assert (
        argmax_rdp(ORDERS, **release.parameters) <= ORDERS * 2 / (2 * 40.0**2) * (1 + 1e-9)
    ).all()  # sensitivity sqrt(2)
    costs = [
        certified_epsilon(Plan(99.0, 1e-5, (Slot(mechanism.fields(), mechanism.releases(n, n)),)))
        for n in (50, 100)
    ]
    assert 0 < costs[0] < costs[1]
    assert mechanism.next_stage({}) == "aggregate"
    assert mechanism.next_stage({"aggregate": 2}) is None
    assert mechanism.outcome({"aggregate": 2}) == (Outcome.ANSWERED, 2)
