"""Radius votes: radii of public rows, samples, draws; prices: tests/teacher/accounting."""

from dataclasses import replace

import numpy as np
import pytest

from labelwall.teacher.mechanisms.voters import EVERYWHERE, Voters
from labelwall.teacher.mechanisms.votes import LANDMARKS
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.poisson_sampling import thinned
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import Queries
from tests.seeded_noise import SeededNoise
from tests.teacher.shards import tiny


def test_a_radius_is_the_distance_to_a_public_row():
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


def test_a_sample_keeps_each_record_alone(monkeypatch):
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


@pytest.mark.parametrize(
    "landmarks",
    [
        b"",
        b"\x01" * (tiny.DIMENSIONS + 1),
        b"\x7f" * 3,
        b"\x01" * (tiny.DIMENSIONS * (LANDMARKS + 1)),
    ],
)
def test_without_public_rows_or_with_many_nothing_is_charged(tmp_path, landmarks):
    made = tiny.teacher(tmp_path, "private_radius", tiny.records(), ScaleConfig(shards=0))
    made.use_extractor(replace(tiny.RAW, landmarks=landmarks))
    before = made._ledger.state.head
    with pytest.raises(InvalidInput, match=r"`extractor.landmarks` must be "):
        made.answer(Queries(tiny.queries()))
    assert made._ledger.state.head == before
