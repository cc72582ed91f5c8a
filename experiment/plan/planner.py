"""Planning: a mechanism's parameters for a budget, from PUBLIC rows alone.

A kind's candidates are rehearsed, then neighbours of the best. The best are rehearsed again with
fresh draws, which forecast the choice: the draws that made a candidate the best flatter it.
If a mechanism asks once a round, or answers every query, the budget decides its noise. If it
screens queries, a candidate has its noise, and the budget decides how many queries it pays for.
Neither private votes nor the number of private records enter.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Generic

import numpy as np
from threadpoolctl import threadpool_limits

from ...student.public_settings import CountedPlan, can_count
from ...teacher.accounting.accountant import certified_epsilon, require_affordable
from ...teacher.accounting.conversion import epsilon_from_rdp
from ...teacher.accounting.curves import ORDERS, l2_sensitivity, screening_rdp
from ...teacher.accounting.plan import Plan, Slot
from ...teacher.mechanisms.base import M, Mechanism, Priced
from ...teacher.mechanisms.calibration import calibrate
from ...wall.errors import BudgetRefused, InvalidInput, listed
from ...wall.guarantee import Unit
from ...wall.progress import Progress
from ..config.settings import build
from . import tuning

AIM = 0.995  # share of the budget that fast prices fill: an argmax costs nearly what a bit costs
RATED = 1000  # rows, about, that the share of answers is known from


@dataclass(frozen=True)
class Goal:
    """The goal of a search: the most right labels within epsilon at delta.

    ``expected_records``: public guess of the number of private records; ``queries``: number of
    public inputs, each asked at most once; ``rounds``: lower bound of the queries asked;
    ``asked``: queries of all rounds, if they are fixed; ``told``: whether somebody made the guess;
    ``worth``: of the best choice among other kinds; ``unit``: of privacy; ``periods``: so many
    parts like the planned one cost all; ``custodians``: whose sums add up, who have the records
    together; ``given``: settings of the mechanism by name, which every candidate has.
    """

    epsilon: float
    delta: float
    expected_records: int
    queries: int
    rounds: int
    asked: int | None = None
    told: bool = True
    worth: float = 0.0
    unit: Unit = "row"
    periods: int = 1
    custodians: int = 1
    given: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise InvalidInput for too few records or queries."""
        for name in ("expected_records", "queries"):
            if getattr(self, name) < self.rounds:
                raise InvalidInput(name, f"at least {self.rounds}", getattr(self, name))

    def kept(self, found: Iterable[M]) -> list[M]:
        """Candidates with the ``given`` settings, without those that break a rule with them.

        Raises InvalidInput if all do.
        """
        if not self.given:
            return [*found]
        kept, refused = dict[M, None](), None
        for each in found:
            try:
                fields = {**each.fields(), **self.given}
                kept[build(type(each), fields, "mechanism")] = None
            except InvalidInput as error:
                refused = error
        if refused is not None and not kept:
            raise refused
        return [*kept]

    def nothing_affordable(self) -> BudgetRefused:
        """The error for a goal with no candidate that is affordable."""
        return BudgetRefused(
            f"`budget.epsilon` must be large enough for {self.rounds} useful queries. Found "
            f"{self.epsilon}. Raise it, or check expected_records."
        )


@dataclass(frozen=True)
class View:
    """Features that the first round may look at.

    ``features``: as a configuration names them; ``whiten``: principal axes, each divided by its
    spread, 0 for the features as they are; ``axes``: the most that a mechanism may ask for, 0 if it
    can not; ``rows``: public ones; ``records``: expected ones (counts, like ``dimensions`` and
    ``classes``); ``box``: as in a configuration.
    """

    features: str
    whiten: int
    dimensions: int
    axes: int
    rows: int
    classes: int
    records: int
    box: tuple[tuple[float, float], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.features}, {self.whiten} whitened axes" if self.whiten else self.features


@dataclass(frozen=True)
class Forecast:
    """What rehearsals expect of a round. ``answered``: share of public rows that get a label;
    ``accuracy``: of these (R2 of values); ``spread``: its standard deviation between rehearsals.
    """

    answered: float
    accuracy: float
    spread: float


