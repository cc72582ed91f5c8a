"""What each kind of mechanism tries on public rows, and the search among it; None where none is.

Votes and individual budgets are simulated (votes.py, values.py, ind_knn.py), as the noise of a
sampled vote takes seconds to price. Mechanisms that ask once a round are rehearsed: a candidate
gets its noise from the budget; all are rehearsed once, then neighbours of the best, then the best
of both a few more times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from ...teacher.accounting.accountant import require_affordable
from ...teacher.accounting.plan import Plan
from ...teacher.mechanisms.base import M, Priced
from ...teacher.mechanisms.calibration import calibrate
from ...teacher.mechanisms.sums import (
    MAX_NEIGHBOURS,
    MAX_STEPS,
    LinearSums,
    PrivateLinear,
    PrivateLinearAttributes,
    PrivateLinearValue,
    ReverseKnn,
)
from ...wall.errors import BudgetRefused, InvalidInput
from ...wall.progress import Progress
from ..linear.measure import MANY_STEPS
from . import ind_knn, values, votes
from .goal import Choice, Goal, Optimum, Planner, PublicRows, View

REFINED, FINAL = 3, 5  # candidates whose neighbours are tried, and that are rehearsed again
TIMES = 4  # rehearsals of the last candidates
CELLS = (10, 40, 160, 640)
ROWS_A_CELL = 3  # public rows, at least: fewer do not tell where cells are
PLAIN = 64  # dimensions beyond which neighbours want whitened features
SHAPES = ((1, 1), (2, 3))  # neighbours and row_neighbours
FACTORS = (0.5, 0.7, 1.4, 2.0)  # of the cells, around a good number
MARGINS = (1.0, 2.0, 4.0, 8.0)  # in deviations of the noise on a row's votes
AXES = (4, 8, 16, 32, 64, 128, 256)
# In half ranges; residuals of classes and attributes are clipped as their default says.
CLIPS = {"value": (0.1, 0.25, 0.5)}
LINEAR_MARGINS = (0.1, 0.2, 0.4, 0.6, 0.8)  # in probability
ONE_STEP_AXES = (16, 48)  # with a single step, for tiny budgets: many want too much noise
L = TypeVar("L", bound=LinearSums)


def cells(view: View, classes: int) -> list[ReverseKnn]:
    """Every number of cells with hard and with soft votes."""
    if not view.whiten and view.dimensions > PLAIN:
        return []
    most = max(1, view.rows // ROWS_A_CELL)
    cells = sorted({min(count, most) for count in (classes, *CELLS) if count >= classes} or {most})
    return [
        ReverseKnn(
            centroids=count, neighbours=min(neighbours, count), row_neighbours=min(near, count)
        )
        for count in cells
        for neighbours, near in SHAPES
    ]


def around_cells(view: View, good: ReverseKnn) -> list[ReverseKnn]:
    """Twice, half as many cells, and between; either kind of neighbours, one more and one fewer."""
    most = max(1, view.rows // ROWS_A_CELL)
    highest = min(good.centroids, MAX_NEIGHBOURS)
    near = [
        replace(good, centroids=count)
        for count in (min(round(good.centroids * factor), most) for factor in FACTORS)
        if count >= max(good.neighbours, good.row_neighbours)
    ]
    for name in ("neighbours", "row_neighbours"):
        values = (getattr(good, name) + step for step in (-1, 1, 3))
        near += [replace(good, **{name: value}) for value in values if 1 <= value <= highest]
    return near


def stricter_cells(good: ReverseKnn) -> list[ReverseKnn]:
    """With margins, rising."""
    noise = good.require("sigma") * math.sqrt(2 * good.row_neighbours)
    return [replace(good, margin=float(round(margin * noise))) for margin in MARGINS]


def linear(kind: type[L], view: View, classes: int) -> list[L]:
    """Numbers of axes up to the view's, some of them with one step; it needs no whitening."""
    if view.whiten:
        return []
    if not view.axes:
        return [kind()]
    many, few = (
        [kind(axes=count) for count in sorted({min(count, view.axes) for count in counts})]
        for counts in (AXES, ONE_STEP_AXES)
    )
    return many + [replace(each, steps=1) for each in few]


