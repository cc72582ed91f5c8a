"""The statistical audit of private-kNN refutes planted faults, not the real mechanism.

For the real mechanism it reaches half of the claim.

| planted fault (faults.py)            | caught by                                                 |
|--------------------------------------|-----------------------------------------------------------|
| noise scale halved                   | bound, screening and aggregation                          |
| with-replacement fixed-size sampling | bound, screening: a record drawn twice has two votes      |
| one sample shared by both releases   | bound, whole queries: the bit shows sample and vote       |
| un-noised answer on an empty set     | bound, on the empty data set and its neighbour            |
| features centred by the private mean | bound, through the teacher; structure: ledger and features|
| check after release                  | structure (test_structure.py): wrong number of answers    |
| a seeded noise source                | structure: the law over seeds is right, the seed is known |

A run of this file fails for a faithful program with probability below 1e-6:

- Silence. A false alarm needs a confidence bound to be wrong. 22 audits at confidence 1 - 2.5e-8
  each are jointly right with probability 1 - 5.5e-7 (union bound; within an audit all bounds hold
  jointly already).
- Power (a fault caught, half of the claim reached). In 20,000 simulations of each test from its
  exact law, none missed, so an attempt misses less than once in 5,000 (at 98% confidence). Each of
  the nine tests takes the better of two independent attempts: 9 / 5000^2 < 4e-7.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.audits.harness import PROBE_DELTA, EmpiricalFinding, Pair, bound_pair
from labelwall.teacher.audits.polls import poll
from labelwall.teacher.audits.vote_laws import JOINT, laws, repeated
from labelwall.teacher.audits.votes import audit_votes, claimed, sharpest_pairs
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms import registry
from labelwall.teacher.mechanisms.private_knn import PrivateKnn
from labelwall.teacher.mechanisms.votes import AGGREGATE, SCREEN
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput
from tests.make import Make, alike, build
from tests.teacher.audits import faults

pytestmark = pytest.mark.fresh_noise
SURE = 1 - 2.5e-8
PARTS = (SCREEN, AGGREGATE, JOINT)
Setting = dict[str, Any]

# Parameters (of the mechanism), delta, queries of a trial: where the audit sees much in few trials.
SAMPLED: Setting = {
    "k": 3,
    "threshold": 2,
    "sigma_screen": 1.0,
    "sigma_vote": 2.0,
    "sampling_probability": 0.5,
}
CERTAIN: Setting = {
    "k": 3,
    "threshold": 1,
    "sigma_screen": 1.0,
    "sigma_vote": 2.0,
    "sampling_probability": 1.0,
}
SMALL_SIGMA: Setting = {
    "k": 1,
    "threshold": 0,
    "sigma_screen": 0.35,
    "sigma_vote": 0.85,
    "sampling_probability": 0.04,
}
SILENT = [
    (SAMPLED, 0.02, 2, 4000),
    (CERTAIN, 0.01, 2, 4000),
    (SMALL_SIGMA, 0.002, 1, 10000),
    (SAMPLED, 1e-4, 4, 2000),
]


def better(attempt: Callable[[], EmpiricalFinding]) -> EmpiricalFinding:
    """The better of two attempts; the second is made only where the first finds no fault."""
    first = attempt()
    return first if first.refuted else max(first, attempt(), key=lambda found: found.worst.share)


@pytest.mark.slow
@pytest.mark.parametrize("repetition", range(20))
def test_the_real_mechanism_raises_no_alarm(repetition: int) -> None:
    setting, delta, queries, trials = SILENT[repetition % len(SILENT)]
    found = audit_votes(
        PrivateKnn(**setting), delta=delta, trials=trials, queries=queries, confidence=SURE
    )
    assert not found.refuted, found.render()
    assert [release.release for release in found.releases] == list(PARTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "queries", "releases"),
    [
        (CERTAIN, 1, (SCREEN,)),
        (CERTAIN, 1, (AGGREGATE,)),
        ({**CERTAIN, "sigma_vote": 4.0}, 2, (JOINT,)),
    ],
)
def test_the_real_mechanism_reaches_half_of_its_claim(
    setting: Setting, queries: int, releases: tuple[str, ...]
) -> None:
    def attempt() -> EmpiricalFinding:
        return audit_votes(
            PrivateKnn(**setting), delta=0.01, trials=40000, queries=queries, releases=releases
        )

    found = better(attempt)
    assert found.confidence == 0.95
    assert found.lower_bound >= found.claim / 2, found.render()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "setting", "delta", "trials", "releases"),
    [
        (faults.HalfTheNoise, SAMPLED, 0.02, 40000, (AGGREGATE,)),
        (faults.HalfTheNoise, SAMPLED, 0.02, 40000, (SCREEN,)),
        (faults.WithReplacement, SAMPLED, 0.02, 40000, (SCREEN,)),
        (faults.OneSample, SMALL_SIGMA, 0.002, 200000, (JOINT,)),
        (faults.SilentWhenEmpty, CERTAIN, 0.01, 4000, (SCREEN,)),
        (faults.SilentWhenEmpty, CERTAIN, 0.01, 4000, (AGGREGATE,)),
    ],
)
def test_a_planted_fault_is_caught(
    fault: type[PrivateKnn], setting: Setting, delta: float, trials: int, releases: tuple[str, ...]
) -> None:
    def attempt() -> EmpiricalFinding:
        return audit_votes(
            fault(**setting),
            delta=delta,
            trials=trials,
            queries=1,
            releases=releases,
            confidence=SURE,
        )

    found = better(attempt)
    assert found.refuted, found.render()


NOISY = PrivateKnn(k=9, threshold=4, sigma_screen=2.0, sigma_vote=2.0, sampling_probability=1.0)
CLUSTERS = (
    np.repeat(np.array([[-1.0, 0.0], [1.0, 0.0]], dtype=np.float32), 9, axis=0),
    np.repeat([0, 1], 9),
)
FAR = np.array([[0.0, 1e6]], dtype=np.float32)  # in direction it is near nobody; it drags the mean


def teacher_bound(make: Make, directory: Path, trials: int) -> float:
    """Lower bound for a teacher's queries, with its ledger, when the far record is added."""
    rows, labels = CLUSTERS

    def outcomes(_: Pair, added: bool, n: int) -> np.ndarray:
        x, y = (np.concatenate([FAR, rows]), np.append(0, labels)) if added else (rows, labels)
        teacher = build(make, directory / str(added), x, y, NOISY, asked=n, answered=n)
        return teacher.answer(alike(n)).labels + 1

    return bound_pair(
        outcomes, poll(NOISY).empty(JOINT), queries=1, trials=trials, delta=0.01, error=1 - SURE
    )


