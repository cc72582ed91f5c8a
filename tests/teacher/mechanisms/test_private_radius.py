"""Radius votes: radii of public rows, samples, and prices against enumerated laws."""

import math
from dataclasses import replace
from functools import reduce
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.accounting.curves import release_rdp
from labelwall.teacher.mechanisms.voters import EVERYWHERE, Voters
from labelwall.teacher.mechanisms.votes import (
    AGGREGATE,
    LANDMARKS,
    SCREEN,
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
REACH = np.arange(-12, 13)  # of noise


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


def noise(sigma: float) -> np.ndarray:
    weights = np.exp(-(REACH**2) / (2 * sigma**2))
    return weights / weights.sum()


def released(mechanism: PrivateRadius, part: str, votes: np.ndarray) -> np.ndarray:
    """The law of one release, given the votes, by enumeration of the noise."""
    if part == SCREEN:
        noisy = min(votes.max(), mechanism.max_votes) + REACH
        passing = noise(mechanism.require("sigma_screen"))[noisy > mechanism.threshold].sum()
        return np.array([1 - passing, passing])
    grids = np.meshgrid(*(count + REACH for count in votes), indexing="ij")
    mass = reduce(np.multiply.outer, [noise(mechanism.require("sigma_vote"))] * len(votes))
    return np.bincount(np.argmax(grids, axis=0).ravel(), mass.ravel(), len(votes))


def sampled(mechanism: PrivateRadius, part: str, within: list[int], classes: int) -> np.ndarray:
    """The law of one release over all samples of records (classes ``within`` the radius)."""
    gamma, law = mechanism.sample_rate, np.zeros(classes)
    for bits in product([False, True], repeat=len(within)):
        votes = np.bincount(np.array(within, dtype=int)[list(bits)], minlength=classes)
        chance = gamma ** sum(bits) * (1 - gamma) ** (len(bits) - sum(bits))
        law += chance * released(mechanism, part, votes)
    return law


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """At ORDERS, the larger of the two directions."""
    return np.max(
        [
            [math.log((a**order * b ** (1 - order)).sum()) / (order - 1) for order in ORDERS]
            for a, b in ((p, q), (q, p))
        ],
        axis=0,
    )


@pytest.mark.parametrize("gamma", [0.3, 1.0])
@pytest.mark.parametrize("part", [SCREEN, AGGREGATE])
def test_no_pair_costs_more_than_the_curve(part: str, gamma: float) -> None:
    """And the worst of these few pairs costs a good part of it.

    Of the argmax less: the other class's noise, which the proof fixes, hides the record too.
    """
    mechanism = PrivateRadius(threshold=1, sigma_screen=1.3, sigma_vote=1.3, sample_rate=gamma)
    claims = {r.name: release_rdp(r, ORDERS) for r in mechanism.releases(1, 1)}[part]
    worst = np.zeros(len(ORDERS))
    for others, added in product(([], [0], [1, 1], [0, 1, 1], [1, 1, 1, 0, 0]), (0, 1)):
        laws = [sampled(mechanism, part, records, 2) for records in (others, [*others, added])]
        worst = np.maximum(worst, divergence(*laws))
    assert (worst <= claims * (1 + 1e-9)).all()
    assert (worst[:3] >= (0.6 if part == SCREEN else 0.3) * claims[:3]).all()


def test_three_classes_cost_no_more() -> None:
    mechanism = PrivateRadius(sigma_vote=1.3, sigma_screen=1.0, sample_rate=0.4)
    claims = release_rdp(mechanism.releases(1, 1)[1], ORDERS)
    for others, added in (([2, 0], 1), ([0, 2, 2], 2), ([1, 2], 0)):
        laws = [sampled(mechanism, AGGREGATE, o, 3) for o in (others, [*others, added])]
        assert (divergence(*laws) <= claims).all()


def test_the_draw_has_the_enumerated_law() -> None:
    """Five records, one of them outside the radius; the bit and the winner, 20,000 times."""
    n = 20_000
    mechanism = PrivateRadius(
        share=1.0, threshold=1, sigma_screen=1.3, sigma_vote=1.3, sample_rate=0.4
    )
    features = np.array([[0], [1], [-2], [2], [3]], dtype=np.int8)
    labels = np.array([0, 1, 1, 1, 0])
    index = ExactIndex(features, np.arange(5))
    voters = Voters(index, labels, 2, np.zeros((n, 1), dtype=np.int8), landmarks=b"\x02")
    keys = [str(i) for i in range(n)]
    for part in (SCREEN, AGGREGATE):
        drawn = np.bincount(mechanism.draw(part, voters, keys, SystemEntropy()), minlength=2) / n
        law = sampled(mechanism, part, labels[:4].tolist(), 2)
        assert np.abs(drawn - law).max() < 5 * math.sqrt(0.25 / n)


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
