"""A comparison's table and picture, and its cells as lines for CSV files and data frames."""

import csv
import io
import statistics
import warnings
from typing import TYPE_CHECKING, Any

from ...student.measures import MEANS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Results = list[dict[str, Any]]  # of cells, or lines of them
MEASURES = ("accuracy", *MEANS)  # of classes and attributes
COLUMNS = (
    *("method", "data", "budget", "delta", "seed", "epsilon", "claim", "labels", "label_accuracy"),
    *("label_rmse", *MEASURES, "rmse", "mae", "r2", "cpu_seconds", "refused"),
)
IN_PERCENT = "accuracy", "balanced_accuracy", "sensitivity"  # of MEASURES
MARKERS = "osD^vP*X<>"
SIZE = 6.4, 4.2  # of the picture, inches
INK = "#1b2733"
MEDIANS = (
    *("labels", "label_accuracy", "accuracy", "label_errors", "errors", "measures"),
    "cpu_seconds",
)
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


def summarise(results: Results, measure: str = "accuracy") -> Results:
    """One row for each method and budget: medians over the seeds, and a range.

    ``score`` and the range are those of the ``measure``, or of R2 if rows have values.
    """
    rows = []
    for (method, _), group in _groups(results).items():
        scores = [s for result in group if (s := _score(result, measure)) is not None]
        epsilons = [result["epsilon"] for result in group]
        row = {
            "method": method,
            "epsilon": None if None in epsilons else max(epsilons),
            "claim": group[0].get("claim"),
            "seeds": len(group),
            "measure": measure,
            "score": _median(scores),
            "low": min(scores, default=None),
            "high": max(scores, default=None),
        }
        rows.append(row | {name: _median([r.get(name) for r in group]) for name in MEDIANS})
    return rows


def _groups(results: Results) -> dict[tuple[str, float | None], Results]:
    groups: dict[tuple[str, float | None], Results] = {}
    for result in results:
        groups.setdefault((result["method"], result["budget"]), []).append(result)
    return groups


def _median(values: list[Any]) -> Any:
    """Median of the known values, per error name; None if there are none."""
    known = [value for value in values if value is not None]
    if known and isinstance(known[0], dict):
        return {name: _median([errors[name] for errors in known]) for name in known[0]}
    return statistics.median(known) if known else None


def _score(result: dict[str, Any], measure: str) -> float | None:
    """What a cell is judged by, None if it is unknown."""
    known = {**result, **(result.get("measures") or {}), **(result.get("errors") or {})}
    return known.get("r2", known.get(measure))


def render(rows: Results) -> str:
    """The table in Markdown; below it, whose epsilon it is if the ledger does not certify it."""
    scores = f"labels right | test {_name(rows)}, median (range)"
    if any(row["errors"] for row in rows):
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
    """The cells of labels and test rows: errors of values, or the measure of classes."""
    if row["score"] is None and row["accuracy"] is None:
        return "nothing affordable |" + " | |" * bool(row["errors"])
    if errors := row["errors"]:
        right = f"{row['label_errors']['rmse']:.4g}" if row["label_errors"] else ""
        spread = f"({row['low']:.3f} to {row['high']:.3f})"
        return f"{right} | {errors['rmse']:.4g} | {errors['mae']:.4g} | {errors['r2']:.3f} {spread}"
    labels, factor = row["label_accuracy"], _factor(row)
    right = "" if labels is None else f"{100 * labels:.1f}%"
    if row["score"] is None:
        return f"{right} | unknown"
    form, sign = (".2f", "%") if factor == 100 else (".4f", "")
    score, low, high = (f"{factor * row[name]:{form}}" for name in ("score", "low", "high"))
    spread = f" ({low} to {high})" if row["seeds"] > 1 else ""
    return f"{right} | {score}{sign}{spread}"


def _factor(row: dict[str, Any]) -> int:
    """By which a row's measure of classes is shown."""
    return 100 if row["measure"] in IN_PERCENT else 1


