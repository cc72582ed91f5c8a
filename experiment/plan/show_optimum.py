"""`plan --optimise`: from a configuration to the best one for its budget, shown as a table, a plot, JSON and a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labelwall.experiment.config.config import Config
from labelwall.experiment.config.settings import to_yaml
from labelwall.experiment.plan.ind_knn import optimise_individual
from labelwall.experiment.plan.private_knn import Choice, Goal, Optimum, optimise, theorem10
from labelwall.experiment.plan.show_plan import describe_plan
from labelwall.experiment.plan.simulated_votes import (
    choose_proxy,
    choose_stand_ins,
    default_records,
)
from labelwall.experiment.report.plots import INK, LABELS, STUDENT, STYLE, WIDTH
from labelwall.experiment.run.console import Console
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.mechanisms.ind_knn.mechanism import IndKnn
from labelwall.teacher.mechanisms.private_knn.mechanism import PrivateKnn
from labelwall.wall.datasets.sources import describe, read_public
from labelwall.wall.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

TABLE_WIDTH = 112  # columns of characters, also where the output is no terminal


@dataclass(frozen=True)
class Request:
    """The options of `plan --optimise`, checked: None or zero where not given."""

    out: Path | None = None
    plot: Path | None = None
    expected_records: int | None = None
    mean_accuracy: float | None = None
    min_accuracy: float = 0.0

    def __post_init__(self) -> None:
        if self.out is not None and self.out.exists():
            raise InvalidInput("out", "a file that does not exist yet", str(self.out))
        if self.expected_records is not None and self.expected_records < 1:
            raise InvalidInput("expected_records", "at least 1", self.expected_records)
        if not 0 <= self.min_accuracy < 1:
            raise InvalidInput("min_accuracy", "in [0, 1)", self.min_accuracy)


@dataclass(frozen=True)
class Answer:
    """What was found, and from what: ``votes`` says it to a reader."""

    optimum: Optimum[PrivateKnn] | Optimum[IndKnn]
    goal: Goal
    votes: str


def best_plan(config: Config, request: Request, console: Console) -> Answer:
    """Search from public rows alone, write ``request.out`` and ``request.plot``.

    Raises InvalidInput, MissingData (public rows), BudgetRefused.
    """
    task = describe(config.data)
    public = read_public(
        config.data, lambda done, total: console.progress("reading public rows", done, total)
    )
    queries = len(public.inputs)
    records = request.expected_records or default_records(config, queries)
    goal = Goal(config.budget.delta, records, queries, len(config.rounds), request.min_accuracy)
    if isinstance(config.mechanism, IndKnn):
        if request.mean_accuracy is not None:
            raise InvalidInput(
                "mean_accuracy",
                "left out with ind_knn, whose neighbours no model knows",
                request.mean_accuracy,
            )
        stand_ins = choose_stand_ins(
            config, task, public, config.mechanism, records, console.progress
        )
        answer = Answer(
            optimise_individual(config, stand_ins, goal, console.progress),
            goal,
            stand_ins.description,
        )
    else:
        proxy = choose_proxy(config, task, public, request.mean_accuracy, console.progress)
        answer = Answer(optimise(config, proxy, goal, console.progress), goal, proxy.description)
    if request.plot is not None:
        request.plot.parent.mkdir(parents=True, exist_ok=True)
        request.plot.write_bytes(frontier_png(answer.optimum.frontier))
    if request.out is not None:
        request.out.parent.mkdir(parents=True, exist_ok=True)
        request.out.write_text(f"{_origin(answer)}{to_yaml(answer.optimum.config)}")
    return answer


def _origin(answer: Answer) -> str:
    chosen, goal = answer.optimum.chosen, answer.goal
    return (
        f"# Written by `labelwall plan --optimise` for epsilon {answer.optimum.config.budget.epsilon:g}, {goal.expected_records} "
        f"expected records, from {answer.votes}.\n"
        f"# Expected: {_numbers(chosen)}; certified epsilon {round_up(chosen.epsilon)}.\n"
    )


def _numbers(choice: Choice[PrivateKnn] | Choice[IndKnn]) -> str:
    found = choice.forecast
    return f"{found.answered:.0f} of {found.asked} answered, {100 * found.accuracy:.1f}% of the labels right"


def describe_optimum(answer: Answer) -> dict[str, object]:
    """What `plan --optimise --json` prints: `plan --json` of the choice, and optimised, frontier, proxy.

    For private_knn theorem10, too.
    """
    chosen = answer.optimum.chosen
    shown = describe_plan(answer.optimum.config) | {
        "optimised": _entry(chosen),
        "frontier": [_entry(choice) for choice in answer.optimum.frontier],
        "proxy": {"votes": answer.votes, "expected_records": answer.goal.expected_records},
    }
    if isinstance(chosen.mechanism, PrivateKnn):
        asymptotic, broken = theorem10(
            chosen.mechanism, chosen.forecast.asked, chosen.forecast.cap, answer.goal.delta
        )
        shown["theorem10"] = {"epsilon": asymptotic, "assumptions_broken": broken}
    return shown


def _entry(choice: Choice[PrivateKnn] | Choice[IndKnn]) -> dict[str, object]:
    found = choice.forecast
    expected = {
        "asked": found.asked,
        "answered": found.answered,
        "label_accuracy": found.accuracy,
        "right": found.right,
    }
    return {
        "epsilon": round_up(choice.epsilon),
        "mechanism": choice.mechanism.fields(),
        "cap": found.cap,
        "expected": expected,
    }


def print_optimum(answer: Answer, out: Path | None) -> None:
    """The frontier and the choice, on stdout."""
    from rich.console import Console as RichConsole

    screen = RichConsole(width=TABLE_WIDTH, highlight=False)
    screen.print(_table(answer.optimum.frontier))
    for line in _explanation(answer, out):
        screen.print(line, markup=False, soft_wrap=True)


def _table(frontier: Sequence[Choice[PrivateKnn]] | Sequence[Choice[IndKnn]]) -> Table:
    from rich.table import Table

    table = Table(title="most expected right labels, by budget")
    for name in (
        "epsilon",
        "asked",
        "answered",
        "right",
        "accuracy",
        *_settings(frontier[-1].mechanism),
    ):
        table.add_column(name.removesuffix("_probability"), justify="right")
    for choice in frontier:
        found = choice.forecast
        counts = (
            f"{found.asked}",
            f"{found.answered:.0f}",
            f"{found.right:.0f}",
            f"{100 * found.accuracy:.1f}%",
        )
        table.add_row(
            f"{round_up(choice.epsilon):.3f}", *counts, *_settings(choice.mechanism).values()
        )
    return table


def _settings(m: PrivateKnn | IndKnn) -> dict[str, str]:
    """What the search has chosen, by field."""
    if isinstance(m, IndKnn):
        return {
            name: f"{getattr(m, name):.5g}"
            for name in ("threshold", "sigma_label", "sigma_count", "rho")
        }
    noise = {"sigma_screen": f"{m.sigma_screen:.1f}", "sigma_vote": f"{m.sigma_vote:.1f}"}
    return {
        "k": str(m.k),
        "threshold": str(m.threshold),
        **noise,
        "sampling_probability": f"{m.sampling_probability:g}",
    }


def _explanation(answer: Answer, out: Path | None) -> list[str]:
    goal, chosen = answer.goal, answer.optimum.chosen
    asked, answered = chosen.forecast.asked, chosen.forecast.cap
    within = f"epsilon {round_up(chosen.epsilon)} of {answer.optimum.config.budget.epsilon:g} at delta {goal.delta:g}"
    if isinstance(chosen.mechanism, PrivateKnn):
        asymptotic, broken = theorem10(chosen.mechanism, asked, answered, goal.delta)
        note = (
            "its assumptions hold"
            if not broken
            else f"not a statement here, it needs {'; '.join(broken)}"
        )
        price = [
            f"The last row is certified: {within}. The others are searched with a fast price, within about 1%.",
            f"CVPR20 Theorem 10 (asymptotic): epsilon {asymptotic:.2f}; {note}.",
        ]
    else:
        price = [
            f"The last row is certified: {within}, however many queries are asked. Kernel and hashing are the configuration's."
        ]
    return [
        *price,
        f"From {answer.votes}; {goal.expected_records} private records expected (--expected_records), none of them "
        "read. Every round is counted with the first round's features; later rounds' are usually better.",
        "",
        f"mechanism: {', '.join(f'{name} {value}' for name, value in _settings(chosen.mechanism).items())}",
        f"caps: {asked} asked, {answered} answered, in {len(answer.optimum.config.rounds)} rounds",
        f"expected: {_numbers(chosen)}",
        f"wrote {out}. Next: labelwall run --config {out} --run_dir DIR"
        if out
        else "--out FILE.yaml writes this configuration.",
    ]


def frontier_png(frontier: Sequence[Choice[PrivateKnn]] | Sequence[Choice[IndKnn]]) -> bytes:
    """PNG: expected right labels (left axis) and label accuracy in percent (right axis) against epsilon."""
    import io

    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    epsilons = [choice.epsilon for choice in frontier]
    with matplotlib.rc_context(STYLE | {"axes.spines.right": True}):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained", dpi=150)
        FigureCanvasAgg(figure)
        left = figure.subplots()
        right = left.twinx()
        left.plot(
            epsilons,
            [c.forecast.right for c in frontier],
            color=STUDENT,
            marker="o",
            label="expected right labels",
        )
        percent = [100 * c.forecast.accuracy for c in frontier]
        right.plot(
            epsilons,
            percent,
            color=LABELS,
            marker="s",
            linestyle="--",
            label="labels right, percent",
        )
        left.set_ylim(bottom=0)
        right.set_ylim(0, 102)
        left.set_xlabel("epsilon")
        left.set_ylabel("expected right labels", color=STUDENT)
        right.set_ylabel("labels right, percent", color=LABELS)
        figure.legend(loc="outside upper center", ncols=2, labelcolor=INK)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
