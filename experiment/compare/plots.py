"""The comparison's pictures: accuracy and labels against epsilon, and what a cell costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..report.plots import svg
from .rates import TEST_SPLIT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osD^vP*X<>"
MAX_INSIDE = 6  # lines whose legend fits into the plot; that of more is beside it


def plots(rows: list[dict[str, Any]]) -> dict[str, bytes]:
    """SVG files by name. ``rows``: of compare.summarise."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    grouped = {name: [row for row in rows if row["method"] == name] for name in methods}
    values = any(row.get("errors") for row in rows)
    unit, what = (1, "R2 on the test split") if values else (100, "test accuracy, percent")

    def accuracy(axes: Axes) -> None:
        for marker, (name, points) in zip(MARKERS * len(methods), grouped.items(), strict=False):
            if points[0]["epsilon"] is None:
                continue
            points = sorted(points, key=lambda row: row["epsilon"])
            middle = [unit * score(row) for row in points]
            spread = [[m - unit * row["low"] for m, row in zip(middle, points, strict=True)]]
            spread += [[unit * row["high"] - m for m, row in zip(middle, points, strict=True)]]
            axes.errorbar(
                [row["epsilon"] for row in points],
                middle,
                yerr=spread,
                marker=marker,
                capsize=3,
                label=_label(name, points),
            )
        _references(axes, [row for row in rows if row["epsilon"] is None], unit)
        _epsilon_axis(axes, f"{what} (median and range)")

    def labels(axes: Axes) -> None:
        for marker, (name, points) in zip(MARKERS * len(methods), grouped.items(), strict=False):
            known = sorted(
                (row["epsilon"], row["labels"])
                for row in points
                if row["epsilon"] is not None and row["labels"]
            )
            if known:
                axes.plot(*zip(*known, strict=True), marker=marker, label=name)
        _epsilon_axis(axes, "labels released (median)")

    def cost(axes: Axes) -> None:
        axes.barh(
            methods,
            [max(row["cpu_seconds"] for row in grouped[name]) for name in methods],
            color="#1f6feb",
        )
        axes.invert_yaxis()
        axes.set_xlabel("CPU seconds a cell (median)")

    return {
        "accuracy_by_epsilon": svg(accuracy, height=4.2),
        "labels_by_epsilon": svg(labels, height=3.4),
        "cost": svg(cost, height=0.6 + 0.4 * len(methods)),
    }


def _label(name: str, points: list[dict[str, Any]]) -> str:
    """A method's name, with a word where its learning rates are the best on the test split."""
    best = any(TEST_SPLIT in (row.get("rates") or "") for row in points)
    return f"{name} (rates by the test split)" if best else name


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


def _epsilon_axis(axes: Axes, y: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    # matplotlib's own formatter writes formulas, which are switched off.
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("epsilon")
    axes.set_ylabel(y)
    axes.grid(alpha=0.25)
    if lines := len(axes.get_legend_handles_labels()[0]):
        if lines > MAX_INSIDE:
            axes.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
        else:
            axes.legend(fontsize=9)
