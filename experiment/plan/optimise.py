"""`plan --optimise`: from a configuration to the best one for its budget.

Public rows are read here and handed to the search for each kind (candidates.py);
what it chooses is shown as a table, a plot, JSON and a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...teacher.accounting.accountant import require_affordable
from ...teacher.accounting.conversion import round_up
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import InvalidInput
from ..config.config import Config
from ..config.settings import to_yaml
from ..report.plots import INK, LABELS, STUDENT, STYLE, WIDTH
from ..run.console import Console
from .auto import (
    Found,
    accuracy_text,
    expected,
    mechanisms_for,
    of_values,
    planned_config,
    search,
    sentence,
    spread_text,
)
from .goal import FRONTIER, Choice, Goal, Optimum
from .show_plan import describe_plan

if TYPE_CHECKING:
    from rich.table import Table

TABLE_WIDTH = 112  # columns of characters, also where the output is no terminal
SHOWN = 12  # candidates in a table


@dataclass(frozen=True)
class Request:
    """The options of `plan --optimise`, checked: None or zero where not given.

    ``frontier``: whether smaller budgets are searched for, too, which takes a third of the time.
    """

    out: Path | None = None
    plot: Path | None = None
    mean_accuracy: float | None = None
    min_accuracy: float = 0.0
    frontier: bool = True

    def __post_init__(self) -> None:
        if self.out is not None and self.out.exists():
            raise InvalidInput("out", "a file that does not exist yet", str(self.out))
        if not 0 <= self.min_accuracy < 1:
            raise InvalidInput("min_accuracy", "in [0, 1)", self.min_accuracy)


@dataclass(frozen=True)
class Answer:
    """What was found. ``config``: complete, with the chosen mechanism, caps and rounds."""

    config: Config
    goal: Goal
    found: Found

    @property
    def optimum(self) -> Optimum[Any]:
        """Of the mechanism that is best."""
        return self.found.optimum


def best_plan(config: Config, request: Request, console: Console) -> Answer:
    """Search from public rows alone, write ``request.out`` and ``request.plot``.

    Raises InvalidInput, MissingData (public rows), BudgetRefused.
    """
    mechanisms = mechanisms_for(config)
    task = describe(config.data)
    public = read_public(
        config.data, lambda done, total: console.progress("reading public rows", done, total)
    )
    queries = len(public.inputs)
    goal = Goal(
        config.budget.epsilon,
        config.budget.delta,
        config.records(queries),
        queries,
        len(config.rounds),
        request.min_accuracy,
        request.mean_accuracy,
        config.seed,
        sum(r.queries or 0 for r in config.rounds) or None,
        FRONTIER if request.frontier else FRONTIER[-1:],
    )
    found = search(config, task, public, goal, mechanisms, console.progress)
    answer = Answer(planned_config(config, found.optimum.chosen), goal, found)
    require_affordable(answer.config.plan())
    if request.plot is not None:
        request.plot.parent.mkdir(parents=True, exist_ok=True)
        request.plot.write_bytes(frontier_png(answer.optimum.frontier))
    if request.out is not None:
        request.out.parent.mkdir(parents=True, exist_ok=True)
        request.out.write_text(f"{_origin(answer)}{to_yaml(answer.config)}")
    return answer


def _origin(answer: Answer) -> str:
    chosen, goal = answer.optimum.chosen, answer.goal
    return (
        f"# Written by `labelwall plan --optimise` for epsilon {goal.epsilon:g}, "
        f"{goal.expected_records} expected records, from {answer.optimum.votes}.\n"
        f"# Expected: {_numbers(chosen)}; certified epsilon {round_up(chosen.epsilon)}.\n"
    )


def _numbers(choice: Choice[Any]) -> str:
    found = choice.forecast
    what = "labels" if choice.mechanism.once_a_round else f"of {found.asked} answered"
    return f"{found.answered:.0f} {what}, {expected(choice)}"


def describe_optimum(answer: Answer) -> dict[str, object]:
    """What `plan --optimise --json` prints.

    `plan --json` of the choice; optimised, frontier, proxy, candidates.
    """
    optimum = answer.optimum
    return {
        **describe_plan(answer.config),
        "optimised": _entry(optimum.chosen),
        "frontier": [_entry(choice) for choice in optimum.frontier],
        "proxy": {"votes": optimum.votes, "expected_records": answer.goal.expected_records},
        **describe_candidates(answer),
    }


def describe_candidates(answer: Answer) -> dict[str, object]:
    """candidates (best first), reason, source (of the rows rehearsed on), seconds of the search."""
    return {
        "candidates": [_entry(choice) for choice in answer.found.tried],
        "reason": sentence(answer.found, answer.goal),
        "source": answer.optimum.votes,
        "seconds": round(answer.found.seconds, 1),
    }


def _entry(choice: Choice[Any]) -> dict[str, object]:
    found = choice.forecast
    figures = {
        "asked": found.asked,
        "answered": found.answered,
        "label_accuracy": found.accuracy,
        "right": found.right,
        "spread": found.spread,
    }
    return {
        "epsilon": round_up(choice.epsilon),
        "mechanism": choice.mechanism.fields(),
        "view": None if choice.view is None else str(choice.view),
        "cap": found.cap,
        "expected": figures,
    }


def print_optimum(answer: Answer, out: Path | None) -> None:
    """The frontier and the choice, on stdout."""
    from rich.console import Console as RichConsole

    screen = RichConsole(width=TABLE_WIDTH, highlight=False)
    if len(answer.found.tried) > 1:
        screen.print(candidates(answer))
    screen.print(_table(answer))
    for line in _explanation(answer, out):
        screen.print(line, markup=False, soft_wrap=True)


def candidates(answer: Answer) -> Table:
    """The best of all that was tried, for the whole budget."""
    from rich.table import Table

    table = Table(title=f"candidates: the best {SHOWN} of {len(answer.found.tried)}")
    right = "R2" if of_values(answer.optimum.chosen) else "labels right"
    for name in (right, "+-", "answered", "features", "mechanism"):
        table.add_column(name)
    for choice in answer.found.tried[:SHOWN]:
        table.add_row(
            accuracy_text(choice),
            spread_text(choice),
            f"{choice.forecast.answered:.0f}",
            "" if choice.view is None else str(choice.view),
            _described(choice),
        )
    return table


def _described(choice: Choice[Any]) -> str:
    """Its mechanism: kind and fields, those that are not given left out."""
    fields = choice.mechanism.fields().items()
    words = (
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in fields
        if name != "kind" and value not in (None, 0.0)
    )
    return f"{choice.mechanism.kind}: {', '.join(words)}"


def _table(answer: Answer) -> Table:
    from rich.table import Table

    values = of_values(answer.optimum.chosen)
    table = Table(title="best R2, by budget" if values else "most expected right labels, by budget")
    settings = _chosen_fields(answer)
    scores = ("R2",) if values else ("right", "accuracy")
    for name in ("epsilon", "asked", "answered", *scores, *settings):
        table.add_column(name.removesuffix("_probability"), justify="right")
    for choice in answer.optimum.frontier:
        found = choice.forecast
        right = () if values else (f"{found.right:.0f}",)
        table.add_row(
            f"{round_up(choice.epsilon):.3f}",
            f"{found.asked}",
            f"{found.answered:.0f}",
            *right,
            accuracy_text(choice),
            *(_text(vars(choice.mechanism)[name]) for name in settings),
        )
    return table


def _chosen_fields(answer: Answer) -> list[str]:
    """Names of the fields that differ from their defaults in some choice of the frontier."""
    mechanisms = [choice.mechanism for choice in answer.optimum.frontier]
    return [
        field.name
        for field in fields(mechanisms[-1])
        if any(vars(mechanism)[field.name] != field.default for mechanism in mechanisms)
    ]


def _text(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def reason(answer: Answer) -> str:
    """What was chosen, why, and from what rows."""
    return (
        f"{sentence(answer.found, answer.goal)} From {answer.optimum.votes}, in "
        f"{answer.found.seconds:.0f} s; no private record was read."
    )


def _explanation(answer: Answer, out: Path | None) -> list[str]:
    goal, optimum = answer.goal, answer.optimum
    found = optimum.chosen.forecast
    chosen = optimum.chosen.mechanism
    settings = {name: _text(vars(chosen)[name]) for name in ("kind", *_chosen_fields(answer))}
    return [
        optimum.note,
        f"From {optimum.votes}; {goal.expected_records} private records expected "
        "(--expected_records), none of them read. Every round is counted with the first round's "
        "features; later rounds' are usually better.",
        sentence(answer.found, goal) + f" The search took {answer.found.seconds:.0f} s.",
        "",
        f"features: {found_view(answer)}",
        f"mechanism: {', '.join(f'{name} {value}' for name, value in settings.items())}",
        f"caps: {found.asked} asked, {found.cap} answered, in {goal.rounds} rounds",
        f"expected: {_numbers(optimum.chosen)}",
        f"wrote {out}. Next: labelwall run --config {out} --run_dir DIR"
        if out
        else "--out FILE.yaml writes this configuration.",
    ]


def found_view(answer: Answer) -> str:
    """The features of the first round, for a reader."""
    config = answer.config
    return f"{config.features}, {config.whiten} whitened axes" if config.whiten else config.features


def frontier_png(frontier: Sequence[Choice[Any]]) -> bytes:
    """PNG: expected right labels (left axis) and label accuracy (right axis) against epsilon.

    For values: answers (left axis) and R2 (right axis).
    """
    import io

    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    epsilons, values = [choice.epsilon for choice in frontier], of_values(frontier[-1])
    counted, shared = (
        ("expected answers", "R2, percent")
        if values
        else ("expected right labels", "labels right, percent")
    )
    with matplotlib.rc_context(STYLE | {"axes.spines.right": True}):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained", dpi=150)
        FigureCanvasAgg(figure)
        left = figure.subplots()
        right = left.twinx()
        left.plot(
            epsilons,
            [c.forecast.answered if values else c.forecast.right for c in frontier],
            color=STUDENT,
            marker="o",
            label=counted,
        )
        percent = [100 * c.forecast.accuracy for c in frontier]
        right.plot(
            epsilons,
            percent,
            color=LABELS,
            marker="s",
            linestyle="--",
            label=shared,
        )
        left.set_ylim(bottom=0)
        right.set_ylim(0, 102)
        left.set_xlabel("epsilon")
        left.set_ylabel(counted, color=STUDENT)
        right.set_ylabel(shared, color=LABELS)
        figure.legend(loc="outside upper center", ncols=2, labelcolor=INK)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
