"""Neighbours' values: sensitivities by exhaustion, draws against oracles, laws against curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
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

N, D = 40, 5
MEAN_OF = PrivateKnnMean(
    k=7, sampling_probability=1.0, sigma_mean=1.5, cells=8, window=2, threshold=3, sigma_screen=2.0
)
MEDIAN_OF = PrivateKnnMedian(
    k=7, sampling_probability=1.0, epsilon=1.0, cells=8, window=2, threshold=3, sigma_screen=2.0
)
BOTH = [MEAN_OF, MEDIAN_OF]
KEYS = [str(i) for i in range(6)]


def voters_of(labels: np.ndarray, queries: int = len(KEYS)) -> Voters:
    rng = np.random.default_rng(3)
    features = rng.integers(-9, 10, (len(labels), 3)).astype(np.int8)
    ids = rng.permutation(len(labels))
    return Voters(
        ExactIndex(features, ids), labels, 1, rng.integers(-9, 10, (queries, 3)).astype(np.int8)
    )


def nearest(voters: Voters, query: np.ndarray, k: int) -> list[int]:
    """Labels of the k nearest, by (distance, id)."""
    index = voters.index

    def place(i: int) -> tuple[int, int]:
        return int(((index.features[i].astype(int) - query) ** 2).sum()), int(index.ids[i])

    return [int(voters.labels[i]) for i in sorted(range(len(index)), key=place)[:k]]


# --- what a record moves


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
            total = mean.draw(MEAN, voters, ["0"], silent)[0]  # type: ignore[arg-type]
            median.draw(MEDIAN, voters, ["0"], silent)  # type: ignore[arg-type]
            counts = median.counts(SCREEN, voters, ["0"], silent)  # type: ignore[arg-type]
            statistics.append((total, windows(counts, 1).max(), silent.choices[0][1]))
        for total, together, losses in statistics[1:]:
            moved = losses - statistics[0][2]
            worst["sum"] = max(worst["sum"], abs(int(total - statistics[0][0])))
            worst["window"] = max(worst["window"], abs(int(together - statistics[0][1])))
            worst["loss"] = max(worst["loss"], int(abs(moved).max()))
            worst["spread"] = max(worst["spread"], int(moved.max() - moved.min()))
    assert worst == {"sum": RANGE, "window": 1, "loss": 1, "spread": 2}


def test_the_noisy_sum_is_of_the_nearest_and_its_mean_is_rounded_and_clipped() -> None:
    labels = np.random.default_rng(0).integers(0, STEPS + 1, N)
    voters, silent = voters_of(labels), ZeroNoise()
    drawn = MEAN_OF.draw(MEAN, voters, KEYS, silent)  # type: ignore[arg-type]
    for query, total in zip(voters.queries.astype(int), drawn.tolist(), strict=True):
        values = nearest(voters, query, 7)
        assert total == sum(2 * value - STEPS for value in values)
        outcome, label = MEAN_OF.outcome({SCREEN: 1, MEAN: total})
        assert outcome == Outcome.ANSWERED
        assert abs(Fraction(sum(values), 7) - label) <= Fraction(1, 2)
    assert silent.drawn == [("gaussian", 1.5 * RANGE, MEAN, len(KEYS), 1)]
    assert [MEAN_OF.outcome({MEAN: total})[1] for total in (-(10**9), 10**9, 0)] == [
        0,
        STEPS,
        STEPS // 2,
    ]


def test_labels_in_few_bits_give_the_same_statistics() -> None:
    """A value times the cells does not fit in 16 bits, nor do distances from the middle."""
    labels, found = np.random.default_rng(0).integers(0, STEPS + 1, N), []
    median = replace(MEDIAN_OF, cells=32, threshold=None)
    for dtype in (np.int64, np.uint16):
        voters, silent = voters_of(labels.astype(dtype)), ZeroNoise()
        drawn = MEAN_OF.draw(MEAN, voters, KEYS, silent)  # type: ignore[arg-type]
        found.append((drawn.tolist(), median.counts(SCREEN, voters, KEYS, silent).tolist()))  # type: ignore[arg-type]
    assert found[0] == found[1]


def test_the_median_is_scored_by_ranks_in_cells() -> None:
    labels = np.random.default_rng(0).integers(0, STEPS + 1, N)
    voters, silent = voters_of(labels), ZeroNoise()
    drawn = MEDIAN_OF.draw(MEDIAN, voters, KEYS, silent)  # type: ignore[arg-type]
    for query, losses, label in zip(
        voters.queries.astype(int),
        [losses for _, losses, _ in silent.choices],
        drawn.tolist(),
        strict=True,
    ):
        cells = [value * 8 // (STEPS + 1) for value in nearest(voters, query, 7)]
        assert losses.tolist() == [
            max(sum(c < j for c in cells), sum(c > j for c in cells)) for j in range(8)
        ]
        middle = label * 8 // (STEPS + 1)
        assert losses[middle] == losses[sorted(cells)[3]] == losses.min()
        assert 0 <= (middle + 0.5) * (STEPS + 1) / 8 - label < 1
    assert [rate for *_, rate in silent.choices] == [Fraction(1, 2)] * len(KEYS)
    assert MEDIAN_OF.outcome({SCREEN: 1, MEDIAN: 77}) == (Outcome.ANSWERED, 77)


@pytest.mark.parametrize("mechanism", BOTH, ids=lambda m: m.kind)
def test_a_query_is_screened_by_the_most_neighbours_in_a_window(mechanism: Regression) -> None:
    labels = np.random.default_rng(1).integers(0, STEPS + 1, N)
    voters = voters_of(labels)
    for query, row in zip(voters.queries.astype(int), range(len(KEYS)), strict=True):
        cells = [value * 8 // (STEPS + 1) for value in nearest(voters, query, 7)]
        most = max(sum(j <= c < j + 2 for c in cells) for j in range(7))
        for threshold, passes in ((most - 1, 1), (most, 0)):
            silent = ZeroNoise()
            screened = replace(mechanism, threshold=threshold)
            assert screened.draw(SCREEN, voters.select([row]), KEYS[:1], silent).tolist() == [
                passes
            ]  # type: ignore[arg-type]
            assert silent.drawn == [("gaussian", 2.0, SCREEN, 1, 1)]


def test_stages_follow_the_threshold() -> None:
    for mechanism, last in zip(BOTH, (MEAN, MEDIAN), strict=True):
        assert mechanism.stages == (SCREEN, last)
        assert [
            mechanism.next_stage(known)
            for known in ({}, {SCREEN: 0}, {SCREEN: 1}, {SCREEN: 1, last: 5})
        ] == [
            SCREEN,
            None,
            last,
            None,
        ]
        assert mechanism.outcome({SCREEN: 0}) == (Outcome.ABSTAINED, -1)
        assert [(r.name, r.cap) for r in mechanism.releases(9, 4)] == [(SCREEN, 9), (last, 4)]
        plain = replace(mechanism, threshold=None)
        assert plain.stages == (last,)
        assert (plain.next_stage({}), plain.next_stage({last: 5})) == (last, None)
        assert [(r.name, r.cap) for r in plain.releases(9, 4)] == [(last, 9)]


# --- prices


def test_the_mean_and_the_screening_have_the_prices_of_votes() -> None:
    """The sum costs a Gaussian count of sensitivity 1 at sigma_mean; the bit CVPR20's screening."""
    mechanism = PrivateKnnMean(
        k=90, sampling_probability=0.3, sigma_mean=12.0, threshold=50, sigma_screen=20.0
    )
    screen, answer = mechanism.releases(1, 1)
    expected = gaussian_rdp(ORDERS, sigma=12.0, sensitivity=1.0, sampling_probability=0.3)
    np.testing.assert_allclose(release_rdp(answer, ORDERS), expected, rtol=1e-12)
    votes = PrivateKnn(
        k=90, threshold=50, sigma_screen=20.0, sigma_vote=25.0, sampling_probability=0.3
    ).releases(1, 1)[0]
    assert replace(screen, cap=1) == votes