def test_centring_by_the_private_mean_is_caught_through_the_teacher(tmp_path: Path) -> None:
    claim = claimed(NOISY, JOINT, 1, 0.01)
    for name, make in (("real", Teacher), ("fault", faults.CentredByPrivateMean)):
        (tmp_path / name).mkdir()
        bound = teacher_bound(make, tmp_path / name, trials=3000)
        assert (bound > claim) == (name == "fault"), (name, bound, claim)


# From here on nothing depends on chance but the command, which is among the 22.


@pytest.mark.parametrize(
    "pair", [Pair(0, 0, 2), Pair(0, 0, 10), Pair(1, 2, 2), Pair(2, 2, 3), Pair(0, 4, 10)]
)
def test_laws_against_enumerated_samples_and_noise(pair: Pair) -> None:
    mechanism = PrivateKnn(
        k=2, threshold=1, sigma_screen=0.8, sigma_vote=0.6, sampling_probability=0.3
    )
    for added in (False, True):
        expected = _enumerated(mechanism, pair, added)
        for part in PARTS:
            np.testing.assert_allclose(
                laws(poll(mechanism), pair)[part][added], expected[part], atol=1e-9
            )


def _enumerated(mechanism: PrivateKnn, pair: Pair, added: bool) -> dict[str, np.ndarray]:
    """Every sample of the records; the bit and the winner by sums over noise, class by class."""
    labels, gamma, c = pair.labels(added), mechanism.sampling_probability, pair.num_classes
    z = np.arange(-12, 13)

    def noise(sigma: float) -> np.ndarray:
        weights = np.exp(-(z**2) / (2 * sigma**2))
        return weights / weights.sum()

    screen, winner = np.zeros(2), np.zeros(c)
    for bits in product([False, True], repeat=len(labels)):
        chance = np.prod([gamma if bit else 1 - gamma for bit in bits])
        votes = np.bincount(labels[np.array(bits, dtype=bool)][: mechanism.k], minlength=c)
        passes = noise(mechanism.sigma_screen)[votes.max() + z > mechanism.threshold].sum()
        screen += chance * np.array([1 - passes, passes])
        best = {(-100, 0): 1.0}  # (noisy votes, class) of the leader so far
        for label in range(c):
            following: dict[tuple[int, int], float] = {}
            for (count, leader), mass in best.items():
                for value, weight in zip(
                    votes[label] + z, noise(mechanism.sigma_vote), strict=True
                ):
                    key = (int(value), label) if value > count else (count, leader)
                    following[key] = following.get(key, 0.0) + mass * weight
            best = following
        for (_, leader), mass in best.items():
            winner[leader] += chance * mass
    vote = np.array([winner[0], winner[1:-1].sum(), winner[-1]])
    return {SCREEN: screen, AGGREGATE: vote, JOINT: np.append(screen[0], screen[1] * vote)}