def around_linear(view: View, good: L) -> list[L]:
    """A half more and a third fewer axes; twice and half the steps; the other clipping."""
    near = [replace(good, clip=clip) for clip in CLIPS.get(good.label_space, ())]
    steps = (good.steps // 2, min(2 * good.steps, MAX_STEPS))
    near += [replace(good, steps=count) for count in steps if count]
    if good.axes is not None:
        sizes = (round(good.axes / 1.5), min(round(good.axes * 1.5), view.axes))
        near += [replace(good, axes=count) for count in sizes if count]
    return near


def stricter_linear(good: L) -> list[L]:
    """With margins, rising, where its labels have any."""
    margins = LINEAR_MARGINS if good.label_space != "value" else ()
    fields: list[dict[str, Any]] = [{"margin": margin} for margin in margins]
    return [replace(good, **more) for more in fields]


@dataclass(frozen=True)
class Rehearser:
    """Rehearses candidates for a goal on public rows."""

    goal: Goal
    public: PublicRows
    progress: Progress

    def each(self, candidates: Sequence[tuple[View, M]], times: int = 1) -> list[Choice[M]]:
        """Each that the budget allows rehearsed, best first.

        Raises BudgetRefused where it allows none: they need more noise than can be drawn.
        """
        choices, refused = [], None
        for number, (view, mechanism) in enumerate(candidates, start=1):
            what = f"rehearsing {mechanism.kind} on {view.features} features"
            self.progress(what, number - 1, len(candidates))
            try:
                choices.append(self.rehearsed(view, mechanism, times))
            except BudgetRefused as error:
                refused = error
            self.progress(what, number, len(candidates))
        if refused is not None and not choices:
            raise refused
        return sorted(choices, key=_worth)

    def rehearsed(self, view: View, mechanism: M, times: int) -> Choice[M]:
        """With its noise for the budget. Raises BudgetRefused."""
        assert self.public.rehearse is not None
        goal, asked = self.goal, self.goal.rounds * mechanism.charges_a_round
        epsilon = goal.epsilon
        (solved,) = calibrate([Priced(_open(mechanism), asked, asked)], epsilon, goal.delta)
        require_affordable(Plan(epsilon, goal.delta, (Priced(solved, asked, asked).slot(),)))
        score = self.public.rehearse(view, solved, times)
        answered = goal.queries * score.answered
        return Choice(epsilon, solved, asked, asked, answered, score.accuracy, score.spread, view)


@dataclass(frozen=True)
class Candidates(Generic[M]):
    """What to rehearse of one kind.

    ``coarse``: for features and a number of classes; ``around``: neighbours of a good one;
    ``stricter``: the same with margins, for fewer and better labels.
    """

    coarse: Callable[[View, int], list[M]]
    around: Callable[[View, M], list[M]]
    stricter: Callable[[M], list[M]]

    def plan(self, mechanism: M, goal: Goal, public: PublicRows, progress: Progress) -> Optimum[M]:
        """See ``goal.Planner``. The configuration's own fields do not count."""
        goal.check()
        rehearser = Rehearser(goal, public, progress)
        tried = rehearser.each(
            [(view, m) for view in public.views() for m in self.coarse(view, public.num_classes)]
        )
        if not tried:
            rule = f"such that {mechanism.kind} can be rehearsed on them"
            raise InvalidInput("features", rule, [str(view) for view in public.views()])
        tried += rehearser.each(
            [(_seen(best), m) for best in tried[:REFINED] for m in self._near(best, tried)]
        )
        tried.sort(key=_worth)
        last = [(_seen(choice), choice.mechanism) for choice in tried[:FINAL]]
        tried = self._counting_first(goal, rehearser.each(last, TIMES)) + tried[FINAL:]
        chosen = tried[0]
        if chosen.accuracy < goal.min_accuracy:
            chosen = self._strict(rehearser, chosen)
        return Optimum(goal, chosen.certified(goal), public.source, tried=tuple(tried))

    def _counting_first(self, goal: Goal, last: list[Choice[M]]) -> list[Choice[M]]:
        """Where nobody guessed the records, many steps before few that are hardly better: a run
        corrects axes by the count of the first of many.
        """
        if goal.told or last[0].of_values:
            return last
        least = last[0].worth - 2 * last[0].spread * last[0].answered
        for place, choice in enumerate(last):
            steps = choice.mechanism.query_form.steps or MANY_STEPS
            if steps >= MANY_STEPS and choice.worth >= least:
                return [choice, *last[:place], *last[place + 1 :]]
        return last

    def _near(self, best: Choice[M], tried: Sequence[Choice[M]]) -> list[M]:
        known = {(entry.view, _open(entry.mechanism)) for entry in tried}
        near = dict.fromkeys(self.around(_seen(best), _open(best.mechanism)))
        return [m for m in near if (best.view, m) not in known]

    def _strict(self, rehearser: Rehearser, chosen: Choice[M]) -> Choice[M]:
        """The first of ``stricter`` that is accurate enough. Raises BudgetRefused."""
        for mechanism in self.stricter(chosen.mechanism):
            choice = rehearser.rehearsed(_seen(chosen), mechanism, TIMES)
            if choice.answered >= 1 and choice.accuracy >= rehearser.goal.min_accuracy:
                return choice
        raise rehearser.goal.nothing_affordable()


def _open(mechanism: M) -> M:
    """With its noise left to the budget."""
    return replace(mechanism, **dict.fromkeys(mechanism.calibrated))


def _seen(choice: Choice[M]) -> View:
    assert choice.view is not None
    return choice.view


def _worth(choice: Choice[Any]) -> float:
    return -choice.worth


def _of_linear(kind: type[L]) -> Candidates[L]:
    return Candidates(partial(linear, kind), around_linear, stricter_linear)


REHEARSED: dict[str, Candidates[Any]] = {
    "reverse_knn": Candidates(cells, around_cells, stricter_cells),
    "private_linear": _of_linear(PrivateLinear),
    "private_linear_attributes": _of_linear(PrivateLinearAttributes),
    "private_linear_value": _of_linear(PrivateLinearValue),
}
PLANNERS: dict[str, Planner | None] = {
    "private_knn": votes.plan,
    "private_radius": votes.plan,
    "ind_knn": ind_knn.plan,
    **{kind: candidates.plan for kind, candidates in REHEARSED.items()},
    "private_knn_mean": values.plan,
    "private_knn_median": values.plan,
    "naive_knn": None,
    "lnmax": None,
    "gnmax": None,
    "confident_gnmax": None,
    "radius": None,
    "batch_knn": None,
    "private_knn_attributes": None,
    "gnmax_attributes": None,
}