def _name(rows: Results) -> str:
    """What rows are judged by, if they have classes."""
    name = str(rows[0]["measure"])
    return {"auroc": "AUROC", "brier": "Brier score"}.get(name, name.replace("_", " "))


def plot(rows: Results) -> bytes:
    """SVG of each method's score by epsilon, its range as a band, and of the references.

    The same rows give the same bytes, without a date or a program's name. matplotlib is imported
    here, and its figure used without pyplot, so that no global state is touched.
    """
    import matplotlib
    from matplotlib.figure import Figure

    errors, what = any(row["errors"] for row in rows), _name(rows)
    unit = 1 if errors else _factor(rows[0])
    what = "R2 on" if errors else "percent right of" if what == "accuracy" else f"{what} on"
    buffer, undated = io.BytesIO(), {"Date": None, "Creator": None}
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # The reader's browser has fonts that this machine lacks
        warnings.filterwarnings("ignore", message="Glyph")
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        axes.set(xlabel="epsilon", ylabel=f"{what} the test split")
        _draw(axes, rows, unit)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        figure.savefig(buffer, format="svg", metadata=undated, transparent=True)
    return buffer.getvalue()


def _draw(axes: "Axes", rows: Results, unit: int) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    rows = [row for row in rows if row["score"] is not None]
    references = [row for row in rows if row["epsilon"] is None]
    references.sort(key=lambda row: row["score"], reverse=True)
    methods = dict.fromkeys(row["method"] for row in rows if row["epsilon"] is not None)
    for place, method in enumerate(methods):
        points = [row for row in rows if row["method"] == method]
        points.sort(key=lambda row: row["epsilon"])
        at, scores = zip(*((row["epsilon"], unit * row["score"]) for row in points), strict=True)
        low, high = ([unit * row[end] for row in points] for end in ("low", "high"))
        (line,) = axes.plot(at, scores, marker=MARKERS[place % len(MARKERS)], label=method)
        axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        if len(at) == 1:  # where a band has no width
            axes.vlines(at, low, high, color=line.get_color())
    for place, row in enumerate(references):
        height, above = unit * row["score"], "top" if place else "bottom"
        axes.axhline(height, color="#5a6875", linestyle=":")
        at, within = (0.99, height), ("axes fraction", "data")
        axes.annotate(row["method"], at, xycoords=within, ha="right", va=above, fontsize=9)
    axes.grid(alpha=0.25)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    # matplotlib's own formatter writes formulas, which are switched off.
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def lines_of(results: Results, data: str) -> Results:
    """A dict of COLUMNS for each cell, and of "auroc of GROUP" and the like; None for what it does
    not have.

    ``data``: a name of the rows. ``epsilon`` is what the cell's ledger certifies, or, where there
    is a ``claim``, what that says; ``refused`` is why a cell has no model.
    """
    lines, groups = [], {name: None for r in results for name in r.get("groups") or ()}
    columns = (*COLUMNS, *(f"{measure} of {name}" for name in groups for measure in MEASURES))
    for result in results:
        errors, of_labels = (result.get(name) or {} for name in ("errors", "label_errors"))
        known = {"data": data, "label_rmse": of_labels.get("rmse"), **result, **errors}
        known |= result.get("measures") or {}
        for group, of in (result.get("groups") or {}).items():
            known |= {f"{measure} of {group}": value for measure, value in of.items()}
        lines.append({name: known.get(name) for name in columns})
    return lines


def to_csv(lines: Results) -> str:
    """The lines as CSV, below the names of their columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0] if lines else COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def groups_table(results: Results, measure: str) -> str:
    """The table of ``render`` for each group of test rows; empty without groups."""
    tables = []
    for name in dict.fromkeys(name for result in results for name in result.get("groups") or ()):
        found = [(result.get("groups") or {}).get(name) for result in results]
        own = [
            result | {"measures": of, "accuracy": of and of["accuracy"]}
            for result, of in zip(results, found, strict=True)
        ]
        table = render(summarise(own, measure))
        tables.append(f"Test rows of the group {' '.join(name.split())}:\n\n{table}\n")
    return "\n".join(tables)