def laws(mechanism: PrivateKnnMedian, below: int, inside: Sequence[int], above: int) -> np.ndarray:
    """The exact law of the drawn cell, float64 [cells].

    ``inside``: cells between the lowest and the highest.
    """
    counts = np.array([below, *inside, above])
    loss = [max(counts[:j].sum(), counts[j + 1 :].sum()) for j in range(len(counts))]
    weights = np.exp(-mechanism.epsilon / 2 * np.array(loss))
    return weights / weights.sum()


@pytest.mark.parametrize("gamma", [1.0, 0.3])
@pytest.mark.parametrize("epsilon", [0.3, 2.0, 6.0])
def test_no_pair_of_neighbours_costs_more_than_the_median_is_priced_at(
    epsilon: float, gamma: float
) -> None:
    """All counts of k <= 4 neighbours in three cells, every record that joins or replaces one."""
    mechanism = PrivateKnnMedian(
        k=4, cells=3, window=1, epsilon=epsilon, sampling_probability=gamma
    )
    orders, worst = np.array([1.5, 2.0, 5.0, 20.0, 100.0]), np.zeros(5)
    everyone = [c for c in itertools.product(range(5), repeat=3) if sum(c) <= 4]
    law = {c: laws(mechanism, c[0], c[1:2], c[2]) for c in everyone}
    for a, b in itertools.permutations(everyone, 2):
        moved = np.array(b) - np.array(a)
        joins = sum(a) < 4 and sorted(moved) == [0, 0, 1]
        if joins or (sum(a) == sum(b) == 4 and sorted(moved) == [-1, 0, 1]):
            q, m = law[a], (1 - gamma) * law[a] + gamma * law[b]
            for p, r in ((m, q), (q, m)):
                terms = np.outer(orders, np.log(p)) + np.outer(1 - orders, np.log(r))
                found = np.logaddexp.reduce(terms, axis=1) / (orders - 1)
                worst = np.maximum(worst, found)
    priced = release_rdp(mechanism.releases(1, 1)[0], orders)
    assert (worst <= priced).all()
    assert (worst > 0.2 * priced).all()


