"""Neighbours' values: sensitivities by exhaustion, draws against oracles, laws against curves."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from labelwall.teacher.accounting.curves import (
    ORDERS,
    bounded_range_rdp,
    gaussian_rdp,
    release_rdp,
)
from labelwall.teacher.mechanisms.values import (
    MEAN,
    MEDIAN,
    RANGE,
    PrivateKnnMean,
    PrivateKnnMedian,
    Regression,
    windows,
)
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import SCREEN, PrivateKnn
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.label_kinds import STEPS
from labelwall.wall.messages import Outcome
from tests.make import ZeroNoise
from tests.teacher.laws import divergence

N = 40
MEAN_OF = PrivateKnnMean(
    k=7, sample_rate=1.0, sigma_mean=1.5, cells=8, window=2, threshold=3, sigma_screen=2.0
)
MEDIAN_OF = PrivateKnnMedian(
    k=7, sample_rate=1.0, epsilon=1.0, cells=8, window=2, threshold=3, sigma_screen=2.0
)
BOTH = [MEAN_OF, MEDIAN_OF]
KEYS = [str(i) for i in range(6)]


def voters_of(seed: int = 0) -> tuple[Voters, list[list[int]]]:
    """Voters, and by loops the labels of each query's 7 nearest, by (distance, id)."""
    rng, labels = np.random.default_rng(3), np.random.default_rng(seed).integers(0, STEPS + 1, N)
    features, ids = rng.integers(-9, 10, (N, 3)).astype(np.int8), np.arange(N)
    queries = rng.integers(-9, 10, (len(KEYS), 3)).astype(np.int8)
    distances = ((features[None].astype(int) - queries[:, None].astype(int)) ** 2).sum(axis=2)
    near = [labels[np.lexsort((ids, apart))[:7]].tolist() for apart in distances]
    return Voters(ExactIndex(features, ids), labels, 1, queries), near


def test_a_record_moves_each_statistic_by_no_more_than_is_accounted_and_by_just_that() -> None:
    """Priced sensitivities hold and are attained.

    For all data sets of four records on a coarse range, k = 1 to 3, and every removed record.
    """
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
            counts = median.counts(SCREEN, voters, ["0"], silent)
            statistics.append((total, windows(counts, 1).max(), silent.choices[0][1]))
        for total, together, losses in statistics[1:]:
            moved = losses - statistics[0][2]
            worst["sum"] = max(worst["sum"], abs(int(total - statistics[0][0])))
            worst["window"] = max(worst["window"], abs(int(together - statistics[0][1])))
            worst["loss"] = max(worst["loss"], int(abs(moved).max()))
            worst["spread"] = max(worst["spread"], int(moved.max() - moved.min()))
    assert worst == {"sum": RANGE, "window": 1, "loss": 1, "spread": 2}


