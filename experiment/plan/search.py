"""The search among candidates of a kind, which are rehearsed on public rows.

A candidate gets its noise from the budget. All are rehearsed once, then neighbours of
the best, then the best of both a few more times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic

from ...teacher.accounting.accountant import certified_epsilon, require_affordable
from ...teacher.accounting.plan import Plan
from ...teacher.mechanisms.base import M, Priced
from ...teacher.mechanisms.calibration import calibrate
from ...wall.errors import BudgetRefused, InvalidInput
from ...wall.progress import Progress
from .goal import (
    Choice,
    Forecast,
    Goal,
    Optimum,
    PublicRows,
    View,
)

REFINED, FINAL = 3, 5  # candidates whose neighbours are tried, and that are rehearsed again
TIMES = 4  # rehearsals of the last candidates


@dataclass(frozen=True)
class Candidates(Generic[M]):
    """What to rehearse of one kind.

    ``coarse``: for features and a number of classes; ``around``: neighbours of a good one;
    ``stricter``: the same with margins, for fewer and better labels.
    """

    coarse: Callable[[View, int], list[M]]
    around: Callable[[View, M], list[M]]
    stricter: Callable[[M], list[M]]

    def plan(self, _: M, goal: Goal, public: PublicRows, progress: Progress) -> Optimum[M]:
        """See ``goal.Planner``. The configuration's own fields do not count."""
        goal.check()
        search = Search(goal, public, progress)
        tried = search.once(
            [(view, m) for view in public.views() for m in self.coarse(view, public.num_classes)]
        )
        if not tried:
            rule = "at least 2, of different features, for a rehearsal"
            raise InvalidInput("public rows", rule, public.available)
        tried += search.once(
            [(_seen(best), m) for best in tried[:REFINED] for m in self._near(best, tried)]
        )
        tried.sort(key=_worth)
        tried = search.again(tried[:FINAL]) + tried[FINAL:]
        chosen = tried[0]
        if chosen.forecast.accuracy < goal.min_accuracy:
            chosen = self._strict(search, chosen)
        exact = search.certified(chosen)
        frontier = search.frontier(chosen)
        note = f"The last row is certified: {exact.within(goal)}."
        return Optimum(exact, (*frontier, exact), public.source, note, tuple(tried))

    def _near(self, best: Choice[M], tried: Sequence[Choice[M]]) -> list[M]:
        known = {(entry.view, _open(entry.mechanism)) for entry in tried}
        near = dict.fromkeys(self.around(_seen(best), _open(best.mechanism)))
        return [m for m in near if (best.view, m) not in known]

    def _strict(self, search: Search, chosen: Choice[M]) -> Choice[M]:
        """The first of ``stricter`` that is accurate enough. Raises BudgetRefused."""
        for mechanism in self.stricter(chosen.mechanism):
            found = search.rehearsed(_seen(chosen), mechanism, TIMES)
            if found.forecast.answered >= 1 and found.forecast.accuracy >= search.goal.min_accuracy:
                return found
        raise search.goal.nothing_affordable()


@dataclass(frozen=True)
class Search:
    """Rehearsals for a goal, each with its noise."""

    goal: Goal
    public: PublicRows
    progress: Progress

    def once(self, candidates: Sequence[tuple[View, M]]) -> list[Choice[M]]:
        """Each that the budget allows rehearsed once, best first.

        Raises BudgetRefused where it allows none: they need more noise than can be drawn.
        """
        found, refused = [], None
        for number, (view, mechanism) in enumerate(candidates):
            what = f"rehearsing {mechanism.kind} on {view.features} features"
            self.progress(what, number, len(candidates))
            try:
                found.append(self.rehearsed(view, mechanism, 1))
            except BudgetRefused as error:
                refused = error
            self.progress(what, number + 1, len(candidates))
        if refused is not None and not found:
            raise refused
        return sorted(found, key=_worth)

    def again(self, choices: Sequence[Choice[M]]) -> list[Choice[M]]:
        """Each rehearsed TIMES, best first."""
        found = []
        for number, choice in enumerate(choices):
            self.progress("rehearsing the best again", number, len(choices))
            found.append(self.rehearsed(_seen(choice), _open(choice.mechanism), TIMES))
            self.progress("rehearsing the best again", number + 1, len(choices))
        return sorted(found, key=_worth)

    def rehearsed(self, view: View, mechanism: M, times: int, share: float = 1.0) -> Choice[M]:
        """With its noise for a ``share`` of the budget. Raises BudgetRefused."""
        assert self.public.rehearse is not None
        goal, asked = self.goal, self.goal.rounds * mechanism.charges_a_round
        epsilon = share * goal.epsilon
        (solved,) = calibrate([Priced(mechanism, asked, asked)], epsilon, goal.delta)
        require_affordable(Plan(epsilon, goal.delta, (Priced(solved, asked, asked).slot(),)))
        score = self.public.rehearse(view, solved, times)
        forecast = Forecast(
            asked, asked, 1.0, goal.queries * score.answered, score.accuracy, score.spread
        )
        return Choice(epsilon, solved, forecast, view)

    def frontier(self, choice: Choice[M]) -> list[Choice[M]]:
        """The same mechanism for the shares below 1 that allow it, rehearsed as often."""
        found = []
        for share in self.goal.shares[:-1]:
            with suppress(BudgetRefused):
                mechanism = _open(choice.mechanism)
                found.append(self.rehearsed(_seen(choice), mechanism, TIMES, share))
        return found

    def certified(self, choice: Choice[M]) -> Choice[M]:
        """With the accountant's own certificate. Raises BudgetRefused where it is too high."""
        plan = choice.plan(self.goal)
        require_affordable(plan)
        return replace(choice, epsilon=certified_epsilon(plan))


def _open(mechanism: M) -> M:
    """With its noise left to the budget."""
    return replace(mechanism, **dict.fromkeys(mechanism.calibrated))


def _seen(choice: Choice[M]) -> View:
    assert choice.view is not None
    return choice.view


def _worth(choice: Choice[M]) -> float:
    return -choice.worth
