"""The search by rehearsals: its candidates, and how it chooses among them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labelwall.experiment.plan import candidates
from labelwall.experiment.plan.goal import Goal, PublicRows, Score, View
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.sums import PrivateLinear, ReverseKnn
from labelwall.wall.errors import BudgetRefused
from tests.experiment.plan.planning import planned

VIEW = View("raw", 0, 20, 20, 300)
GOAL = Goal(1.0, 1e-5, 5000, 400, 2)


def test_candidates_fit_their_features() -> None:
    linears = [(m.axes, m.steps) for m in candidates.linear(PrivateLinear, VIEW, 3)]
    assert linears == [(4, 30), (8, 30), (16, 30), (20, 30), (16, 1), (20, 1)]
    assert candidates.linear(PrivateLinear, replace(VIEW, whiten=16), 3) == []
    assert [m.axes for m in candidates.linear(PrivateLinear, replace(VIEW, axes=0), 3)] == [None]
    assert {m.centroids for m in candidates.cells(VIEW, 3)} == {3, 10, 40, 100}
    assert {m.centroids for m in candidates.cells(replace(VIEW, rows=5), 3)} == {1}
    assert candidates.cells(replace(VIEW, dimensions=500), 3) == []
    assert candidates.cells(replace(VIEW, dimensions=500, whiten=64), 3)


def test_neighbours_of_a_good_candidate_are_valid() -> None:
    for found in candidates.cells(VIEW, 3):
        for near in candidates.around_cells(VIEW, found):
            assert max(near.neighbours, near.row_neighbours) <= near.centroids <= 100
    for entry in candidates.linear(PrivateLinear, VIEW, 3):
        for close in candidates.around_linear(VIEW, entry):
            assert close.axes is not None
            assert 1 <= close.axes <= 20


def public(score) -> PublicRows:
    return PublicRows(3, tuple, lambda: (VIEW,), score, "rows")


def test_the_best_of_the_refined_is_chosen_with_the_whole_budget() -> None:
    """A hump at 11 axes, which no coarse candidate has."""

    def score(_view: View, mechanism: Mechanism, times: int) -> Score:
        assert isinstance(mechanism, PrivateLinear)
        assert mechanism.axes is not None
        far = abs(mechanism.axes - 11) + abs(mechanism.steps - 30)
        return Score(1.0, 0.9 - 0.01 * far - 0.001 * mechanism.clip, 0.01 if times > 1 else 0.0)

    found = planned(PrivateLinear(), GOAL, public(score))
    chosen = found.chosen.mechanism
    assert (chosen.axes, chosen.steps) == (11, 30)
    assert 0.99 < found.chosen.epsilon <= 1.0
    assert found.chosen.asked == 2 * chosen.steps  # two rounds
    assert found.chosen.answered == 400
    accuracies = [choice.accuracy for choice in found.tried[:5]]
    assert accuracies == sorted(accuracies, reverse=True)


def test_a_tiny_budget_has_one_step() -> None:
    """More would want more noise than can be drawn."""
    rehearsals = public(lambda *_: Score(1.0, 0.9, 0.0))
    found = planned(PrivateLinear(), replace(GOAL, epsilon=0.012), rehearsals)
    assert found.chosen.mechanism.steps == 1
    assert found.chosen.epsilon <= 0.012


def test_least_accuracy_raises_the_margin() -> None:
    def score(_view: View, mechanism: Mechanism, times: int) -> Score:
        assert isinstance(mechanism, ReverseKnn)
        return (
            Score(0.5, 0.95, 0.0)
            if mechanism.margin > mechanism.require("sigma")
            else Score(1.0, 0.7, 0.0)
        )

    found = planned(ReverseKnn(), replace(GOAL, min_accuracy=0.9), public(score))
    assert found.chosen.mechanism.margin > 0
    assert found.chosen.answered == 200
    with pytest.raises(BudgetRefused):
        planned(ReverseKnn(), replace(GOAL, min_accuracy=0.99), public(score))


@pytest.mark.parametrize(
    ("told", "behind", "steps"), [(True, 0.01, 1), (False, 0.01, 30), (False, 0.2, 1)]
)
def test_a_run_may_count_records_that_nobody_guessed(told: bool, behind: float, steps: int) -> None:
    """By the first of many steps, where these are about as good."""

    def score(_view: View, mechanism: Mechanism, times: int) -> Score:
        assert isinstance(mechanism, PrivateLinear)
        worse = 0.0 if mechanism.steps == 1 else behind + 0.001 * abs(mechanism.steps - 30)
        return Score(1.0, 0.9 - worse, 0.02 if times > 1 else 0.0)

    found = planned(PrivateLinear(), replace(GOAL, told=told), public(score))
    assert found.chosen.mechanism.steps == steps
    assert found.tried[0].mechanism == found.chosen.mechanism
