"""The one planner: rehearse a kind's candidates on public rows, then neighbours of the best.

A mechanism that asks once a round, or answers every query, gets its noise from the budget. Where
queries are screened, a candidate has noise, and the budget decides how many queries it pays for.
The last candidates are rehearsed a few more times.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Generic

import numpy as np

from ...teacher.accounting.accountant import require_affordable
from ...teacher.accounting.conversion import epsilon_from_rdp
from ...teacher.accounting.curves import ORDERS, l2_sensitivity, screening_rdp
from ...teacher.accounting.plan import Plan
from ...teacher.mechanisms.base import M, Priced
from ...teacher.mechanisms.calibration import calibrate
from ...teacher.mechanisms.votes import SampledVotes
from ...wall.errors import BudgetRefused, InvalidInput
from ...wall.progress import Progress
from .goal import Choice, Goal, Optimum, PublicRows, View

REFINED, FINAL = 3, 5  # candidates whose neighbours are tried, and that are rehearsed again
SLACK = 0.05  # of the least accuracy: neighbours of those that are nearly good enough
TIMES = 4  # more rehearsals of the last candidates
VALUES_ASKED = 300  # queries, where no round says how many
AIM = 0.995  # of the budget: the price of an argmax is nearly that of a bit
RATED = 1000  # rows that the share of answers is known from, about


@dataclass(frozen=True)
class Rehearser:
    """Rehearses candidates for a goal on public rows."""

    goal: Goal
    public: PublicRows
    progress: Progress
    _noise: dict[str, dict[str, Any]] = field(default_factory=dict)

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
        return sorted(choices, key=self.order)

    def order(self, choice: Choice[Any], slack: float = 0.0) -> tuple[bool, float]:
        """The best comes first: of those that are accurate enough, where any is."""
        return choice.accuracy < self.goal.min_accuracy - slack, -choice.worth

    def rehearsed(self, view: View, mechanism: M, times: int) -> Choice[M]:
        """With the noise, or the queries, that the budget allows. Raises BudgetRefused."""
        assert self.public.rehearse is not None
        goal = self.goal
        if isinstance(mechanism, SampledVotes):
            score = self.public.rehearse(view, mechanism, times)
            asked, cap, answered = affordable(mechanism, score.answered, goal)
        else:
            asked = goal.asked or min(goal.queries, max(goal.rounds, VALUES_ASKED))
            if mechanism.once_a_round:
                asked = goal.rounds * mechanism.charges_a_round
            mechanism = self._with_noise(mechanism, asked)
            score = self.public.rehearse(view, mechanism, times)
            cap = asked
            rows = goal.queries if mechanism.once_a_round else asked
            answered = rows * score.answered
        accuracy = max(score.accuracy, 0.0)
        return Choice(goal.epsilon, mechanism, asked, cap, answered, accuracy, score.spread, view)

    def _with_noise(self, mechanism: M, asked: int) -> M:
        """With its noise for the budget, solved once for each price. Raises BudgetRefused."""
        goal, open_ = self.goal, _shape(mechanism)
        price = repr(open_.with_noise(1.0, asked).releases(asked, asked))
        if price not in self._noise:
            (solved,) = calibrate([Priced(open_, asked, asked)], goal.epsilon, goal.delta)
            slot = Priced(solved, asked, asked).slot()
            require_affordable(Plan(goal.epsilon, goal.delta, (slot,)))
            self._noise[price] = {name: vars(solved)[name] for name in open_.calibrated}
        return replace(mechanism, **self._noise[price])

    def fitted(self, choice: Choice[M]) -> Choice[M]:
        """With the accountant's certificate, by as much noise of the screening as that wants."""
        if isinstance(choice.mechanism, SampledVotes):
            entry = Priced(replace(choice.mechanism, sigma_screen=None), choice.asked, choice.cap)
            (mechanism,) = calibrate([entry], self.goal.epsilon, self.goal.delta, self.progress)
            choice = replace(choice, mechanism=mechanism)
        return choice.certified(self.goal)


