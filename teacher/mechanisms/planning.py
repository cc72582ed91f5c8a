"""What a mechanism that can be planned offers: its parameters for a budget, from PUBLIC rows alone.

No private vote, and not the number of private records, has a say in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.wall.errors import BudgetRefused, InvalidInput

FRONTIER = (0.125, 0.25, 0.5, 0.75, 1.0)  # shares of the budget
MIN_ROWS = 100  # labelled rows; the votes of fewer say little

Progress = Callable[[str, int, int], None]  # (what, done, total)
M = TypeVar("M", bound=Mechanism)


def quiet(what: str, done: int, total: int) -> None:
    """Progress that nobody sees."""


@dataclass(frozen=True)
class Goal:
    """What is searched for: most right labels within epsilon at delta.

    ``expected_records``: the public guess of their number; ``queries``: public inputs, each asked
    at most once; ``rounds``: at least as many are asked; ``min_accuracy``: of the labels, in [0,
    1); ``mean_accuracy``: share of right neighbours, where a model of them replaces public rows.
    """

    epsilon: float
    delta: float
    expected_records: int
    queries: int
    rounds: int
    min_accuracy: float = 0.0
    mean_accuracy: float | None = None
    seed: int = 0

    def check(self) -> None:
        """Raise InvalidInput unless there are as many records and queries as the rounds need."""
        for name in ("expected_records", "queries"):
            if getattr(self, name) < self.rounds:
                raise InvalidInput(name, f"at least {self.rounds}", getattr(self, name))

    def nothing_affordable(self) -> BudgetRefused:
        """What is raised where no candidate is affordable and accurate enough."""
        return BudgetRefused(
            f"`budget.epsilon` must be large enough for {self.rounds} useful queries. Found "
            f"{self.epsilon}. Raise it, lower min_accuracy, or check expected_records."
        )


@dataclass(frozen=True)
class PublicRows:
    """Labelled public rows that look like the private ones.

    ``available``: how many there are; ``embed``: a part of them as (features int8 [m, d], labels
    int64 [m], length of a unit vector), which takes a while and is called only where it is needed.
    """

    available: int
    num_classes: int
    embed: Callable[[], tuple[np.ndarray, np.ndarray, float]]


@dataclass(frozen=True)
class Forecast:
    """What a mechanism is expected to bring.

    ``asked``, ``cap``: queries and answers that are paid for; ``passed``: rate of the screening;
    ``answered``: expected number of labels; ``accuracy``: expected share of them that is right.
    """

    asked: int
    cap: int
    passed: float
    answered: float
    accuracy: float

    @property
    def right(self) -> float:
        """Expected number of right labels, what is maximised."""
        return self.answered * self.accuracy


@dataclass(frozen=True)
class Choice(Generic[M]):
    """A mechanism for a budget.

    ``epsilon``: the budget it was searched for; certified for Optimum.chosen alone.
    """

    epsilon: float
    mechanism: M
    forecast: Forecast

    def plan(self, goal: Goal) -> Plan:
        """The plan that the mechanism has to itself."""
        releases = self.mechanism.releases(self.forecast.asked, self.forecast.cap)
        return Plan(goal.epsilon, goal.delta, (Slot(self.mechanism.fields(), releases),))

    def within(self, goal: Goal) -> str:
        """Its certificate, for a reader."""
        return f"epsilon {round_up(self.epsilon)} of {goal.epsilon:g} at delta {goal.delta:g}"


@dataclass(frozen=True)
class Optimum(Generic[M]):
    """What was found. ``frontier``: the best by budget, ascending; the last of them is ``chosen``.

    ``votes``: what the forecasts come from; ``notes``: lines about the price; both for a reader.
    ``facts``: more about the choice, as JSON.
    """

    chosen: Choice[M]
    frontier: tuple[Choice[M], ...]
    votes: str
    notes: tuple[str, ...]
    facts: dict[str, object]


class Planner(Protocol):
    """The search for the parameters of one mechanism."""

    def check_rounds(self, own: Sequence[Mechanism]) -> None:
        """Raise InvalidInput for rounds with mechanisms of their ``own`` that it can not plan."""

    def settings(self, mechanism: Any) -> dict[str, str]:
        """What the search has chosen, by field, as a reader sees it."""

    def plan(self, goal: Goal, public: PublicRows, progress: Progress = quiet) -> Optimum[Any]:
        """The mechanism of most expected right labels whose certificate is within the goal.

        Raises InvalidInput for a goal out of range, BudgetRefused where the budget buys nothing (or
        nothing accurate enough).
        """
