"""The planner: its candidates, its choice and what comes of it, with Ind-KNN too."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.experiment.plan import candidates, stand_ins
from labelwall.experiment.plan.candidates import threshold_at
from labelwall.experiment.plan.planner import (
    Choice,
    Forecast,
    Goal,
    RehearsalRows,
    View,
    affordable,
    answers,
    bit_rdp,
)
from labelwall.experiment.plan.search import planned_config
from labelwall.experiment.plan.stand_ins import ScaledVoters, StandInNoise, conversations
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.curves import ORDERS, argmax_rdp
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.sums import PrivateLinear, PrivateLinearValue, ReverseKnn
from labelwall.teacher.mechanisms.values import PrivateKnnMean
from labelwall.teacher.mechanisms.votes import PrivateKnn, PrivateRadius
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.errors import BudgetRefused
from labelwall.wall.features.embedder import unit_length
from tests.experiment.plan import planning
from tests.experiment.plan.planning import CLASSES, PRIVATE, PUBLIC, TEST, embedded, planned, staged
from tests.seeded_noise import SeededNoise

VIEW = View("raw", 0, 20, 20, 300, 3, 5000)
GOAL = Goal(1.0, 1e-5, 5000, 400, 2)


NEIGHBOURS = [
    (candidates.cells, ReverseKnn()),
    (candidates.votes, PrivateKnn()),
    (candidates.values, PrivateKnnMean()),
]


def test_candidates_fit_their_features() -> None:
    linears = [(m.axes, m.steps) for m in candidates.linear(PrivateLinear(), VIEW)]
    assert linears == [(4, 30), (8, 30), (16, 30), (20, 30), (16, 1), (20, 1)]
    assert candidates.linear(PrivateLinear(), replace(VIEW, whiten=16)) == []
    assert [m.axes for m in candidates.linear(PrivateLinear(), replace(VIEW, axes=0))] == [None]
    assert candidates.linear(PrivateLinear(axes=8), replace(VIEW, axes=0)) == []
    cells = ReverseKnn()
    assert {m.centroids for m in candidates.cells(cells, VIEW)} == {12, 40, 100}
    assert {m.centroids for m in candidates.cells(cells, replace(VIEW, rows=5))} == {1}
    wide = replace(VIEW, dimensions=500)
    for near, mechanism in NEIGHBOURS:
        assert near(mechanism, wide) == []
        assert near(mechanism, replace(wide, whiten=64))


def test_neighbours_of_a_good_candidate_are_valid() -> None:
    for found in candidates.cells(ReverseKnn(), VIEW):
        for near in candidates.around_cells(VIEW, found):
            assert max(near.neighbours, near.row_neighbours) <= near.centroids
            assert 12 <= near.centroids <= 100
    for entry in candidates.linear(PrivateLinear(), VIEW):
        for close in candidates.around_linear(VIEW, entry):
            assert close.axes is not None
            assert 1 <= close.axes <= 20


def public(score) -> RehearsalRows:
    return RehearsalRows(lambda: (VIEW,), score)


def test_the_best_of_the_refined_is_chosen_with_the_whole_budget() -> None:
    """A hump at 11 axes, which no coarse candidate has."""

    def score(_view: View, mechanism: Mechanism, draws: range, _asked: int) -> Forecast:
        assert isinstance(mechanism, PrivateLinear)
        assert mechanism.axes is not None
        far = abs(mechanism.axes - 11) + abs(mechanism.steps - 30)
        return Forecast(
            1.0, 0.9 - 0.01 * far - 0.001 * mechanism.clip, 0.01 if len(draws) > 1 else 0.0
        )

    found = planned(PrivateLinear(), GOAL, public(score))
    chosen = found.chosen.mechanism
    assert (chosen.axes, chosen.steps) == (11, 30)
    assert 0.99 < found.chosen.epsilon <= 1.0
    assert found.chosen.asked == 2 * chosen.steps  # two rounds
    assert found.chosen.answered == 400
    accuracies = [choice.accuracy for choice in found.tried[:5]]
    assert accuracies == sorted(accuracies, reverse=True)


def test_forecasts_of_values_below_r2_0_tell_candidates_apart() -> None:
    def score(_view: View, mechanism: Mechanism, _draws: range, _asked: int) -> Forecast:
        assert isinstance(mechanism, PrivateLinearValue)
        assert mechanism.axes is not None
        return Forecast(1.0, 0.01 * mechanism.axes - 1, 0.0)

    found = planned(PrivateLinearValue(), GOAL, public(score))
    assert found.chosen.mechanism.axes == VIEW.axes
    assert found.chosen.accuracy == pytest.approx(0.01 * VIEW.axes - 1)


def test_a_tiny_budget_has_one_step() -> None:
    """More would want more noise than can be drawn."""
    rehearsals = public(lambda *_: Forecast(1.0, 0.9, 0.0))
    found = planned(PrivateLinear(), replace(GOAL, epsilon=0.012), rehearsals)
    assert found.chosen.mechanism.steps == 1
    assert found.chosen.epsilon <= 0.012


@pytest.mark.parametrize(("accuracy", "share"), [(0.2, 1 / 7), (0.9, 1.0)])
def test_a_kind_far_behind_another_is_left_after_a_part_of_its_candidates(accuracy, share) -> None:
    tried = set[Mechanism]()

    def score(_view: View, mechanism: Mechanism, _draws: range, _asked: int) -> Forecast:
        tried.add(mechanism)
        return Forecast(1.0, accuracy, 0.01)

    planned(PrivateKnn(), replace(GOAL, worth=0.5 * GOAL.queries), public(score))
    coarse = set(candidates.votes(PrivateKnn(), VIEW))
    assert len(coarse & tried) == math.ceil(share * len(coarse))


def test_the_fast_price_of_an_argmax_is_within_one_percent() -> None:
    decides = (ORDERS >= 2) & (ORDERS <= 32)
    exact = argmax_rdp(ORDERS[decides], sigma=16.0, sample_rate=0.5)
    ratio = bit_rdp(16 / math.sqrt(2), 0.5)[decides] / exact
    assert np.abs(ratio - 1).max() < 0.01


def rows_of(tmp_path: Path, mechanism: Mechanism, records: int = PRIVATE) -> RehearsalRows:
    """400 labelled rows that stand for so many records, in one view."""
    stage = staged(tmp_path, mechanism, TEST, records)
    view = stage.views[0]
    return RehearsalRows(lambda: (view,), stage.score)


@pytest.mark.parametrize(("kind", "analytic"), [(PrivateKnn, 300.6), (PrivateRadius, 304.4)])
def test_a_choice_fits_the_budget_and_no_affordable_neighbour_is_better(
    tmp_path, small_grids, kind, analytic
) -> None:
    """``analytic``: right labels by a search whose rates were computed and not drawn."""
    goal, stage = Goal(3.0, 1e-5, PRIVATE, PUBLIC, 2), rows_of(tmp_path, kind())
    best = planned(kind(), goal, stage).chosen
    plan = best.plan(goal)
    assert 0.97 * 3 < certified_epsilon(plan) == best.epsilon <= 3
    assert [release.cap for release in plan.releases()] == [best.asked, best.cap]
    assert best.right > 0.98 * analytic
    less = planned(kind(), replace(goal, epsilon=1.0), stage).chosen
    assert less.right < best.right
    with pytest.raises(BudgetRefused, match=r"budget\.epsilon"):
        planned(kind(), replace(goal, epsilon=0.001), stage)
    votes = best.mechanism.expected_votes(PRIVATE)
    fields = ["sample_rate", "sigma_screen", "sigma_vote", "k" if kind.swap else "share"]
    others = [
        replace(best.mechanism, **{name: type(value)(value * factor)})
        for name in fields
        for factor in (0.67, 1.5)
        for value in [getattr(best.mechanism, name)]
        if name != "sample_rate" or value * factor <= 1
    ]
    others.append(replace(best.mechanism, threshold=round(votes / 2)))
    for other in others:
        score = stage.rehearse(best.view, other, range(4, 12), best.asked)
        asked = affordable(other, score.answered, goal)
        right = answers(asked, score.answered)[1] * score.accuracy
        assert right <= 1.02 * best.right, other


def test_more_budget_explains_values_better_and_queries_stay_as_given(tmp_path: Path) -> None:
    stage, best = rows_of(tmp_path, PrivateKnnMean(), 20_000), list[Choice]()
    for epsilon in (0.125, 1.0):
        optimum = planned(PrivateKnnMean(), Goal(epsilon, 1e-5, 20_000, 500, 1, asked=120), stage)
        assert {choice.asked for choice in optimum.tried} == {120}
        best.append(optimum.chosen)
    accuracies = [choice.accuracy for choice in best]
    assert accuracies == sorted(accuracies)


LENGTH = unit_length(planning.EMBEDDER.spec, planning.DIMENSIONS)
RBF = IndKnn(kernel="rbf", bandwidth=0.6, near=0.7, threshold=0.1)
SMALL = IndKnn(threshold=0.3, sigma_label=0.3, sigma_count=20.0, rho=0.08)


def asked_for_real(mechanism: IndKnn, asked: int) -> float:
    """The share that is right, on a tape. 400 queries here and 100 rows in a rehearsal: a deviation
    of 0.05 between the two shares."""
    (records, labels), (queries, truth) = embedded(1, PRIVATE), embedded(2, asked)
    similar = ExactIndex(records, np.arange(PRIVATE), threads=1).similar(
        queries, mechanism.select(LENGTH)
    )
    keys = [str(q) for q in range(asked)]
    values, _ = mechanism.answer(
        similar, np.full(PRIVATE, FULL), labels, CLASSES, keys, SeededNoise(5)
    )
    return float((values[:, 1] == truth).mean())


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param({}, id="cosine"),
        pytest.param(
            {"kernel": "rbf", "bandwidth": 0.8, "near": 0.3}, id="rbf", marks=pytest.mark.slow
        ),
    ],
)
def test_the_forecast_comes_true_and_no_neighbour_is_better(tmp_path: Path, kernel: dict) -> None:
    stage = staged(tmp_path, mechanism := IndKnn(**kernel), TEST)
    public = RehearsalRows(lambda: stage.views[:1], stage.score)
    goal = Goal(1.0, 1e-5, PRIVATE, PUBLIC, 2, asked=PUBLIC)
    best = planning.planned(mechanism, goal, public).chosen
    config = planned_config(replace(stage.settings, rounds=stage.settings.rounds * 2), best)
    assert 0.99 < best.epsilon == certified_epsilon(config.plan()) <= 1
    assert best.mechanism.rho == pytest.approx(0.0305527, abs=1e-7)  # all that the budget buys
    assert best.answered == best.cap == best.asked == PUBLIC
    assert [r.queries for r in config.rounds] == [PUBLIC // 2, PUBLIC // 2]
    assert best.accuracy == pytest.approx(asked_for_real(best.mechanism, PUBLIC), abs=0.08)
    less = planning.planned(mechanism, replace(goal, epsilon=0.25), public).chosen
    assert less.right < best.right
    for name, factor in (
        ("threshold", 0.5),
        ("threshold", 1.3),
        ("sigma_label", 0.4),
        ("sigma_label", 2.5),
        ("sigma_count", 0.2),
        ("sigma_count", 3.0),
    ):
        other = replace(best.mechanism, **{name: factor * getattr(best.mechanism, name)})
        score = stage.score(best.view, other, range(20, 36), PUBLIC)
        assert score.accuracy <= best.accuracy + 0.02, name


def voters(records: int) -> ScaledVoters:
    (x, y), (asked, _) = embedded(1, 120), embedded(2, 120)
    index = ExactIndex(x, np.arange(120), threads=1)
    return ScaledVoters(index, y, CLASSES, asked, LENGTH, records=records)


def labels(mechanism: IndKnn, records: int, asked: int, seed: int = 4) -> np.ndarray:
    noise = StandInNoise(np.random.default_rng(seed))
    return conversations(mechanism, voters(records), asked, noise)


@pytest.mark.parametrize("mechanism", [SMALL, replace(RBF, sigma_count=20.0, rho=0.08)])
def test_a_row_that_counts_several_times_answers_as_its_copies(monkeypatch, mechanism) -> None:
    """Shares of each class, over 40 conversations of 120 queries: deviations below 0.01."""

    def shares() -> np.ndarray:
        drawn = [labels(mechanism, 3600, 120, seed) for seed in range(40)]
        return np.bincount(np.concatenate(drawn), minlength=CLASSES) / (40 * 120)

    copied = shares()
    monkeypatch.setattr(stand_ins, "MOST_COPIED", 1800)  # 15 copies, each of which counts twice
    assert shares() == pytest.approx(copied, abs=0.03)


def test_more_queries_than_rows_spend_budgets_as_fast() -> None:
    half = replace(SMALL, rho=0.04)
    once, truth = labels(half, 600, 120), embedded(2, 120)[1]
    assert labels(SMALL, 600, 240).tolist() == once.tolist()
    rich, again = labels(SMALL, 600, 120), labels(SMALL, 600, 30)  # four conversations
    assert np.mean(once == truth) < np.mean(rich == truth) < np.mean(again == truth)


def test_a_level_is_the_threshold_at_that_cosine() -> None:
    angle = np.arccos(0.4)
    distance = (1 - np.cos(angle)) ** 2 + np.sin(angle) ** 2
    assert threshold_at(IndKnn(), 0.4) == 0.4
    assert threshold_at(RBF, 0.4) == pytest.approx(np.exp(-(distance - 0.49) / 0.36))
    assert threshold_at(RBF, 0.99) == 1.0
