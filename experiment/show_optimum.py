"""`plan --optimise`: from a configuration to the best one for its budget, shown as a table, a plot, JSON and a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiment.config import Config
from experiment.console import Console
from experiment.planner import Choice, Goal, Optimum, optimise, theorem10
from experiment.plots import INK, LABELS, STUDENT, STYLE, WIDTH
from experiment.proxy import Proxy, choose_proxy, default_records
from experiment.settings import to_yaml
from experiment.show_plan import describe_plan
from teacher.privacy.conversion import round_up
from wall.errors import InvalidInput
from wall.sources import describe, read_public

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
    """What was found, and from what."""

    optimum: Optimum
    goal: Goal
    proxy: Proxy


def best_plan(config: Config, request: Request, console: Console) -> Answer:
    """Search from public rows alone, write ``request.out`` and ``request.plot``.

    Raises InvalidInput, MissingData (public rows), BudgetRefused.
    """
    task = describe(config.data)
    public = read_public(config.data, lambda done, total: console.progress("reading public rows", done, total))
    proxy = choose_proxy(config, task, public, request.mean_accuracy, console.progress)
    queries = len(public.inputs)
    records = request.expected_records or default_records(config, queries)
    goal = Goal(config.budget.delta, records, queries, len(config.rounds), request.min_accuracy)
    answer = Answer(optimise(config, proxy, goal, console.progress), goal, proxy)
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
        f"expected records, from {answer.proxy.description}.\n"
        f"# Expected: {_numbers(chosen)}; certified epsilon {round_up(chosen.epsilon)}.\n"
    )


def _numbers(choice: Choice) -> str:
    found = choice.forecast
    return f"{found.answered:.0f} of {found.asked} answered, {100 * found.accuracy:.1f}% of the labels right"


def describe_optimum(answer: Answer) -> dict[str, object]:
    """What `plan --optimise --json` prints: `plan --json` of the choice, and optimised, frontier, proxy, theorem10."""
    chosen = answer.optimum.chosen
    asymptotic, broken = theorem10(chosen.mechanism, chosen.forecast.asked, chosen.forecast.cap, answer.goal.delta)
    return describe_plan(answer.optimum.config) | {
        "optimised": _entry(chosen),
        "frontier": [_entry(choice) for choice in answer.optimum.frontier],
        "proxy": {"votes": answer.proxy.description, "expected_records": answer.goal.expected_records},
        "theorem10": {"epsilon": asymptotic, "assumptions_broken": broken},
    }


def _entry(choice: Choice) -> dict[str, object]:
    found = choice.forecast
    expected = {"asked": found.asked, "answered": found.answered, "label_accuracy": found.accuracy, "right": found.right}
    return {"epsilon": round_up(choice.epsilon), "mechanism": choice.mechanism.fields(), "cap": found.cap, "expected": expected}


def print_optimum(answer: Answer, out: Path | None) -> None:
    """The frontier and the choice, on stdout."""
    from rich.console import Console as RichConsole

    screen = RichConsole(width=TABLE_WIDTH, highlight=False)
    screen.print(_table(answer.optimum.frontier))
    for line in _explanation(answer, out):
        screen.print(line, markup=False, soft_wrap=True)


def _table(frontier: Sequence[Choice]):  # type: ignore[no-untyped-def]
    from rich.table import Table

    names = ("epsilon", "asked", "answered", "right", "accuracy", "k", "threshold", "sigma_screen", "sigma_vote", "sampling")
    table = Table(title="most expected right labels, by budget")
    for name in names:
        table.add_column(name, justify="right")
    for choice in frontier:
        found, m = choice.forecast, choice.mechanism
        counts = f"{found.asked}", f"{found.answered:.0f}", f"{found.right:.0f}", f"{100 * found.accuracy:.1f}%"
        noise = f"{m.sigma_screen:.1f}", f"{m.sigma_vote:.1f}", f"{m.sampling_probability:g}"
        table.add_row(f"{round_up(choice.epsilon):.3f}", *counts, str(m.k), str(m.threshold), *noise)
    return table


def _explanation(answer: Answer, out: Path | None) -> list[str]:
    shown, goal, chosen = describe_optimum(answer), answer.goal, answer.optimum.chosen
    asymptotic, broken = theorem10(chosen.mechanism, chosen.forecast.asked, chosen.forecast.cap, goal.delta)
    m = chosen.mechanism
    note = "its assumptions hold" if not broken else f"not a statement here, it needs {'; '.join(broken)}"
    return [
        f"The last row is certified: epsilon {round_up(chosen.epsilon)} of {shown['budget']:g} at delta {goal.delta:g}. "
        "The others are searched with a fast price, within about 1%.",
        f"CVPR20 Theorem 10 (asymptotic): epsilon {asymptotic:.2f}; {note}.",
        f"From {answer.proxy.description}; {goal.expected_records} private records expected (--expected_records), none of them "
        "read. Every round is counted with the first round's features; later rounds' are usually better.",
        "",
        f"mechanism: k {m.k}, threshold {m.threshold}, sigma_screen {m.sigma_screen:g}, sigma_vote {m.sigma_vote:g}, "
        f"sampling_probability {m.sampling_probability:g}",
        f"caps: {chosen.forecast.asked} asked, {chosen.forecast.cap} answered, in {len(answer.optimum.config.rounds)} rounds",
        f"expected: {_numbers(chosen)}",
        f"wrote {out}. Next: labelwall run --config {out} --run_dir DIR" if out else "--out FILE.yaml writes this configuration.",
    ]


def frontier_png(frontier: Sequence[Choice]) -> bytes:
    """PNG: expected right labels (left axis) and label accuracy in percent (right axis) against epsilon."""
    import io

    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    epsilons = [choice.epsilon for choice in frontier]
    with matplotlib.rc_context(STYLE | {"axes.spines.right": True}):  # type: ignore[arg-type]
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained", dpi=150)
        FigureCanvasAgg(figure)
        left = figure.subplots()
        right = left.twinx()
        left.plot(epsilons, [c.forecast.right for c in frontier], color=STUDENT, marker="o", label="expected right labels")
        percent = [100 * c.forecast.accuracy for c in frontier]
        right.plot(epsilons, percent, color=LABELS, marker="s", linestyle="--", label="labels right, percent")
        left.set_ylim(bottom=0)
        right.set_ylim(0, 102)
        left.set_xlabel("epsilon")
        left.set_ylabel("expected right labels", color=STUDENT)
        right.set_ylabel("labels right, percent", color=LABELS)
        figure.legend(loc="outside upper center", ncols=2, labelcolor=INK)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