def test_the_bounded_range_curve_is_its_definition_and_below_the_known_bounds() -> None:
    """The supremum over t of the two-point moment, on a grid; epsilon^2 / 8-zCDP; epsilon-DP."""
    for epsilon in (0.1, 1.0, 4.0):
        found = bounded_range_rdp(ORDERS, epsilon=epsilon, sampling_probability=1.0)
        assert (found <= np.minimum(ORDERS * epsilon**2 / 8, epsilon) * 1.004).all()
        for gamma in (1.0, 0.2):
            t = np.linspace(0, epsilon, 20001)[1:-1]
            high, low = np.exp(t), np.exp(t - epsilon)
            chance = (1 - low) / (high - low)
            curve = dict(
                zip(
                    ORDERS,
                    bounded_range_rdp(ORDERS, epsilon=epsilon, sampling_probability=gamma),
                    strict=True,
                )
            )
            for order in (2.0, 9.0, 40.0):
                mixed = [(1 - gamma) + gamma * ratio for ratio in (high, low)]
                moments = [
                    (chance * mixed[0] ** u + (1 - chance) * mixed[1] ** u).max()
                    for u in (order, 1 - order)
                ]
                exact = math.log(max(moments)) / (order - 1)
                assert exact <= curve[order] <= exact * 1.004
    assert (bounded_range_rdp(ORDERS, epsilon=0.0, sampling_probability=0.5) == 0).all()
    assert np.isfinite(bounded_range_rdp(ORDERS, epsilon=1e3, sampling_probability=0.5)).all()