@dataclass(frozen=True)
class RehearsalRows:
    """Labelled public rows that look like the private ones.

    ``views``: features to choose from; slow, so called if needed.
    ``rehearse(view, mechanism, draws, asked)``: a round by a mechanism for each number of a range,
    which has draws of its own and a part of the labelled rows to stand for the records. ``asked``:
    queries that individual budgets are to last for.
    """

    views: Callable[[], tuple[View, ...]]
    rehearse: Callable[[View, Mechanism, range, int], Forecast]


@dataclass(frozen=True)
class Choice(Generic[M]):
    """A mechanism for a budget on features of the first round, and what is expected of it.

    ``epsilon``: the budget of its search; the certified one for ``Optimum.chosen``. ``asked``,
    ``cap``: queries and answers that are paid for; ``answered``: expected number of labels;
    ``accuracy``, ``spread``: as in ``Score``.
    """

    epsilon: float
    view: View
    mechanism: M
    asked: int
    cap: int
    answered: float
    accuracy: float
    spread: float = 0.0

    @property
    def of_values(self) -> bool:
        """Whether the accuracy is R2, and not a share of right labels."""
        return self.mechanism.label_space == "value"

    @property
    def right(self) -> float:
        """Expected number of right labels."""
        return self.answered * self.accuracy

    @property
    def worth(self) -> float:
        """What a search maximises: right labels, or R2 of values, however many rows get one."""
        return self.accuracy if self.of_values else self.right

    @property
    def candidate(self) -> Candidate[M]:
        """What was rehearsed."""
        return self.view, self.mechanism

    def plan(self, goal: Goal) -> Plan:
        """A plan with this mechanism alone."""
        releases = self.mechanism.releases(goal.periods * self.asked, goal.periods * self.cap)
        return Plan(goal.epsilon, goal.delta, (Slot(self.mechanism.fields(), releases),))


Candidate = tuple[View, M]
# What to rehearse next, by what was tried, best first; and how to rehearse it, best first
Stage = tuple[
    Callable[[list[Choice[M]]], list[Candidate[M]]], Callable[[list[Candidate[M]]], list[Choice[M]]]
]


@dataclass(frozen=True)
class Optimum(Generic[M]):
    """The result of a search.

    ``tried``: the chosen one, then the others, best first; ``safer``: why it is chosen where it is
    not the best by its forecast; ``by_count``: what suits more records than were guessed.
    ``source``: of the rows of the forecasts, for a reader; ``frequent``: share of their most
    frequent class, 0 for no classes. ``alone``: what public labels that are learned give without
    records, measured as the forecasts are; 0 for nothing.
    """

    goal: Goal
    tried: tuple[Choice[M], ...]
    source: str = ""
    frequent: float = 0.0
    alone: float = 0.0
    safer: str = ""
    by_count: tuple[CountedPlan, ...] = ()

    @property
    def chosen(self) -> Choice[M]:
        """The first one, with its certified epsilon."""
        return self.tried[0]


