"""Radius votes: radii of public rows, samples, and prices against enumerated laws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.accounting.curves import release_rdp
from labelwall.teacher.mechanisms.voters import EVERYWHERE, Voters
from labelwall.teacher.mechanisms.votes import (
    AGGREGATE,
    LANDMARKS,
    SCREEN,
    PrivateKnn,
    PrivateRadius,
)
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.poisson_sampling import thinned
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import Queries
from labelwall.wall.wire import SAFETENSORS, decode_extractor, encode_extractor
from tests.seeded_noise import SeededNoise
from tests.teacher.shards import tiny

ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 32.0])
Law = dict[int, float]


def test_a_radius_is_the_distance_to_a_public_row() -> None:
    rng = np.random.default_rng(0)
    queries, rows = (rng.integers(-9, 10, (n, 3)).astype(np.int8) for n in (20, 50))
    rows[:5] = queries[:5]
    for share in (0.001, 0.1, 0.5, 1.0):
        wanted = max(1, round(50 * share))
        expected = []
        for query in queries.astype(int):
            apart = sorted(d for d in ((rows.astype(int) - query) ** 2).sum(axis=1).tolist() if d)
            expected.append(apart[wanted - 1] if len(apart) >= wanted else EVERYWHERE)
        voters = Voters(
            ExactIndex(rows, np.arange(50)), np.zeros(50), 2, queries, landmarks=rows.tobytes()
        )
        assert voters.radii(share).tolist() == expected


def test_a_sample_keeps_each_record_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tape's bits, record by record; in blocks of any size; all records where gamma is 1."""
    rng, tape, keys = np.random.default_rng(1), SeededNoise(2), ["a", "b", "c"]
    counts = rng.integers(0, 40, (3, 4))
    expected = np.zeros_like(counts)
    for query, key in enumerate(keys):
        for label in range(4):
            own = ((label << 32) + np.arange(counts[query, label]))[None]
            expected[query, label] = tape.inclusion(0.3, [key], "screen", own).sum()
    for entries in (1 << 20, 21):
        monkeypatch.setattr("labelwall.teacher.search.poisson_sampling.PREFIX_ENTRIES", entries)
        assert (thinned(counts, 0.3, keys, "screen", tape) == expected).all()
    assert (thinned(counts, 1.0, keys, "screen", tape) == counts).all()
    assert thinned(counts[:0], 0.3, [], "screen", tape).shape == (0, 4)


def test_samples_follow_the_binomial_law() -> None:
    counts = np.full((4000, 2), [6, 30])
    votes = thinned(counts, 0.25, [str(i) for i in range(4000)], "screen", SystemEntropy())
    for label, n in enumerate((6, 30)):
        share = np.bincount(votes[:, label], minlength=n + 1) / 4000
        exact = [math.comb(n, j) * 0.25**j * 0.75 ** (n - j) for j in range(n + 1)]
        assert np.abs(share - exact).max() < 5 * math.sqrt(0.25 / 4000)
    assert abs(np.corrcoef(votes.T)[0, 1]) < 5 / math.sqrt(4000)


def noise(sigma: float) -> dict[int, float]:
    weights = {z: math.exp(-(z**2) / (2 * sigma**2)) for z in range(-40, 41)}
    return {z: weight / sum(weights.values()) for z, weight in weights.items()}


def released(mechanism: PrivateRadius, part: str, votes: list[int]) -> Law:
    """The law of one release, given the votes, by enumeration of the noise."""
    if part == SCREEN:
        cut = min(max(votes), mechanism.max_votes)
        passing = sum(
            p
            for z, p in noise(mechanism.require("sigma_screen")).items()
            if cut + z > mechanism.threshold
        )
        return {0: 1 - passing, 1: passing}
    law, mass = dict.fromkeys(range(len(votes)), 0.0), noise(mechanism.require("sigma_vote"))
    for a, first in mass.items():
        for b, second in mass.items():
            if len(votes) == 2:
                law[0 if votes[0] + a >= votes[1] + b else 1] += first * second
                continue
            # of three classes the last wins with what is left
            best = max(votes[0] + a, votes[1] + b)
            above = sum(p for z, p in mass.items() if votes[2] + z > best)
            law[2] += first * second * above
            law[0 if votes[0] + a >= votes[1] + b else 1] += first * second * (1 - above)
    return law


def sampled(mechanism: PrivateRadius, part: str, within: list[int], classes: int) -> Law:
    """The law of one release over all samples of records (classes ``within`` the radius)."""
    gamma, law = mechanism.sampling_probability, dict[int, float]()
    known: dict[tuple[int, ...], Law] = {}
    for size in range(len(within) + 1):
        for chosen in combinations(range(len(within)), size):
            votes = np.bincount([within[i] for i in chosen], minlength=classes).tolist()
            chance = gamma**size * (1 - gamma) ** (len(within) - size)
            key = tuple(votes)
            if key not in known:
                known[key] = released(mechanism, part, votes)
            for outcome, p in known[key].items():
                law[outcome] = law.get(outcome, 0.0) + chance * p
    return law


def divergence(p: Law, q: Law, order: float) -> float:
    return math.log(sum(p[o] ** order * q[o] ** (1 - order) for o in p if q[o])) / (order - 1)


