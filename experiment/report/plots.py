"""The report's pictures: functions from numbers to SVG bytes.

The same numbers give the same bytes. matplotlib is imported when called, and its figures are used
without pyplot, so that no global state is touched.
"""

import io
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# distinguishable without colour vision, by lightness
INK = "#1b2733"
LABELS = "#c2570c"
WIDTH = 6.4  # inches; the page scales a picture to its column
MOST_COUNTED = 20  # classes up to which a confusion matrix spells its counts out
MOST_NAMED = 60  # classes up to which it names them
Draw = Callable[["Axes"], None]

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


def svg(
    draw: Draw, *, height: float, x: str = "", y: str = "", square: bool = False, legend: int = 0
) -> bytes:
    """One pair of axes, ``height`` inches high, as SVG without a date or a program's name.

    ``x``, ``y``: what is along them; ``square``: whether both have one scale; ``legend``: columns
    of one above the picture.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # The reader's browser has fonts that this machine lacks
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.set(xlabel=x, ylabel=y, aspect="equal" if square else "auto")
        draw(axes)
        if legend and axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=legend)
        buffer, undated = io.BytesIO(), {"Date": None, "Creator": None}
        figure.savefig(buffer, format="svg", metadata=undated, transparent=True)
    return buffer.getvalue()


def confusion_matrix(counts: np.ndarray, class_names: Sequence[str]) -> bytes:
    """SVG of a confusion matrix, shaded by the share of its row.

    ``counts``: int64 [n_classes, n_classes], true class by row. Up to MOST_COUNTED classes have
    their counts in it, up to MOST_NAMED their names beside it.
    """
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    classes = len(class_names)
    size = 11 if classes <= 12 else 7 if classes <= MOST_COUNTED else 5

    def draw(axes: "Axes") -> None:
        axes.pcolormesh(shares, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=0.5)
        axes.invert_yaxis()
        axes.tick_params(length=0, labelsize=11 if classes <= MOST_COUNTED else 5)
        if classes <= MOST_NAMED:
            turned = 0 if max(map(len, class_names)) <= 2 else 60
            places, aligned = np.arange(classes) + 0.5, "right" if turned else "center"
            axes.set_xticks(places, class_names, rotation=turned, ha=aligned)
            axes.set_yticks(places, class_names)
        for row, column in np.argwhere(counts) if classes <= MOST_COUNTED else ():
            ink = "white" if shares[row, column] > 0.55 else INK
            place, text = (column + 0.5, row + 0.5), str(counts[row, column])
            axes.text(*place, text, ha="center", va="center", color=ink, fontsize=size)

    return svg(draw, height=WIDTH, x="predicted", y="true", square=True)


def value_scatter(counts: np.ndarray, low: float, high: float) -> bytes:
    """SVG of predicted against true values, with the diagonal.

    ``counts``: int64 [n, n], test rows by true and predicted value in equal parts of low..high.
    """
    edges = np.linspace(low, high, len(counts) + 1)

    def draw(axes: "Axes") -> None:
        # Predicted upwards; a place without rows stays blank
        shown = np.log1p(np.where(counts.T > 0, counts.T, np.nan))
        axes.pcolormesh(edges, edges, shown, cmap="Blues", vmin=0)
        axes.plot([low, high], [low, high], color=LABELS, linestyle="--", linewidth=1)

    return svg(draw, height=WIDTH, x="true", y="predicted", square=True)