@dataclass(frozen=True)
class Candidates(Generic[M]):
    """What to rehearse of one kind.

    ``coarse``: for a mechanism of the kind and features; ``around``: neighbours of a good one, ever
    nearer; ``stricter``: the same with margins, for fewer and better labels. ``times``: rehearsals
    of each.
    """

    coarse: Callable[[M, View], list[M]]
    around: Sequence[Callable[[View, M], list[M]]] = ()
    stricter: Callable[[M], list[M]] = lambda _: []
    times: int = 1

    def plan(self, mechanism: M, goal: Goal, public: PublicRows, progress: Progress) -> Optimum[M]:
        """See ``goal.Planner``. The configuration's own fields do not count."""
        goal.check()
        rehearser = Rehearser(goal, public, progress)
        coarse = [(view, m) for view in public.views() for m in self.coarse(mechanism, view)]
        tried = rehearser.each(coarse, self.times)
        if not tried:
            rule = f"such that {mechanism.kind} can be rehearsed on them"
            raise InvalidInput("features", rule, [str(view) for view in public.views()])
        for around in self.around:
            known = {(entry.view, _shape(entry.mechanism)) for entry in tried}
            loose = sorted(tried, key=partial(rehearser.order, slack=SLACK))
            near = dict.fromkeys(
                (_seen(best), m)
                for best in (*tried[:REFINED], *loose[:REFINED])
                for m in around(_seen(best), _shape(best.mechanism))
            )
            tried += rehearser.each([each for each in near if each not in known], self.times)
            tried.sort(key=rehearser.order)
        last = [(_seen(choice), choice.mechanism) for choice in tried[:FINAL]]
        tried = rehearser.each(last, self.times + TIMES) + tried[FINAL:]
        chosen = tried[0]
        if chosen.accuracy < goal.min_accuracy:
            chosen = self._strict(rehearser, chosen)
        return Optimum(goal, rehearser.fitted(chosen), public.source, tried=tuple(tried))

    def _strict(self, rehearser: Rehearser, chosen: Choice[M]) -> Choice[M]:
        """The first of ``stricter`` that is accurate enough. Raises BudgetRefused."""
        for mechanism in self.stricter(chosen.mechanism):
            choice = rehearser.rehearsed(_seen(chosen), mechanism, TIMES)
            if choice.answered >= 1 and choice.accuracy >= rehearser.goal.min_accuracy:
                return choice
        raise rehearser.goal.nothing_affordable()


def _shape(mechanism: M) -> M:
    """With its noise left to the budget, unless queries are."""
    screened = isinstance(mechanism, SampledVotes)
    return mechanism if screened else replace(mechanism, **dict.fromkeys(mechanism.calibrated))


def _seen(choice: Choice[M]) -> View:
    assert choice.view is not None
    return choice.view


def affordable(mechanism: SampledVotes, passed: float, goal: Goal) -> tuple[int, int, float]:
    """(queries, answers paid for, answers expected) where a share ``passed`` is answered.

    The number of answers is a normal X; their cap is a deviation above its mean, and the
    expectation is E min(X, mean + deviation). The deviation includes that of ``passed`` itself.
    Raises BudgetRefused for fewer queries than rounds.
    """

    def answers(asked: int) -> tuple[int, float]:
        mean = passed * asked
        deviation = math.sqrt(mean * (1 - passed) * (1 + asked / RATED))
        cap = max(1, min(asked, math.ceil(mean + deviation)))
        return cap, min(mean - 0.0833 * deviation if cap < asked else mean, float(cap))

    screen, vote = (
        bit_rdp(r.parameters["sigma"] / (l2_sensitivity(r) or 1), mechanism.sampling_probability)
        for r in mechanism.releases(1, 1)
    )

    def too_dear(asked: int) -> bool:
        total = asked * screen + answers(asked)[0] * vote
        return epsilon_from_rdp(ORDERS, total, goal.delta)[0] > AIM * goal.epsilon

    asked = bisect_left(range(1, goal.queries + 1), True, key=too_dear)
    if asked < goal.rounds:
        raise goal.nothing_affordable()
    return asked, *answers(asked)


@lru_cache(maxsize=2048)
def bit_rdp(sigma: float, sampling_probability: float) -> np.ndarray:
    """RDP of whether a count exceeds a threshold, whichever it is: float64 [n_orders]."""
    reach = math.ceil(6 * sigma) + 1
    noise = {"sigma": sigma, "sampling_probability": sampling_probability}
    return screening_rdp(ORDERS, max_votes=2 * reach, threshold=reach, **noise)