@dataclass(frozen=True)
class Rehearser:
    """Rehearses candidates for a goal on public rows."""

    goal: Goal
    public: RehearsalRows
    progress: Progress
    _noise: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, stages: Sequence[Stage[M]], tried: list[Choice[M]]) -> list[Choice[M]]:
        """Choices after these stages, best first; those measured again go before the others."""
        for candidates, measure in stages:
            asked = candidates(tried)
            found, again = measure(asked), {*asked}
            others = [choice for choice in tried if choice.candidate not in again]
            new = len(others) == len(tried)
            tried = sorted(others + found, key=self.order) if new else found + others
        return tried

    def each(self, candidates: Sequence[Candidate[M]], draws: range) -> list[Choice[M]]:
        """Rehearsed candidates that the budget allows, best first.

        Raises BudgetRefused if it allows none: they need more noise than can be drawn.
        """
        choices, refused = [], None
        with threadpool_limits(limits=1):  # rows are few: threads would wait for one another
            for number, (view, mechanism) in enumerate(candidates, start=1):
                what = f"rehearsing {mechanism.kind} on {view.features} features"
                self.progress(what, number - 1, len(candidates))
                try:
                    choices.append(self.rehearsed(view, mechanism, draws))
                except BudgetRefused as error:
                    refused = error
                self.progress(what, number, len(candidates))
        if refused is not None and not choices:
            raise refused
        return sorted(choices, key=self.order)

    def forecast(self, last: list[Candidate[M]], draws: range) -> list[Choice[M]]:
        """The last candidates, best first. Each time that draws are doubled, half are left."""
        beaten = list[Choice[M]]()
        for share in (4, 2):
            found = self.each(last, draws[: len(draws) // share])
            half = (len(found) + 1) // 2
            last, beaten = [choice.candidate for choice in found[:half]], found[half:] + beaten
        return self.each(last, draws) + beaten

    def order(self, choice: Choice[Any]) -> tuple[bool, float]:
        """A key by which the best choices come first.

        If nobody guessed the records, many steps go before few: a run corrects the axes by the
        count that the first of many steps has.
        """
        few = not self.goal.told and not can_count(choice.mechanism.query_form)
        return few, -choice.worth

    def near(self, tried: list[Choice[M]], share: float) -> bool:
        """Whether the best has that share of another kind's worth."""
        return bool(tried) and max(tried[0].worth, 0.0) >= share * self.goal.worth

    def rehearsed(self, view: View, mechanism: M, draws: range) -> Choice[M]:
        """A choice with the noise, or the queries, that the budget allows. Raises BudgetRefused."""
        goal = self.goal
        if mechanism.screened:
            score = self.public.rehearse(view, mechanism, draws, goal.queries)
            asked = affordable(mechanism, score.answered, goal)
            cap, answered = answers(asked, score.answered)
        else:
            asked = goal.asked or min(goal.queries, max(goal.rounds, tuning.VALUES_ASKED))
            if mechanism.once_a_round:
                asked = goal.rounds * mechanism.charges_a_round
            mechanism = self._with_noise(mechanism, asked)
            score = self.public.rehearse(view, mechanism, draws, asked)
            cap = asked
            answered = score.answered * (goal.queries if mechanism.once_a_round else asked)
        return Choice(
            epsilon=goal.epsilon,
            view=view,
            mechanism=mechanism,
            asked=asked,
            cap=cap,
            answered=answered,
            accuracy=score.accuracy,
            spread=score.spread,
        )

    def _with_noise(self, mechanism: M, asked: int) -> M:
        """The mechanism with its noise for the budget, solved once for each price.

        Raises BudgetRefused.
        """
        goal, asked = self.goal, self.goal.periods * asked
        open_ = noiseless(mechanism, goal.given)
        price = repr(open_.with_noise(1.0, asked).releases(asked, asked))
        if price not in self._noise:
            (solved,) = calibrate([Priced(open_, asked, asked)], goal.epsilon, goal.delta)
            slot = Priced(solved, asked, asked).slot()
            require_affordable(Plan(goal.epsilon, goal.delta, (slot,)))
            self._noise[price] = {name: vars(solved)[name] for name in open_.calibrated}
        return replace(mechanism, **self._noise[price])

    def fitted(self, choice: Choice[M]) -> Choice[M]:
        """The choice with the accountant's certificate, which decides the noise of a screening."""
        if choice.mechanism.screened and self.goal.given.get("sigma_screen") is None:
            screening_open = replace(choice.mechanism, **dict.fromkeys(["sigma_screen"]))
            entry = Priced(screening_open, choice.asked, choice.cap)
            (mechanism,) = calibrate([entry], self.goal.epsilon, self.goal.delta, self.progress)
            choice = replace(choice, mechanism=mechanism)
        plan = choice.plan(self.goal)
        require_affordable(plan)
        return replace(choice, epsilon=certified_epsilon(plan))


@dataclass(frozen=True)
class Candidates(Generic[M]):
    """What to rehearse of one kind.

    ``coarse``: for a mechanism of the kind and features; ``around``: neighbours of a good one, ever
    nearer; ``times``: rehearsals of each.
    """

    coarse: Callable[[M, View], list[M]]
    around: Sequence[Callable[[View, M], list[M]]] = ()
    times: int = 1

    def plan(
        self, mechanism: M, goal: Goal, public: RehearsalRows, progress: Progress
    ) -> Optimum[M]:
        """The mechanism of the kind with the most right labels expected within the goal.

        Raises InvalidInput for a goal out of range, and BudgetRefused if no candidate is
        affordable.
        """
        goal.check()
        rehearser, views = Rehearser(goal, public, progress), public.views()
        with suppress(InvalidInput):  # of a default beside a given setting
            (mechanism,) = goal.kept([mechanism])
        coarse = [
            (view, each) for view in views for each in goal.kept(self.coarse(mechanism, view))
        ]
        stride = tuning.STRIDE if goal.worth and not mechanism.once_a_round else 1
        rest = [each for place, each in enumerate(coarse) if place % stride]
        once, drawn = (partial(rehearser.each, draws=range(n)) for n in (1, self.times))
        fresh = range(self.times, (1 + tuning.FRESH) * self.times)
        looks: list[Stage[M]] = [
            (lambda _: coarse[::stride], once),
            (lambda tried: rest if rehearser.near(tried, tuning.HOPE**2) else [], once),
        ]
        refinements: list[Stage[M]] = [
            *([(partial(_best, tuning.HALVED), drawn)] if self.times > 1 else []),
            *((partial(_near, goal, around), drawn) for around in self.around),
            (partial(_best, tuning.FINAL), partial(rehearser.forecast, draws=fresh)),
        ]
        short = partial(rehearser.each, draws=fresh[: 2 * self.times])
        glance: list[Stage[M]] = [(partial(_best, 1), short)]
        tried = rehearser.run(looks, [])
        if not tried:
            named = listed(views)
            text = f"{mechanism.kind} cannot be rehearsed on the features {named}."
            cure = "Choose others, or leave `features` out."
            raise InvalidInput("features", "others", named, cure, text=text)
        hopeful = rehearser.near(tried, tuning.HOPE)
        chosen, *others = rehearser.run(refinements if hopeful else glance, tried)
        if hopeful:  # the certificate of another would decide nothing
            chosen = rehearser.fitted(chosen)
        return Optimum(goal=goal, tried=(chosen, *others))


def _best(count: int, tried: list[Choice[M]]) -> list[Candidate[M]]:
    """The first so many of what was tried."""
    return [choice.candidate for choice in tried[:count]]


def _near(
    goal: Goal, around: Callable[[View, M], list[M]], tried: list[Choice[M]]
) -> list[Candidate[M]]:
    """Neighbours of the best that were not tried."""
    known = {(choice.view, noiseless(choice.mechanism, goal.given)) for choice in tried}
    near = dict[Candidate[M], None]()
    for choice in tried[: tuning.REFINED]:
        good = noiseless(choice.mechanism, goal.given)
        with suppress(InvalidInput):  # of given settings that no neighbour goes with
            near |= {(choice.view, each): None for each in goal.kept(around(choice.view, good))}
    return [each for each in near if each not in known]


def noiseless(mechanism: M, given: Mapping[str, Any]) -> M:
    """The mechanism with its noise left to the budget, but for ``given`` numbers; unchanged if the
    number of queries is left to the budget.
    """
    if mechanism.screened:
        return mechanism
    names = (name for name in mechanism.calibrated if given.get(name) is None)
    return replace(mechanism, **dict.fromkeys(names))


def answers(asked: int, passed: float) -> tuple[int, float]:
    """(answers paid for, answers expected) if a share ``passed`` of the queries is answered.

    The number of answers is a normal X; their cap is a deviation above its mean, and the
    expectation is E min(X, mean + deviation). The deviation includes that of ``passed`` itself.
    """
    mean = passed * asked
    deviation = math.sqrt(mean * (1 - passed) * (1 + asked / RATED))
    cap = max(1, min(asked, math.ceil(mean + deviation)))
    return cap, min(mean - 0.0833 * deviation if cap < asked else mean, float(cap))


def affordable(mechanism: Mechanism, passed: float, goal: Goal) -> int:
    """The most queries that a goal pays for. Raises BudgetRefused for fewer than rounds."""
    screen, vote = (
        bit_rdp(r.parameters["sigma"] / (l2_sensitivity(r) or 1), mechanism.rate)
        for r in mechanism.releases(1, 1)
    )

    def too_dear(asked: int) -> bool:
        total = asked * screen + answers(asked, passed)[0] * vote
        return epsilon_from_rdp(ORDERS, total, goal.delta)[0] > AIM * goal.epsilon

    asked = bisect_left(range(1, goal.queries + 1), True, key=too_dear)
    if asked < goal.rounds:
        raise goal.nothing_affordable()
    return asked


@lru_cache(maxsize=2048)
def bit_rdp(sigma: float, sample_rate: float) -> np.ndarray:
    """RDP of whether a count exceeds a threshold, whichever it is: float64 [n_orders]."""
    reach = math.ceil(6 * sigma) + 1
    noise = {"sigma": sigma, "sample_rate": sample_rate}
    return screening_rdp(ORDERS, max_votes=2 * reach, threshold=reach, **noise)