def neighbours() -> Iterator[tuple[list[int], int]]:
    """Classes within the radius, and the class of one record more."""
    for others in ([], [0], [1, 1], [0, 1, 1], [1, 1, 1, 0, 0]):
        yield from ((others, added) for added in (0, 1))


@pytest.mark.parametrize("gamma", [0.3, 1.0])
@pytest.mark.parametrize("part", [SCREEN, AGGREGATE])
def test_no_pair_costs_more_than_the_curve(part: str, gamma: float) -> None:
    """And the worst of these few pairs costs a good part of it.

    Of the argmax less: the other class's noise, which the proof fixes, hides the record too.
    """
    mechanism = PrivateRadius(
        threshold=1, sigma_screen=1.3, sigma_vote=1.3, sampling_probability=gamma
    )
    claims = {r.name: release_rdp(r, ORDERS) for r in mechanism.releases(1, 1)}[part]
    worst = np.zeros(len(ORDERS))
    for others, added in neighbours():
        without = sampled(mechanism, part, others, 2)
        with_it = sampled(mechanism, part, [*others, added], 2)
        for i, order in enumerate(ORDERS):
            pairs = (with_it, without), (without, with_it)
            worst[i] = max(worst[i], *(divergence(*pair, float(order)) for pair in pairs))
    assert (worst <= claims * (1 + 1e-9)).all()
    assert (worst[:3] >= (0.6 if part == SCREEN else 0.3) * claims[:3]).all()


def test_three_classes_cost_no_more() -> None:
    mechanism = PrivateRadius(sigma_vote=1.3, sigma_screen=1.0, sampling_probability=0.4)
    claims = {r.name: release_rdp(r, ORDERS) for r in mechanism.releases(1, 1)}[AGGREGATE]
    for others, added in (([2, 0], 1), ([0, 2, 2], 2), ([1, 2], 0)):
        laws = [sampled(mechanism, AGGREGATE, o, 3) for o in (others, [*others, added])]
        for i, order in enumerate(ORDERS):
            for pair in (laws, laws[::-1]):
                assert divergence(*pair, float(order)) <= claims[i]


def test_the_draw_has_the_enumerated_law() -> None:
    """Five records, one of them outside the radius; the bit and the winner, 20,000 times."""
    n = 20_000
    mechanism = PrivateRadius(
        share=1.0, threshold=1, sigma_screen=1.3, sigma_vote=1.3, sampling_probability=0.4
    )
    features = np.array([[0], [1], [-2], [2], [3]], dtype=np.int8)
    labels = np.array([0, 1, 1, 1, 0])
    index = ExactIndex(features, np.arange(5))
    voters = Voters(index, labels, 2, np.zeros((n, 1), dtype=np.int8), landmarks=b"\x02")
    keys = [str(i) for i in range(n)]
    for part in (SCREEN, AGGREGATE):
        drawn = np.bincount(mechanism.draw(part, voters, keys, SystemEntropy()), minlength=2) / n
        law = sampled(mechanism, part, labels[:4].tolist(), 2)
        assert np.abs(drawn - [law[0], law[1]]).max() < 5 * math.sqrt(0.25 / n)


def test_it_costs_less_than_private_knn() -> None:
    """The same noise, and the same price where its noise is sqrt(2) smaller."""
    noises = {"sigma_screen": 40.0, "sigma_vote": 20.0}
    near = PrivateKnn(k=100, threshold=60, **noises).releases(1, 1)
    ball = PrivateRadius(threshold=60, **noises).releases(1, 1)
    orders = np.array([16.0, 24.0])
    ratio = release_rdp(ball[1], orders) / release_rdp(near[1], orders)
    assert (ratio < 0.55).all()
    assert (ratio > 0.45).all()
    assert release_rdp(ball[0], orders) == pytest.approx(release_rdp(near[0], orders), rel=1e-6)


@pytest.mark.parametrize(
    "landmarks",
    [
        b"",
        b"\x01" * (tiny.DIMENSIONS + 1),
        b"\x7f" * 3,
        b"\x01" * (tiny.DIMENSIONS * (LANDMARKS + 1)),
    ],
)
def test_without_public_rows_or_with_many_nothing_is_charged(
    tmp_path: Path, landmarks: bytes
) -> None:
    made = tiny.teacher(tmp_path, "private_radius", tiny.records(), ScaleConfig(shards=0))
    made.use_extractor(replace(tiny.RAW, landmarks=landmarks))
    before = made._ledger.state.head
    with pytest.raises(InvalidInput, match=r"`extractor.landmarks` must be "):
        made.answer(Queries(tiny.queries()))
    assert made._ledger.state.head == before


def test_landmarks_cross_the_wall_and_name_the_extractor() -> None:
    spec = replace(tiny.RAW, landmarks=tiny.LANDMARKS)
    assert decode_extractor(encode_extractor(spec), SAFETENSORS, 1 << 20) == spec
    assert spec.sha256() != tiny.RAW.sha256()
    assert "landmarks_sha256" not in tiny.RAW.public_fields()
    assert encode_extractor(tiny.RAW) == encode_extractor(replace(spec, landmarks=b""))
