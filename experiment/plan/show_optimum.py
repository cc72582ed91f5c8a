"""What a search found, as tables, lines, JSON, a plot and the head of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...teacher.accounting.conversion import round_up
from ..config.config import Config
from ..report.plots import INK, LABELS, STUDENT, STYLE, WIDTH
from .goal import Choice, Optimum
from .show_plan import describe_plan

if TYPE_CHECKING:
    from rich.table import Table

TABLE_WIDTH = 112  # columns of characters, also where the output is no terminal
SHOWN = 12  # choices in a table


def describe_optimum(config: Config, optimum: Optimum[Any]) -> dict[str, object]:
    """What `plan --optimise --json` prints.

    `plan --json` of the choice; optimised, frontier, expected_records, candidates.
    """
    return {
        **describe_plan(config),
        "optimised": _entry(optimum.chosen),
        "frontier": [_entry(choice) for choice in optimum.frontier],
        "expected_records": optimum.goal.expected_records,
        **describe_candidates(optimum),
    }


def describe_candidates(optimum: Optimum[Any]) -> dict[str, object]:
    """candidates (best first), reason, source (of the rows rehearsed on), seconds of the search."""
    return {
        "candidates": [_entry(choice) for choice in optimum.tried],
        "reason": sentence(optimum),
        "source": optimum.source,
        "seconds": round(optimum.seconds, 1),
    }


def _entry(choice: Choice[Any]) -> dict[str, object]:
    return {
        "epsilon": round_up(choice.epsilon),
        "mechanism": choice.mechanism.fields(),
        "view": None if choice.view is None else str(choice.view),
        "cap": choice.cap,
        "expected": {
            "asked": choice.asked,
            "answered": choice.answered,
            "label_accuracy": choice.accuracy,
            "right": choice.right,
            "spread": choice.spread,
        },
    }


def print_optimum(config: Config, optimum: Optimum[Any], out: Path | None) -> None:
    """The candidates, the frontier and the choice, on stdout; ``out``: written to."""
    from rich.console import Console as RichConsole

    screen = RichConsole(width=TABLE_WIDTH, highlight=False)
    if len(optimum.tried) > 1:
        screen.print(choices_table("candidates", optimum.tried))
    screen.print(choices_table("best, by budget", optimum.frontier))
    chosen = optimum.chosen
    features = f"{config.features}, {config.whiten} whitened axes" if config.whiten else ""
    for line in (
        optimum.price(),
        f"From {optimum.source}; {optimum.goal.expected_records} private records expected "
        "(--expected_records), none of them read. Every round is counted with the first round's "
        "features; later rounds' are usually better.",
        f"{sentence(optimum)} The search took {optimum.seconds:.0f} s.",
        "",
        f"features: {features or config.features}",
        f"mechanism: {_described(chosen)}",
        f"caps: {chosen.asked} asked, {chosen.cap} answered, in {optimum.goal.rounds} rounds",
        f"expected: {_numbers(chosen)}",
        f"wrote {out}. Next: labelwall run --config {out} --run_dir DIR"
        if out
        else "--out FILE.yaml writes this configuration.",
    ):
        screen.print(line, markup=False, soft_wrap=True)


def choices_table(title: str, choices: Sequence[Choice[Any]]) -> Table:
    """The first SHOWN of them."""
    from rich.table import Table

    if len(choices) > SHOWN:
        title = f"{title}: the best {SHOWN} of {len(choices)}"
    table = Table(title=title)
    accuracy = "R2" if choices[0].of_values else "labels right"
    for name in ("epsilon", accuracy, "+-", "asked", "answered", "features", "mechanism"):
        table.add_column(name)
    for choice in choices[:SHOWN]:
        table.add_row(
            f"{round_up(choice.epsilon):.3f}",
            *_accuracy(choice),
            f"{choice.asked}",
            f"{choice.answered:.0f}",
            "" if choice.view is None else str(choice.view),
            _described(choice),
        )
    return table


def _described(choice: Choice[Any]) -> str:
    """Its mechanism: kind and fields, those that are not given left out."""
    words = (
        f"{name} {value:.5g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in choice.mechanism.fields().items()
        if name != "kind" and value not in (None, 0.0)
    )
    return f"{choice.mechanism.kind}: {', '.join(words)}"


def _accuracy(choice: Choice[Any]) -> tuple[str, str]:
    """The accuracy, a share or R2, and its spread, empty where none was rehearsed."""
    if choice.of_values:
        return f"{choice.accuracy:.3f}", f"{choice.spread:.3f}" if choice.spread else ""
    return f"{choice.accuracy:.1%}", f"{100 * choice.spread:.1f}" if choice.spread else ""


def expected(choice: Choice[Any]) -> str:
    """The accuracy of a choice, for a reader."""
    accuracy, spread = _accuracy(choice)
    text = f"{accuracy} (+-{spread})" if spread else accuracy
    return f"R2 {text}" if choice.of_values else f"{text} of the labels right"


def _numbers(choice: Choice[Any]) -> str:
    what = "labels" if choice.mechanism.once_a_round else f"of {choice.asked} answered"
    return f"{choice.answered:.0f} {what}, {expected(choice)}"


def sentence(optimum: Optimum[Any]) -> str:
    """Why the best was chosen, for a reader."""
    best, goal = optimum.chosen, optimum.goal
    others = [c for c in optimum.tried if c.mechanism.kind != best.mechanism.kind]
    text = (
        f"{best.mechanism.kind} is chosen: {expected(best)} expected for "
        f"{goal.expected_records} records at epsilon {goal.epsilon:g}"
    )
    if others:
        text += f", {expected(others[0])} by the best {others[0].mechanism.kind}"
    return f"{text}."


def reason(optimum: Optimum[Any]) -> str:
    """What was chosen, why, and from what rows."""
    return (
        f"{sentence(optimum)} From {optimum.source}, in {optimum.seconds:.0f} s; no private "
        "record was read."
    )


def origin(optimum: Optimum[Any]) -> str:
    """The comment above a configuration that a search wrote."""
    chosen, goal = optimum.chosen, optimum.goal
    return (
        f"# Written by `labelwall plan --optimise` for epsilon {goal.epsilon:g}, "
        f"{goal.expected_records} expected records, from {optimum.source}.\n"
        f"# Expected: {_numbers(chosen)}; certified epsilon {round_up(chosen.epsilon)}.\n"
    )


def frontier_png(frontier: Sequence[Choice[Any]]) -> bytes:
    """PNG: expected right labels (left axis) and label accuracy (right axis) against epsilon.

    For values: answers (left axis) and R2 (right axis).
    """
    import io

    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    epsilons, values = [choice.epsilon for choice in frontier], frontier[-1].of_values
    counted = "expected answers" if values else "expected right labels"
    shared = "R2, percent" if values else "labels right, percent"
    counts = [choice.answered if values else choice.right for choice in frontier]
    percent = [100 * choice.accuracy for choice in frontier]
    with matplotlib.rc_context(STYLE | {"axes.spines.right": True}):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained", dpi=150)
        FigureCanvasAgg(figure)
        left = figure.subplots()
        right = left.twinx()
        left.plot(epsilons, counts, color=STUDENT, marker="o", label=counted)
        right.plot(epsilons, percent, color=LABELS, marker="s", linestyle="--", label=shared)
        left.set_ylim(bottom=0)
        right.set_ylim(0, 102)
        left.set_xlabel("epsilon")
        left.set_ylabel(counted, color=STUDENT)
        right.set_ylabel(shared, color=LABELS)
        figure.legend(loc="outside upper center", ncols=2, labelcolor=INK)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
