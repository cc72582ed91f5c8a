"""The comparison's pictures: accuracy and labels against epsilon, and what a cell costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..report.plots import STUDENT, line_plot, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_INSIDE = 6  # lines whose legend fits into the plot; that of more is beside it


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

    return {
        "accuracy_by_epsilon": line_plot(
            lines,
            x="epsilon",
            y=f"{what} (median and range)",
            height=4.2,
            spread=spread,
            also=axis,
        ),
        "labels_by_epsilon": line_plot(
            labels, x="epsilon", y="labels released (median)", height=3.4, also=_epsilon_axis
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
        axes.annotate(
            row["method"],
            (0.99, height),
            xycoords=("axes fraction", "data"),
            ha="right",
            va=above,
            fontsize=9,
        )


def _epsilon_axis(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    # matplotlib's own formatter writes formulas, which are switched off.
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    lines = len(axes.get_legend_handles_labels()[0])
    if lines > MAX_INSIDE:
        axes.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    elif lines:
        axes.legend(fontsize=9)
