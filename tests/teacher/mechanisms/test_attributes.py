"""Votes on attributes: clipping, sensitivity by exhaustive search, draws against slow oracles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelwall.teacher.accounting.accountant import certificates
from labelwall.teacher.accounting.curves import ORDERS, release_rdp
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.accounting.pld import closed_epsilon, gaussian_pair
from labelwall.teacher.classifiers.linear_ensemble import train_ensemble
from labelwall.teacher.mechanisms.attributes import (
    COUNTS,
    GRID,
    GnmaxAttributes,
    PrivateKnnAttributes,
    ballots,
    clipped,
)
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.poisson_sampling import sampled_votes
from labelwall.wall.label_kinds import pack, unpack
from labelwall.wall.messages import Outcome
from tests.make import ZeroNoise

ATTRIBUTES, D, N = 4, 5, 40
KNN = PrivateKnnAttributes(tau=2, sigma_vote=1.5, k=7, sampling_probability=1.0)
GNMAX = GnmaxAttributes(tau=2, sigma_vote=1.5, teachers=3)
KEYS = [str(i) for i in range(6)]


def every(c: int) -> np.ndarray:
    """All vectors of {0, 1}^c: int64 [2^c, c]."""
    return np.array(list(itertools.product((0, 1), repeat=c)), dtype=np.int64)


def slowly(bits: Sequence[int], tau: int) -> list[int]:
    """CVPR20 Definition 12 with fractions, then down to the grid."""
    norm = sum(bits)
    return [int(bit * min(Fraction(tau, norm), 1) * GRID // 1) if norm else 0 for bit in bits]


def squares(moves: np.ndarray) -> int:
    return int((moves**2).sum(axis=-1).max())


# --- clipping and its constants


@pytest.mark.parametrize("tau", [1, 2, 3, 5, 7])
def test_votes_are_clipped_as_defined_and_rounded_down(tau: int) -> None:
    bits = every(7)
    votes = clipped(bits, tau)
    np.testing.assert_array_equal(votes, [slowly(row, tau) for row in bits.tolist()])
    np.testing.assert_array_equal(ballots(pack(bits), 7, tau), votes)
    assert votes.sum(axis=1).max() <= tau * GRID
    assert votes.max() <= GRID
    assert squares(votes) <= tau * GRID**2
    assert (
        votes.sum(axis=1) > np.minimum(bits.sum(axis=1), tau) * GRID - 7
    ).all()  # rounding takes less than 1 an entry


@pytest.mark.parametrize("c", range(1, 8))
def test_no_swap_moves_the_votes_by_more_than_is_accounted_and_one_by_just_that(c: int) -> None:
    """All pairs of voters; two with tau attributes each and none in common attain the constant."""
    for tau in range(1, c + 1):
        votes = clipped(every(c), tau)
        (release,) = PrivateKnnAttributes(tau=tau, sigma_vote=100.0).releases(1, 1)
        accounted = 2 * tau * GRID**2
        assert release.parameters["sensitivity"] == pytest.approx(accounted**0.5, rel=1e-15)
        largest = squares(votes[:, None] - votes[None, :])
        assert largest <= accounted
        assert (largest == accounted) == (c >= 2 * tau)


@given(st.integers(1, 62), st.integers(1, 62), st.data())
def test_wide_votes_keep_the_constants(c: int, tau: int, data: st.DataObject) -> None:
    codes = data.draw(st.lists(st.integers(0, (1 << c) - 1), min_size=2, max_size=6))
    votes = ballots(np.array(codes, dtype=np.int64), c, tau)
    assert squares(votes) <= tau * GRID**2
    assert squares(votes[:, None] - votes[None, :]) <= 2 * tau * GRID**2


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_record_of_the_sample_adds_its_votes_or_displaces_anothers(k: int) -> None:
    """Every subset of five records is a sample; each record is taken out of each of them."""
    rng = np.random.default_rng(k)
    features = rng.integers(-3, 4, (5, 2)).astype(np.int8)
    codes, queries = rng.integers(0, 16, 5), rng.integers(-3, 4, (4, 2)).astype(np.int8)
    votes = ballots(codes, 4, 2)

    def of(rows: list[int]) -> np.ndarray:
        index = ExactIndex(features[rows], np.array(rows, dtype=np.int64))
        return sampled_votes(
            index,
            votes[rows],
            queries,
            k=k,
            num_classes=4,
            sampling_probability=1.0,
            entropy=SystemEntropy(),
            keys=KEYS[:4],
            release=COUNTS,
        )

    allowed = {tuple(v - w) for v in [*votes, 0 * votes[0]] for w in [*votes, 0 * votes[0]]}
    for size in range(1, 6):
        for rows in map(list, itertools.combinations(range(5), size)):
            whole = of(rows)
            for record in rows:
                moved = whole - of([row for row in rows if row != record])
                assert {tuple(move) for move in moved} <= allowed
                assert squares(moved) <= 2 * 2 * GRID**2


# --- prices


def test_without_sampling_the_price_is_theorem_13() -> None:
    for tau, sigma in ((1, 3.0), (10, 150.0), (31, 0.7)):
        (release,) = GnmaxAttributes(tau=tau, sigma_vote=sigma).releases(9, 9)
        np.testing.assert_allclose(
            release_rdp(release, ORDERS), ORDERS * tau / sigma**2, rtol=1e-12
        )
        assert release.cap == 9


def test_no_certificate_takes_the_votes_for_plain_ones() -> None:
    """tau = 1: two entries move by a vote, which is GRID integers: too many for a discrete pair."""
    (priced,) = replace(KNN, tau=1).releases(5, 5)
    pair = gaussian_pair(priced)
    assert pair is not None
    assert pair.mu == pytest.approx(math.sqrt(2) / 1.5, rel=1e-3)
    plan = Plan(9.0, 1e-5, (Slot(KNN.fields(), (priced,)),))
    assert certificates(plan)["pld"].epsilon == closed_epsilon([priced], 1e-5)


# --- what noisy counts say


def test_an_attribute_is_present_above_the_threshold_and_unsaid_within_the_margin() -> None:
    mechanism = PrivateKnnAttributes(k=10, threshold=0.3, margin=1.0)
    counts = [g * GRID for g in (10, 5, -3)] + [
        3 * GRID + GRID,
        3 * GRID + GRID + 1,
        2 * GRID,
        2 * GRID + 1,
        3 * GRID,
    ]
    assert mechanism.outcome({COUNTS: counts}) == (Outcome.ANSWERED, [1, 1, 0, -1, 1, 0, -1, -1])
    assert mechanism.outcome({COUNTS: [3 * GRID, 3 * GRID + 5]}) == (Outcome.ABSTAINED, [-1, -1])
    plain = PrivateKnnAttributes(k=10, threshold=0.3)
    assert plain.outcome({COUNTS: [3 * GRID, 3 * GRID + 1]}) == (Outcome.ANSWERED, [0, 1])
    assert plain.next_stage({}) == COUNTS
    assert plain.next_stage({COUNTS: counts}) is None


# --- draws


def voters_of() -> Voters:
    rng = np.random.default_rng(3)
    features = rng.integers(-9, 10, (N, 3)).astype(np.int8)
    codes = rng.integers(0, 1 << ATTRIBUTES, N)
    ids, queries = rng.permutation(N), rng.integers(-9, 10, (len(KEYS), 3)).astype(np.int8)
    trained = train_ensemble(
        features, unpack(codes, ATTRIBUTES), ids, num_classes=ATTRIBUTES, teachers=3, key=bytes(32)
    )
    return Voters(ExactIndex(features, ids), codes, ATTRIBUTES, queries, ensembles={3: trained})


def test_the_nearest_neighbours_clipped_votes_are_added_up() -> None:
    silent = ZeroNoise()
    voters = voters_of()
    drawn = KNN.draw(COUNTS, voters, KEYS, silent)
    bits = unpack(voters.labels, ATTRIBUTES).tolist()
    for query, counts in zip(voters.queries.astype(int), drawn.tolist(), strict=True):
        order = sorted(
            range(N),
            key=lambda i: (
                int(((voters.index.features[i] - query) ** 2).sum()),
                int(voters.index.ids[i]),
            ),
        )
        votes = [slowly(bits[i], KNN.tau) for i in order[: KNN.k]]
        assert counts == [sum(column) for column in zip(*votes, strict=True)]
    assert silent.drawn == [("gaussian", 1.5 * GRID, COUNTS, len(KEYS), ATTRIBUTES)]


def test_every_classifier_votes_once() -> None:
    silent = ZeroNoise()
    voters = voters_of()
    drawn = GNMAX.draw(COUNTS, voters, KEYS, silent)
    inputs = np.hstack([voters.queries / 63, np.ones((len(KEYS), 1))])
    says = [
        (inputs @ weights > 0.5).astype(int).tolist() for weights in voters.ensembles[3].weights
    ]
    expected = [
        [sum(column) for column in zip(*(slowly(s[q], 2) for s in says), strict=True)]
        for q in range(len(KEYS))
    ]
    assert drawn.tolist() == expected
    assert silent.drawn == [("gaussian", 1.5 * GRID, COUNTS, len(KEYS), ATTRIBUTES)]