def test_repeated_is_the_law_of_counts() -> None:
    law = np.array([0.2, 0.3, 0.5])
    by_hand: dict[tuple[int, ...], float] = {}
    for outcomes in product(range(3), repeat=4):
        counts = tuple(outcomes.count(o) for o in range(3))
        by_hand[counts] = by_hand.get(counts, 0.0) + float(np.prod(law[list(outcomes)]))
    np.testing.assert_allclose(
        np.sort(repeated(law, 4)), np.sort(list(by_hand.values())), rtol=1e-12
    )


def test_the_sharpest_pair_is_where_the_screening_curve_has_its_maximum() -> None:
    """With many trials the screening's pair has the plurality with the largest exact loss."""
    mechanism = PrivateKnn(**CERTAIN)
    losses = {}
    for pair in poll(mechanism).candidates():
        without, added = laws(poll(mechanism), pair)[SCREEN]
        losses[pair] = float(np.abs(np.log(added) - np.log(without)).max())
    pair, expected = sharpest_pairs(mechanism, delta=1e-9, trials=10**9, error=0.01, queries=1)[
        SCREEN
    ]
    assert losses[pair] == pytest.approx(max(losses.values()))
    assert 0.99 * losses[pair] < expected <= claimed(mechanism, SCREEN, 1, 1e-9)


@pytest.mark.parametrize(
    "bad", [{"trials": 31}, {"delta": 0.0}, {"confidence": 1.0}, {"queries": 0}]
)
def test_bad_arguments_are_refused(bad: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {
        "mechanism": PrivateKnn(**SAMPLED),
        "delta": 0.02,
        "trials": 32,
        **bad,
    }
    with pytest.raises(InvalidInput):
        audit_votes(arguments.pop("mechanism"), **arguments)


def test_the_command_audits_the_plan_of_a_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = PrivateKnn(**SAMPLED)
    plan = Plan(100.0, PROBE_DELTA, (Slot(mechanism.fields(), mechanism.releases(5, 5)),))
    Ledger.create(tmp_path / "ledger.sqlite", dataset="d", plan=plan, unsafe=False)
    command = [
        "audit",
        "--empirical",
        str(tmp_path / "ledger.sqlite"),
        "--trials",
        "2000",
        "--confidence",
        str(SURE),
    ]
    assert pipeline.main([*command, "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)  # the probe has this plan's parameters
    assert shown["mechanism"] == mechanism.fields()
    assert shown["refuted"] is False
    assert [release["release"] for release in shown["releases"]] == list(PARTS)
    assert all(0 <= release["lower_bound"] <= release["claim"] for release in shown["releases"])
    monkeypatch.setitem(registry.MECHANISMS, "private_knn", faults.SilentWhenEmpty)
    assert pipeline.main(command) == 3
    assert "REFUTED" in capsys.readouterr().out
