"""A comparison's table and pictures, from the results of its cells."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import numpy as np

from ...wall.label_kinds import ERRORS
from ..report.plots import STUDENT, line_plot, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def summarise(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each method and budget: medians over the seeds, and a range.

    The range is that of the accuracy, or of R2 where rows have values.
    """
    groups: dict[tuple[str, float | None], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["method"], result["budget"]), []).append(result)
    return [_row(method, group) for (method, _), group in groups.items()]


def _row(method: str, group: list[dict[str, Any]]) -> dict[str, Any]:
    def median(name: str) -> float | None:
        known = [result[name] for result in group if result[name] is not None]
        return statistics.median(known) if known else None

    scored = [score(result) for result in group]
    epsilons = [result["epsilon"] for result in group]
    values = group[0].get("errors") is not None
    return {
        "method": method,
        "epsilon": None if None in epsilons else max(epsilons),
        "claim": group[0].get("claim"),
        "seeds": len(group),
        "labels": median("labels"),
        "label_accuracy": median("label_accuracy"),
        "accuracy": None if values else float(np.median(scored)),
        "low": min(scored),
        "high": max(scored),
        **{name: _median_errors(group, name) for name in ("errors", "label_errors") if values},
        "cpu_seconds": median("cpu_seconds"),
    }


def _median_errors(group: list[dict[str, Any]], name: str) -> dict[str, float] | None:
    """Each error's median over the seeds; None where rows have no values."""
    known = [result[name] for result in group if result.get(name) is not None]
    if not known:
        return None
    return {error: statistics.median(errors[error] for errors in known) for error in ERRORS}


def render(rows: list[dict[str, Any]]) -> str:
    """The table in Markdown; below it, whose epsilon it is where the ledger does not certify it."""
    scores = "labels right | test accuracy, median (range)"
    if any(row.get("errors") for row in rows):
        scores = "labels' RMSE | test RMSE | MAE | R2, median (range)"
    heading = f"| method | epsilon | labels | {scores} | seeds | CPU seconds |"
    lines = [heading, "|---" * (heading.count("|") - 1) + "|"]
    for row in rows:
        claimed = " (claimed)" if row["claim"] else ""
        epsilon = "no privacy" if row["epsilon"] is None else f"{row['epsilon']:g}{claimed}"
        labels = "" if row["labels"] is None else f"{row['labels']:g}"
        cost = f"{row['seeds']} | {row['cpu_seconds']:.0f}"
        lines.append(f"| {row['method']} | {epsilon} | {labels} | {_scores(row)} | {cost} |")
    claims = {row["method"]: row["claim"] for row in rows if row["claim"]}
    lines += [f"\n{method}: epsilon is {claim}." for method, claim in claims.items()]
    return "\n".join(lines)


def _scores(row: dict[str, Any]) -> str:
    """The cells of labels and test rows: errors of values, or shares of right classes."""
    if errors := row.get("errors"):
        labels = row["label_errors"]
        right = f"{labels['rmse']:.4g}" if labels else ""
        spread = f"({row['low']:.3f} to {row['high']:.3f})"
        return f"{right} | {errors['rmse']:.4g} | {errors['mae']:.4g} | {errors['r2']:.3f} {spread}"
    labels, low, high = row["label_accuracy"], 100 * row["low"], 100 * row["high"]
    right = "" if labels is None else f"{100 * labels:.1f}%"
    return f"{right} | {100 * row['accuracy']:.2f}% ({low:.2f} to {high:.2f})"


def plots(rows: list[dict[str, Any]]) -> dict[str, bytes]:
    """SVG files by name. ``rows``: of compare.summarise."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    grouped = {name: [row for row in rows if row["method"] == name] for name in methods}
    private = {
        name: sorted(points, key=lambda row: row["epsilon"])
        for name, points in grouped.items()
        if points[0]["epsilon"] is not None
    }
    values = any(row.get("errors") for row in rows)
    unit, what = (1, "R2 on the test split") if values else (100, "test accuracy, percent")
    at = {name: [row["epsilon"] for row in points] for name, points in private.items()}

    lines = {name: (at[name], [unit * score(row) for row in private[name]]) for name in at}
    spread = {
        name: ([unit * row["low"] for row in points], [unit * row["high"] for row in points])
        for name, points in private.items()
    }
    labels = {name: (at[name], [row["labels"] or None for row in private[name]]) for name in at}

    def axis(axes: Axes) -> None:
        _references(axes, [row for row in rows if row["epsilon"] is None], unit)
        _epsilon_axis(axes)

    def cost(axes: Axes) -> None:
        seconds = [max(row["cpu_seconds"] for row in grouped[name]) for name in methods]
        axes.barh(methods, seconds, color=STUDENT)
        axes.invert_yaxis()

    what, released = f"{what} (median and range)", "labels released (median)"
    return {
        "accuracy_by_epsilon": line_plot(
            lines, x="epsilon", y=what, height=4.2, spread=spread, also=axis, legend=3
        ),
        "labels_by_epsilon": line_plot(
            labels, x="epsilon", y=released, height=3.4, also=_epsilon_axis, legend=3
        ),
        "cost": svg(cost, height=0.6 + 0.4 * len(methods), x="CPU seconds a cell (median)"),
    }


def score(row: dict[str, Any]) -> float:
    """What a row is judged by: the share that is right, or R2 where rows have values."""
    return float(row["accuracy"] if row.get("errors") is None else row["errors"]["r2"])


def _references(axes: Axes, rows: list[dict[str, Any]], unit: int) -> None:
    """Lines of methods without privacy; the highest has its name above, the others below."""
    for place, row in enumerate(sorted(rows, key=lambda row: -score(row))):
        height, above = unit * score(row), "top" if place else "bottom"
        axes.axhline(height, color="#5a6875", linestyle=":")
        place_of, within = (0.99, height), ("axes fraction", "data")
        axes.annotate(row["method"], place_of, xycoords=within, ha="right", va=above, fontsize=9)


def _epsilon_axis(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    # matplotlib's own formatter writes formulas, which are switched off.
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
