"""The report's pictures: functions from numbers to SVG or PNG bytes.

The same numbers give the same bytes.

matplotlib is imported when called. Its figures are used directly, without pyplot, so that no global
state is touched.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# distinguishable without colour vision, by lightness
INK = "#1b2733"
STUDENT = "#1f6feb"
LABELS = "#c2570c"
CAP = "#a4133c"
WIDTH = 6.4  # inches; the page scales a picture to its column
MOST_COUNTED = 20  # classes up to which a confusion matrix spells its counts out
EPSILON_DIGITS = 3

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "labelwall",  # element ids are random otherwise
    "svg.fonttype": "none",  # text stays text: small, searchable, drawn with the reader's font
    "text.parse_math": False,  # class names are the user's, dollars included
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def accuracy_by_round(
    label_accuracy: Sequence[float | None], student_accuracy: Sequence[float]
) -> bytes:
    """SVG: accuracy of released labels and of the student on test rows, by round; in 0..1.

    A label accuracy of None (the public rows have no true labels) leaves its point out.
    """

    def draw(axes: Axes) -> None:
        labels = [None if a is None else 100 * a for a in label_accuracy]
        students = [100 * a for a in student_accuracy]
        names = "released labels right", "student right on the test split"
        _labels_and_students(axes, labels, students, *names)
        for x, y in enumerate(students, start=1):
            axes.annotate(
                f"{y:.1f}",
                (x, y),
                textcoords="offset points",
                xytext=(0, -15),
                ha="center",
                color=STUDENT,
            )
        axes.margins(y=0.25)
        axes.set_ylim(top=min(100.6, axes.get_ylim()[1]))
        axes.set_ylabel("percent")

    return svg(draw, height=3.2)


def errors_by_round(label_rmse: Sequence[float | None], student_rmse: Sequence[float]) -> bytes:
    """SVG: root mean squared error of released values and of the student, by round.

    The student's is that on test rows; both are in the values' unit.

    A label error of None (the public rows have no true values) leaves its point out.
    """

    def draw(axes: Axes) -> None:
        names = "released values", "student on the test split"
        _labels_and_students(axes, label_rmse, student_rmse, *names)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("root mean squared error")

    return svg(draw, height=3.2)


def epsilon_by_round(readings: Sequence[float], certified: float | None, budget: float) -> bytes:
    """SVG: the odometer's reading after each round, the certified epsilon and the budget.

    ``certified``: None where nothing is certified. All dimensionless, at the plan's delta.
    """

    def draw(axes: Axes) -> None:
        rounds = list(range(1, len(readings) + 1))
        bars = axes.bar(rounds, readings, width=0.5, color=STUDENT, label="reading after the round")
        # A line must not run through a number
        paper = {
            "facecolor": "white",
            "edgecolor": "none",
            "pad": 1,
        }
        axes.bar_label(bars, fmt=lambda value: f"{value:.{EPSILON_DIGITS}f}", padding=3, bbox=paper)
        if certified is not None:
            axes.axhline(certified, color=CAP, label="certified, all caps used")
        axes.axhline(budget, color=INK, linestyle=":", label="budget")
        axes.set_ylim(0, 1.15 * max(budget, certified or 0.0, *readings))
        _round_axis(axes, len(rounds))
        axes.set_ylabel("epsilon")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)

    return svg(draw, height=3.2)


def confusion_matrix(counts: np.ndarray, class_names: Sequence[str]) -> bytes:
    """SVG of a confusion matrix, shaded by the share of its row.

    ``counts``: int64 [n_classes, n_classes], true class by row.
    """
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    classes = len(class_names)

    def draw(axes: Axes) -> None:
        axes.pcolormesh(shares, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=0.5)
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.tick_params(length=0)
        if classes > MOST_COUNTED:
            return
        turned = 0 if max(map(len, class_names)) <= 2 else 60
        axes.set_xticks(
            np.arange(classes) + 0.5,
            class_names,
            rotation=turned,
            ha="right" if turned else "center",
        )
        axes.set_yticks(np.arange(classes) + 0.5, class_names)
        for row, column in np.argwhere(counts):
            ink = "white" if shares[row, column] > 0.55 else INK
            text = str(counts[row, column])
            axes.text(
                column + 0.5,
                row + 0.5,
                text,
                ha="center",
                va="center",
                color=ink,
                fontsize=11 if classes <= 12 else 7,
            )

    return svg(draw, height=WIDTH)


def attribute_accuracy(counts: np.ndarray, names: Sequence[str]) -> bytes:
    """SVG of the accuracy of each attribute, beside that of its more frequent value.

    ``counts``: int64 [n_attributes, 2, 2], test rows by attribute, true and predicted value.
    """
    rows = counts.sum(axis=(1, 2))
    right = 100 * counts.trace(axis1=1, axis2=2) / rows
    frequent = 100 * counts.sum(axis=2).max(axis=1) / rows

    def draw(axes: Axes) -> None:
        places = np.arange(len(names))
        bars = axes.barh(places, right, color=STUDENT, height=0.6, label="student")
        axes.bar_label(bars, fmt="%.1f", padding=3)
        axes.plot(
            frequent,
            places,
            linestyle="none",
            marker="|",
            markersize=12,
            color=LABELS,
            label="the more frequent answer",
        )
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.set_xlim(0, 108)
        axes.set_xlabel("test rows right, percent")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)

    return svg(draw, height=1.2 + 0.3 * len(names))


def class_accuracy(scores: Sequence[tuple[str, int, float | None]]) -> bytes:
    """SVG of the accuracy of each class. ``scores``: name, test rows, share right or None."""

    def draw(axes: Axes) -> None:
        places = np.arange(len(scores))
        shares = [100 * (right or 0.0) for _, _, right in scores]
        bars = axes.barh(places, shares, color=STUDENT, height=0.6)
        texts = ["no test rows" if r is None else f"{100 * r:.1f}% of {n}" for _, n, r in scores]
        axes.bar_label(bars, texts, padding=3)
        axes.set_yticks(places, [name for name, _, _ in scores])
        axes.invert_yaxis()
        axes.set_xlim(0, 125)
        axes.set_xticks(range(0, 101, 20))
        axes.set_xlabel("test rows right, percent")

    return svg(draw, height=0.9 + 0.3 * len(scores))


def reliability(bins: Sequence[Sequence[float]]) -> bytes:
    """SVG of the share of right answers by certainty, the diagonal, and how many rows each bin has.

    ``bins``: rows, mean certainty and share right of bins of equal width.
    """

    def draw(axes: Axes) -> None:
        most = max(count for count, _, _ in bins)
        width = 1 / len(bins)
        for place, (count, certainty, right) in enumerate(bins):
            middle = (place + 0.5) * width
            axes.bar(middle, 0.25 * count / most, width=width, color=LABELS, alpha=0.25)
            if count:
                axes.plot([certainty, certainty], [certainty, right], color=CAP, linewidth=1)
                axes.plot(certainty, right, color=STUDENT, marker="o")
        axes.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=1)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.04)
        axes.set_aspect("equal")
        axes.set_xlabel("how sure the student is")
        axes.set_ylabel("share of these that is right")

    return svg(draw, height=4.4)


def value_scatter(counts: np.ndarray, low: float, high: float) -> bytes:
    """SVG of predicted against true values, with the diagonal.

    ``counts``: int64 [n, n], test rows by true and predicted value in equal parts of low..high.
    """
    edges = np.linspace(low, high, len(counts) + 1)

    def draw(axes: Axes) -> None:
        # Predicted upwards; a place without rows stays blank
        shown = np.log1p(np.where(counts.T > 0, counts.T, np.nan))
        axes.pcolormesh(edges, edges, shown, cmap="Blues", vmin=0)
        axes.plot([low, high], [low, high], color=LABELS, linestyle="--", linewidth=1)
        axes.set_aspect("equal")
        axes.set_xlabel("true")
        axes.set_ylabel("predicted")

    return svg(draw, height=WIDTH)


def curve(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, x: str, y: str
) -> bytes:
    """SVG of lines over training. ``series``: name -> (x values, y values of the same length)."""

    def draw(axes: Axes) -> None:
        for name, (at, values) in series.items():
            axes.plot(at, values, label=name, marker="." if len(at) < 30 else None)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(alpha=0.25)
        if len(series) > 1:
            axes.legend()

    return svg(draw, height=2.8)


def png(image: np.ndarray) -> bytes:
    """A PNG file of one image, uint8 [height, width, 1 or 3]."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(buffer, format="PNG")
    return buffer.getvalue()


def _labels_and_students(
    axes: Axes, labels: Sequence[float | None], students: Sequence[float], *names: str
) -> None:
    """Two lines over the rounds with their names; a label's score of None is left out."""
    ours, theirs = names
    known = [(r, y) for r, y in enumerate(labels, start=1) if y is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color=LABELS, marker="s", linestyle="--", label=ours)
    axes.plot(range(1, len(students) + 1), students, color=STUDENT, marker="o", label=theirs)
    _round_axis(axes, len(students))
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def _round_axis(axes: Axes, rounds: int) -> None:
    axes.set_xlim(0.5, rounds + 0.5)
    axes.set_xticks(range(1, rounds + 1))
    axes.set_xlabel("round")


def svg(draw: Callable[[Axes], None], *, height: float) -> bytes:
    """One pair of axes, ``height`` inches high, as SVG without a date or a program's name."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # The reader's browser has fonts that this machine lacks
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.subplots())
        buffer = io.BytesIO()
        figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True
        )
    return buffer.getvalue()
