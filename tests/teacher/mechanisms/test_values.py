"""Attributes and values by votes: sensitivities by exhaustion, draws against slow oracles."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelwall.teacher.accounting.curves import ORDERS, bounded_range_rdp, release_rdp
from labelwall.teacher.mechanisms.attributes import (
    COUNTS,
    GRID,
    GnmaxAttributes,
    PrivateKnnAttributes,
    clipped,
)
from labelwall.teacher.mechanisms.values import (
    MEAN,
    MEDIAN,
    RANGE,
    PrivateKnnMean,
    PrivateKnnMedian,
)
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import SCREEN
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.label_kinds import STEPS, pack, unpack
from labelwall.wall.messages import Outcome
from tests.make import ZeroNoise
from tests.teacher.laws import choice, divergence


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
    np.testing.assert_array_equal(clipped(unpack(pack(bits), 7), tau), votes)


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
    votes = clipped(unpack(np.array(codes, dtype=np.int64), c), tau)
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


MEAN_OF = PrivateKnnMean(
    k=7, sample_rate=1.0, sigma_mean=1.5, cells=8, window=2, threshold=3, sigma_screen=2.0
)
MEDIAN_OF = PrivateKnnMedian(
    k=7, sample_rate=1.0, epsilon=1.0, cells=8, window=2, threshold=3, sigma_screen=2.0
)
BOTH = [MEAN_OF, MEDIAN_OF]
KEYS = [str(i) for i in range(6)]


def test_a_record_moves_each_statistic_by_no_more_than_is_accounted_and_by_just_that():
    """For all data sets of four records on a coarse range, k = 1 to 3, and every removed record."""
    values, queries = [0, STEPS // 3, STEPS], np.zeros((1, 1), dtype=np.int8)
    features = np.arange(4, dtype=np.int8)[:, None]
    worst = {"sum": 0, "window": 0, "loss": 0, "spread": 0}
    for k, labels in itertools.product((1, 2, 3), itertools.product(values, repeat=4)):
        statistics = []
        for rows in ([0, 1, 2, 3], [1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]):
            index = ExactIndex(features[rows], np.array(rows, dtype=np.int64))
            voters = Voters(index, np.array(labels)[rows], 1, queries)
            silent = ZeroNoise()
            mean, median = (replace(m, k=k, cells=3, window=1, threshold=None) for m in BOTH)
            total = mean.draw(MEAN, voters, ["0"], silent)[0]
            median.draw(MEDIAN, voters, ["0"], silent)
            (largest,) = median.largest(voters, ["0"], silent)
            statistics.append((total, largest, silent.choices[0][1]))
        for total, together, losses in statistics[1:]:
            moved = losses - statistics[0][2]
            worst["sum"] = max(worst["sum"], abs(int(total - statistics[0][0])))
            worst["window"] = max(worst["window"], abs(int(together - statistics[0][1])))
            worst["loss"] = max(worst["loss"], int(abs(moved).max()))
            worst["spread"] = max(worst["spread"], int(moved.max() - moved.min()))
    assert worst == {"sum": RANGE, "window": 1, "loss": 1, "spread": 2}


def test_labels_in_few_bits_give_the_same_statistics():
    """A value times the cells does not fit in 16 bits, nor do distances from the middle."""
    rng, median = np.random.default_rng(0), replace(MEDIAN_OF, cells=32, threshold=None)
    index = ExactIndex(np.zeros((40, 1), dtype=np.int8), np.arange(40))
    queries, statistics = np.zeros((len(KEYS), 1), dtype=np.int8), []
    labels = rng.integers(0, STEPS + 1, 40)
    for kind in (np.int64, np.uint16):
        voters, silent = Voters(index, labels.astype(kind), 1, queries), ZeroNoise()
        mean = MEAN_OF.draw(MEAN, voters, KEYS, silent).tolist()
        statistics.append((mean, median.counts(SCREEN, voters, KEYS, silent).tolist()))
    assert statistics[0] == statistics[1]


def test_a_mean_is_rounded_and_clipped():
    for total in range(-7 * STEPS, 7 * STEPS, 997):
        outcome, label = MEAN_OF.outcome({SCREEN: 1, MEAN: total})
        assert outcome == Outcome.ANSWERED
        assert abs(Fraction(total + 7 * STEPS, 14) - label) <= Fraction(1, 2)
    ends = [MEAN_OF.outcome({MEAN: total})[1] for total in (-(10**9), 10**9, 0)]
    assert ends == [0, STEPS, STEPS // 2]


@pytest.mark.parametrize(("mechanism", "last"), [(MEAN_OF, MEAN), (MEDIAN_OF, MEDIAN)])
def test_stages_follow_the_threshold(mechanism, last):
    known = ({}, {SCREEN: 0}, {SCREEN: 1}, {SCREEN: 1, last: 5})
    assert [mechanism.next_stage(results) for results in known] == [SCREEN, None, last, None]
    assert mechanism.outcome({SCREEN: 0}) == (Outcome.ABSTAINED, -1)
    assert [(r.name, r.cap) for r in mechanism.releases(9, 4)] == [(SCREEN, 9), (last, 4)]
    plain = replace(mechanism, threshold=None)
    assert (plain.next_stage({}), plain.next_stage({last: 5})) == (last, None)
    assert [(r.name, r.cap) for r in plain.releases(9, 4)] == [(last, 9)]


@pytest.mark.parametrize("gamma", [1.0, 0.3])
@pytest.mark.parametrize("epsilon", [0.3, 2.0, 6.0])
def test_no_pair_of_neighbours_costs_more_than_the_median_is_priced_at(epsilon, gamma):
    """All counts of k <= 4 neighbours in three cells, every record that joins or replaces one."""
    mechanism = PrivateKnnMedian(k=4, cells=3, window=1, epsilon=epsilon, sample_rate=gamma)
    orders, worst = np.array([1.5, 2.0, 5.0, 20.0, 100.0]), np.zeros(5)
    law = {}
    for counts in (c for c in itertools.product(range(5), repeat=3) if sum(c) <= 4):
        losses = [max(sum(counts[:j]), sum(counts[j + 1 :])) for j in range(3)]
        law[counts] = choice(losses, epsilon / 2)  # of the drawn cell
    for a, b in itertools.permutations(law, 2):
        moved = np.array(b) - np.array(a)
        joins = sum(a) < 4 and sorted(moved) == [0, 0, 1]
        if joins or (sum(a) == sum(b) == 4 and sorted(moved) == [-1, 0, 1]):
            mixed = (1 - gamma) * law[a] + gamma * law[b]
            worst = np.maximum(worst, divergence(orders, mixed, law[a]))
    priced = release_rdp(mechanism.releases(1, 1)[0], orders)
    assert (worst <= priced).all()
    assert (worst > 0.2 * priced).all()


def test_the_bounded_range_curve_is_its_definition_and_below_the_known_bounds():
    """The supremum over t of the two-point moment, on a grid; epsilon^2 / 8-zCDP; epsilon-DP."""
    orders = np.array([2.0, 9.0, 40.0])
    for epsilon in (0.1, 1.0, 4.0):
        plain = bounded_range_rdp(ORDERS, epsilon=epsilon, sample_rate=1.0)
        assert (plain <= np.minimum(ORDERS * epsilon**2 / 8, epsilon) * 1.004).all()
        t = np.linspace(0, epsilon, 20001)[1:-1]
        high, low = np.exp(t), np.exp(t - epsilon)
        chance = (1 - low) / (high - low)
        for gamma in (1.0, 0.2):
            curve = bounded_range_rdp(orders, epsilon=epsilon, sample_rate=gamma)
            mixed = [(1 - gamma) + gamma * ratio for ratio in (high, low)]
            for order, priced in zip(orders, curve, strict=True):
                moments = [
                    (chance * mixed[0] ** u + (1 - chance) * mixed[1] ** u).max()
                    for u in (order, 1 - order)
                ]
                exact = math.log(max(moments)) / (order - 1)
                assert exact <= priced <= exact * 1.004
    assert (bounded_range_rdp(ORDERS, epsilon=0.0, sample_rate=0.5) == 0).all()
    assert np.isfinite(bounded_range_rdp(ORDERS, epsilon=1e3, sample_rate=0.5)).all()
