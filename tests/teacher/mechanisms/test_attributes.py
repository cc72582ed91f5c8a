"""Votes on attributes: clipping, sensitivity by exhaustive search, draws against slow oracles."""

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelwall.teacher.accounting.curves import ORDERS, release_rdp
from labelwall.teacher.mechanisms.attributes import (
    COUNTS,
    GRID,
    GnmaxAttributes,
    PrivateKnnAttributes,
    ballots,
    clipped,
)
from labelwall.wall.label_kinds import pack
from labelwall.wall.messages import Outcome


def every(c):
    """All vectors of {0, 1}^c: int64 [2^c, c]."""
    return np.array(list(itertools.product((0, 1), repeat=c)), dtype=np.int64)


def slowly(bits, tau):
    """CVPR20 Definition 12 with fractions, then down to the grid."""
    norm = sum(bits)
    return [int(bit * min(Fraction(tau, norm), 1) * GRID // 1) if norm else 0 for bit in bits]


def squares(moves):
    return int((moves**2).sum(axis=-1).max())


@pytest.mark.parametrize("tau", [1, 2, 3, 5, 7])
def test_votes_are_clipped_as_defined_and_rounded_down(tau):
    bits = every(7)
    votes = clipped(bits, tau)
    np.testing.assert_array_equal(votes, [slowly(row, tau) for row in bits.tolist()])
    np.testing.assert_array_equal(ballots(pack(bits), 7, tau), votes)


@pytest.mark.parametrize("c", range(1, 8))
def test_no_swap_moves_the_votes_by_more_than_is_accounted_and_one_by_just_that(c):
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
def test_wide_votes_keep_the_constants(c, tau, data):
    codes = data.draw(st.lists(st.integers(0, (1 << c) - 1), min_size=2, max_size=6))
    votes = ballots(np.array(codes, dtype=np.int64), c, tau)
    assert squares(votes[:, None] - votes[None, :]) <= 2 * tau * GRID**2


def test_without_sampling_the_price_is_theorem_13():
    for tau, sigma in ((1, 3.0), (10, 150.0), (31, 0.7)):
        (release,) = GnmaxAttributes(tau=tau, sigma_vote=sigma).releases(9, 9)
        exact = ORDERS * tau / sigma**2
        np.testing.assert_allclose(release_rdp(release, ORDERS), exact, rtol=1e-12)


def test_an_attribute_is_present_above_the_threshold_and_unsaid_within_the_margin():
    mechanism, vote = PrivateKnnAttributes(k=10, threshold=0.3, margin=1.0), GRID
    counts = [10 * vote, 5 * vote, -3 * vote, 4 * vote, 4 * vote + 1, 2 * vote, 2 * vote + 1]
    assert mechanism.outcome({COUNTS: counts}) == (Outcome.ANSWERED, [1, 1, 0, -1, 1, 0, -1])
    near = [3 * vote, 3 * vote + 1]
    assert mechanism.outcome({COUNTS: near}) == (Outcome.ABSTAINED, [-1, -1])
    assert replace(mechanism, margin=0.0).outcome({COUNTS: near}) == (Outcome.ANSWERED, [0, 1])
