"""The statistical audit of PATE and naive kNN refutes halved noise, not the real mechanisms.

These tests depend on chance. A false alarm needs one of twelve audits at confidence 1 - 2.5e-8 to
be wrong. Power: in simulations from the faults' exact laws at these settings, the mean bound lay
more than 7 of its standard deviations above the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.audits.cases import audit_mechanisms, probes
from labelwall.teacher.audits.harness import PROBE_DELTA, Pair
from labelwall.teacher.audits.polls import ensemble, poll
from labelwall.teacher.audits.vote_laws import (
    AGGREGATE,
    JOINT,
    SCREEN,
    laws,
)
from labelwall.teacher.audits.votes import audit_votes, claimed, run
from labelwall.teacher.mechanisms.naive_knn import NaiveKnn
from labelwall.teacher.mechanisms.pate import ConfidentGnmax, Gnmax, Lnmax
from labelwall.teacher.mechanisms.votes import Votes
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from tests.teacher.audits.faults import HalfScale

pytestmark = pytest.mark.fresh_noise
SURE = 1 - 2.5e-8
KINDS = (NaiveKnn, Lnmax, Gnmax, ConfidentGnmax)
NOISE = {
    NaiveKnn: {"sigma_vote": 75.0},
    Lnmax: {"scale": 20.0},
    Gnmax: {"sigma_vote": 40.0},
    ConfidentGnmax: {"sigma_screen": 150.0, "sigma_vote": 40.0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_real_mechanism_raises_no_alarm_as_configured_and_with_little_noise(kind: type) -> None:
    findings = audit_mechanisms([kind(**NOISE[kind])], delta=1e-5, trials=800, confidence=SURE)
    assert len(findings) == 2
    assert not any(found.refuted for found in findings)
    assert [r.release for r in findings[1].releases] == (
        [SCREEN, AGGREGATE, JOINT] if kind is ConfidentGnmax else [AGGREGATE]
    )


def probe(kind: type) -> Votes:
    """The mechanism with little noise."""
    ((made, _),) = probes(kind())
    return made


def halved(kind: type) -> Any:
    """The mechanism with noise of half the scale that is accounted."""

    class Halved(kind):
        def draw(
            self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy
        ) -> np.ndarray:
            return super().draw(stage, voters, keys, HalfScale(entropy))

    return Halved


@pytest.mark.parametrize(
    ("kind", "part"),
    [(NaiveKnn, AGGREGATE), (Lnmax, AGGREGATE), (Gnmax, AGGREGATE), (ConfidentGnmax, SCREEN)],
)
def test_half_the_noise_is_caught(kind: type, part: str) -> None:
    found = audit_votes(
        halved(kind)(**probe(kind).fields()),
        delta=PROBE_DELTA,
        trials=30000,
        queries=1,
        releases=(part,),
        confidence=SURE,
    )
    assert found.refuted, found.render()


@pytest.mark.parametrize("kind", KINDS)
def test_no_pair_loses_more_than_the_claim_and_the_worst_loses_a_good_part_of_it(
    kind: type,
) -> None:
    """The exact hockey-stick divergences of the laws against the certificate of one release."""
    mechanism = probe(kind)
    for part in (SCREEN, AGGREGATE) if kind is ConfidentGnmax else (AGGREGATE,):
        claim, worst = claimed(mechanism, part, 1, 0.01), 0.0
        for pair in poll(mechanism).candidates():
            without, added = laws(poll(mechanism), pair)[part]
            for p, q in ((without, added), (added, without)):
                assert np.maximum(p - np.exp(claim) * q, 0).sum() <= 0.01 + 1e-9
                worst = max(worst, float(np.maximum(p - np.exp(claim / 2) * q, 0).sum()))
        assert worst > 0.01


@pytest.mark.parametrize("pair", [Pair(0, 3, 2), Pair(2, 1, 10)])
def test_the_shards_hold_what_the_pair_says(pair: Pair) -> None:
    """Votes without noise: the added record moves one shard's vote from class 0 to its own."""
    for added in (False, True):
        votes = ensemble(3, pair, added).votes(np.zeros((1, 1), dtype=np.int8))[0]
        assert votes[0] == 3 - pair.allies - added
        assert votes[-1] == pair.allies + added


@pytest.mark.parametrize(
    "mechanism", [Lnmax(teachers=5, scale=1.5), Gnmax(teachers=5, sigma_vote=1.3)]
)
def test_laws_against_enumerated_noise(mechanism: Lnmax | Gnmax) -> None:
    """Two classes: the difference of two noises, summed up."""
    z = np.arange(-60, 61)
    mass = (
        np.exp(-np.abs(z) / mechanism.scale)
        if isinstance(mechanism, Lnmax)
        else np.exp(-(z**2) / (2 * mechanism.sigma_vote**2))
    )
    mass /= mass.sum()
    joint = np.outer(mass, mass)
    for added in (False, True):
        mine, other = 2 + added, 3 - added
        wins = joint[(mine + z)[:, None] > (other + z)[None, :]].sum()  # ties to class 0
        np.testing.assert_allclose(
            laws(poll(mechanism), Pair(2, 3, 2))[AGGREGATE][added], [1 - wins, 0, wins], atol=1e-12
        )


def test_what_is_run_is_the_mechanisms_own_draw() -> None:
    """Wins in the audit's runs are within 8 standard deviations of the law: a miss in 10^14."""
    mechanism, pair, n = Gnmax(teachers=5, sigma_vote=1.3), Pair(2, 3, 2), 4000
    for added in (False, True):
        wins = (run(mechanism, AGGREGATE, pair, added, n, SystemEntropy()) == 1).mean()
        law = laws(poll(mechanism), pair)[AGGREGATE][added][2]
        assert abs(wins - law) < 8 * np.sqrt(law * (1 - law) / n)
