"""Planning: a mechanism's parameters for a budget, from PUBLIC rows alone.

Neither private votes nor the number of private records enter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import numpy as np

from ...teacher.accounting.accountant import certified_epsilon, require_affordable
from ...teacher.accounting.conversion import round_up
from ...teacher.accounting.plan import Plan, Slot
from ...teacher.mechanisms.base import M, Mechanism
from ...wall.errors import BudgetRefused, InvalidInput
from ...wall.progress import Progress


@dataclass(frozen=True)
class Goal:
    """The goal of a search: the most right labels within epsilon at delta.

    ``expected_records``: public guess of the number of private records; ``queries``: number of
    public inputs, each asked at most once; ``rounds``: lower bound of the queries asked;
    ``min_accuracy``: of the labels, in [0, 1); ``asked``: queries of all rounds, where they are
    fixed.
    """

    epsilon: float
    delta: float
    expected_records: int
    queries: int
    rounds: int
    min_accuracy: float = 0.0
    seed: int = 0
    asked: int | None = None

    def check(self) -> None:
        """Raise InvalidInput for too few records or queries, or no share as ``min_accuracy``."""
        if not 0 <= self.min_accuracy < 1:
            raise InvalidInput("min_accuracy", "in [0, 1)", self.min_accuracy)
        for name in ("expected_records", "queries"):
            if getattr(self, name) < self.rounds:
                raise InvalidInput(name, f"at least {self.rounds}", getattr(self, name))

    def nothing_affordable(self) -> BudgetRefused:
        """The error for a goal with no candidate that is affordable and accurate enough."""
        return BudgetRefused(
            f"`budget.epsilon` must be large enough for {self.rounds} useful queries. Found "
            f"{self.epsilon}. Raise it, lower min_accuracy, or check expected_records."
        )


@dataclass(frozen=True)
class View:
    """Features that the first round may look at.

    ``features``: as a configuration names them; ``whiten``: principal axes, each divided by its
    spread, 0 for the features as they are; ``dimensions``: of these features, a count; ``axes``:
    the most principal axes that a mechanism may ask for, 0 where it can not; ``rows``: public rows
    of the rehearsal, ``classes``, ``records``: expected ones, counts; ``box``: the domain of
    features of that name.
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
class Score:
    """What rehearsals expect of a round.

    ``answered``: share of public rows that get a label; ``accuracy``: share of right ones among
    these labels, R2 where labels are values; ``spread``: its standard deviation between rehearsals.
    """

    answered: float
    accuracy: float
    spread: float


@dataclass(frozen=True)
class PublicRows:
    """Labelled public rows that look like the private ones.

    ``embed``: returns a part of them as (features int8 [m, d], labels int64 [m], length of a unit
    vector, the view, None for the configuration's); slow, so called only where needed.

    ``views``: returns features to choose from, slow as well; ``rehearse(view, mechanism, times)``:
    so many rounds by a mechanism with all of its noise, in which a part of the labelled rows stands
    for the records; ``source``: of these rows, for a reader.
    """

    num_classes: int
    embed: Callable[[], tuple[np.ndarray, np.ndarray, float, View | None]]
    views: Callable[[], tuple[View, ...]] = tuple
    rehearse: Callable[[View, Mechanism, int], Score] | None = None
    source: str = ""


@dataclass(frozen=True)
class Choice(Generic[M]):
    """A mechanism for a budget, and what is expected of it.

    ``epsilon``: the budget of its search; the certified one for ``Optimum.chosen``. ``asked``,
    ``cap``: queries and answers that are paid for; ``answered``: expected number of labels;
    ``accuracy``: their expected accuracy, R2 of values; ``spread``: the standard deviation of its
    rehearsals, 0 where it was not rehearsed; ``view``: the first round's features, the
    configuration's where None.
    """

    epsilon: float
    mechanism: M
    asked: int
    cap: int
    answered: float
    accuracy: float
    spread: float = 0.0
    view: View | None = None

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

    def plan(self, goal: Goal) -> Plan:
        """A plan with this mechanism alone."""
        releases = self.mechanism.releases(self.asked, self.cap)
        return Plan(goal.epsilon, goal.delta, (Slot(self.mechanism.fields(), releases),))

    def certified(self, goal: Goal) -> Choice[M]:
        """With the accountant's own certificate. Raises BudgetRefused where it is too high."""
        plan = self.plan(goal)
        require_affordable(plan)
        return replace(self, epsilon=certified_epsilon(plan))


@dataclass(frozen=True)
class Optimum(Generic[M]):
    """The result of a search.

    ``source``: of the forecasts; ``note``: a line about the price; both for a reader. ``tried``:
    candidates, best first; ``seconds``: of the search.
    """

    goal: Goal
    chosen: Choice[M]
    source: str
    note: str = ""
    tried: tuple[Choice[M], ...] = ()
    seconds: float = 0.0

    def price(self) -> str:
        """The certificate of the chosen one, for a reader."""
        goal = self.goal
        epsilon = f"epsilon {round_up(self.chosen.epsilon)} of {goal.epsilon:g}"
        return f"Certified: {epsilon} at delta {goal.delta:g}. {self.note}".strip()


Planner = Callable[[Any, Goal, PublicRows, Progress], Optimum[Any]]
"""The mechanism of a kind with the most right labels expected within the goal.

Raises InvalidInput for a goal out of range, and BudgetRefused where no candidate is affordable and
accurate enough.
"""