def test_the_noisy_sum_is_of_the_nearest_and_its_mean_is_rounded_and_clipped() -> None:
    (voters, near), silent = voters_of(), ZeroNoise()
    drawn = MEAN_OF.draw(MEAN, voters, KEYS, silent)
    assert drawn.tolist() == [sum(2 * value - STEPS for value in values) for values in near]
    for values, total in zip(near, drawn.tolist(), strict=True):
        outcome, label = MEAN_OF.outcome({SCREEN: 1, MEAN: total})
        assert outcome == Outcome.ANSWERED
        assert abs(Fraction(sum(values), 7) - label) <= Fraction(1, 2)
    assert silent.drawn == [("gaussian", 1.5 * RANGE, MEAN, len(KEYS), 1)]
    ends = [MEAN_OF.outcome({MEAN: total})[1] for total in (-(10**9), 10**9, 0)]
    assert ends == [0, STEPS, STEPS // 2]


def test_labels_in_few_bits_give_the_same_statistics() -> None:
    """A value times the cells does not fit in 16 bits, nor do distances from the middle."""
    median, wide = replace(MEDIAN_OF, cells=32, threshold=None), voters_of()[0]
    narrow = replace(wide, labels=wide.labels.astype(np.uint16))
    for statistic in (
        lambda voters: MEAN_OF.draw(MEAN, voters, KEYS, ZeroNoise()),
        lambda voters: median.counts(SCREEN, voters, KEYS, ZeroNoise()),
    ):
        assert np.array_equal(statistic(wide), statistic(narrow))


def test_the_median_is_scored_by_ranks_in_cells() -> None:
    (voters, near), silent = voters_of(), ZeroNoise()
    drawn = MEDIAN_OF.draw(MEDIAN, voters, KEYS, silent)
    for values, (_, losses, rate), label in zip(near, silent.choices, drawn.tolist(), strict=True):
        cells = [value * 8 // (STEPS + 1) for value in values]
        below = [sum(c < j for c in cells) for j in range(8)]
        above = [sum(c > j for c in cells) for j in range(8)]
        assert losses.tolist() == [max(pair) for pair in zip(below, above, strict=True)]
        middle = label * 8 // (STEPS + 1)
        assert losses[middle] == losses[sorted(cells)[3]] == losses.min()
        assert 0 <= (middle + 0.5) * (STEPS + 1) / 8 - label < 1
        assert rate == Fraction(1, 2)


@pytest.mark.parametrize("mechanism", BOTH, ids=lambda m: m.kind)
def test_a_query_is_screened_by_the_most_neighbours_in_a_window(mechanism: Regression) -> None:
    voters, near = voters_of(1)
    for row, values in enumerate(near):
        cells = [value * 8 // (STEPS + 1) for value in values]
        most = max(sum(j <= c < j + 2 for c in cells) for j in range(7))
        for threshold, passes in ((most - 1, 1), (most, 0)):
            silent, screened = ZeroNoise(), replace(mechanism, threshold=threshold)
            drawn = screened.draw(SCREEN, voters.select([row]), KEYS[:1], silent)
            assert drawn.tolist() == [passes]
            assert silent.drawn == [("gaussian", 2.0, SCREEN, 1, 1)]


@pytest.mark.parametrize(("mechanism", "last"), [(MEAN_OF, MEAN), (MEDIAN_OF, MEDIAN)])
def test_stages_follow_the_threshold(mechanism: Regression, last: str) -> None:
    known = ({}, {SCREEN: 0}, {SCREEN: 1}, {SCREEN: 1, last: 5})
    assert [mechanism.next_stage(results) for results in known] == [SCREEN, None, last, None]
    assert mechanism.outcome({SCREEN: 0}) == (Outcome.ABSTAINED, -1)
    assert [(r.name, r.cap) for r in mechanism.releases(9, 4)] == [(SCREEN, 9), (last, 4)]
    plain = replace(mechanism, threshold=None)
    assert (plain.next_stage({}), plain.next_stage({last: 5})) == (last, None)
    assert [(r.name, r.cap) for r in plain.releases(9, 4)] == [(last, 9)]


def test_the_mean_and_the_screening_have_the_prices_of_votes() -> None:
    """The sum costs a Gaussian count of sensitivity 1 at sigma_mean; the bit CVPR20's screening."""
    common = {"k": 90, "sample_rate": 0.3, "threshold": 50, "sigma_screen": 20.0}
    screen, answer = PrivateKnnMean(sigma_mean=12.0, **common).releases(1, 1)
    expected = gaussian_rdp(ORDERS, sigma=12.0, sensitivity=1.0, sample_rate=0.3)
    np.testing.assert_allclose(release_rdp(answer, ORDERS), expected, rtol=1e-12)
    assert screen == PrivateKnn(sigma_vote=25.0, **common).releases(1, 1)[0]


@pytest.mark.parametrize("gamma", [1.0, 0.3])
@pytest.mark.parametrize("epsilon", [0.3, 2.0, 6.0])
def test_no_pair_of_neighbours_costs_more_than_the_median_is_priced_at(
    epsilon: float, gamma: float
) -> None:
    """All counts of k <= 4 neighbours in three cells, every record that joins or replaces one."""
    mechanism = PrivateKnnMedian(k=4, cells=3, window=1, epsilon=epsilon, sample_rate=gamma)
    orders, worst = np.array([1.5, 2.0, 5.0, 20.0, 100.0]), np.zeros(5)
    law = {}
    for counts in (c for c in itertools.product(range(5), repeat=3) if sum(c) <= 4):
        losses = [max(sum(counts[:j]), sum(counts[j + 1 :])) for j in range(3)]
        mass = np.exp(-epsilon / 2 * np.array(losses))
        law[counts] = mass / mass.sum()  # of the drawn cell
    for a, b in itertools.permutations(law, 2):
        moved = np.array(b) - np.array(a)
        joins = sum(a) < 4 and sorted(moved) == [0, 0, 1]
        if joins or (sum(a) == sum(b) == 4 and sorted(moved) == [-1, 0, 1]):
            mixed = (1 - gamma) * law[a] + gamma * law[b]
            worst = np.maximum(worst, divergence(orders, mixed, law[a]))
    priced = release_rdp(mechanism.releases(1, 1)[0], orders)
    assert (worst <= priced).all()
    assert (worst > 0.2 * priced).all()


def test_the_bounded_range_curve_is_its_definition_and_below_the_known_bounds() -> None:
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
