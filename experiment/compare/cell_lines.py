"""A comparison's cells as lines, for CSV files and data frames, and their means in LaTeX."""

import csv
import io
from statistics import fmean
from typing import Any

COLUMNS = (
    *("method", "data", "budget", "delta", "seed", "epsilon", "claim", "labels", "label_accuracy"),
    *("label_rmse", "accuracy", "rmse", "mae", "r2", "cpu_seconds", "refused"),
)
# What LaTeX shows of each line: heading, factor and format
SHARES = {"accuracy": (r"Accuracy (\%)", 100, ".1f")}
ERRORS = {"rmse": ("RMSE", 1, ".4g"), "r2": ("$R^2$", 1, ".3f")}


def lines_of(results: list[dict[str, Any]], data: str) -> list[dict[str, Any]]:
    """A dict of COLUMNS for each cell, None for what it does not have.

    ``data``: a name of the rows. ``epsilon`` is what the cell's ledger certifies, or, where there
    is a ``claim``, what that says; ``refused`` is why a cell has no model.
    """
    lines = []
    for result in results:
        errors, of_labels = (result.get(name) or {} for name in ("errors", "label_errors"))
        known = {"data": data, "label_rmse": of_labels.get("rmse"), **result, **errors}
        lines.append({name: known.get(name) for name in COLUMNS})
    return lines


def to_csv(lines: list[dict[str, Any]]) -> str:
    """The lines as CSV, below the names of their columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def to_latex(lines: list[dict[str, Any]], note: str) -> str:
    """A table for booktabs, below a ``note``: by method and budget mean and range over seeds."""
    groups: dict[tuple[str, float | None], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["method"], line["budget"]), []).append(line)
    shown = ERRORS if any(line["r2"] is not None for line in lines) else SHARES
    heading = ["Method", r"$\varepsilon$", *(name for name, *_ in shown.values()), "Seeds"]
    rows = [heading]
    for (method, budget), group in groups.items():
        claimed = " (claimed)" if group[0]["claim"] else ""
        epsilon = "--" if budget is None else f"{max(line['epsilon'] for line in group):g}{claimed}"
        scores = [_spread([line[name] for line in group], *form) for name, form in shown.items()]
        # Of LaTeX's special characters a name can have this one alone (``MethodConfig``)
        rows.append([method.replace("_", r"\_"), epsilon, *scores, str(len(group))])
    first, *others = (" & ".join(row) + r" \\" for row in rows)
    columns = "l" + "r" * (len(heading) - 1)
    top = f"% Means, and ranges over seeds. {note}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"
    return "\n".join([*top, first, r"\midrule", *others, r"\bottomrule", r"\end{tabular}", ""])


def _spread(values: list[float | None], _: str, factor: int, form: str) -> str:
    """Mean and range of the known ``values``; a dash if the budget bought nothing."""
    known = [factor * value for value in values if value is not None]
    if not known:
        return "--"
    ends = f" ({min(known):{form}} to {max(known):{form}})" if len(known) > 1 else ""
    return f"{fmean(known):{form}}{ends}"
