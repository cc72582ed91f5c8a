"""`compare`: every method on the same split, students and budgets.

A cell is a method at a budget with a seed.

A finished cell is a result.json, written last; a run's folder inside it resumes by itself. So an
interrupted comparison resumes, and the run folder refuses a cell whose settings changed.
"""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...student.devices import require_devices
from ...teacher.accounting.accountant import require_affordable
from ...teacher.baselines.config import PrivateClassification
from ...teacher.baselines.private_classifiers import require_diffprivlib
from ...teacher.features.cache import cache_name
from ...teacher.noise.entropy import Entropy
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import LabelwallError
from ...wall.label_kinds import ERRORS
from ...wall.messages import ExtractorSpec
from ..config.config import solved_line, solved_numbers
from ..run.console import Console
from ..run.features import embedder_of, starting_extractor
from ..run.rounds import run
from .cells import baseline_result, reference_result
from .config import CompareConfig, MethodConfig, PointConfig
from .plots import plots, score


@dataclass(frozen=True)
class Cell:
    """One method at one budget with one seed.

    ``epsilon``: the budget, None for a reference without privacy.
    """

    method: MethodConfig
    point: PointConfig | None
    epsilon: float | None
    seed: int

    @property
    def folder(self) -> str:
        """Its place under the comparison's folder."""
        budget = "no_privacy" if self.epsilon is None else f"epsilon_{self.epsilon:g}"
        method = re.sub(r"[^a-z0-9]+", "_", self.method.name.lower()).strip("_")
        return f"{method}/{budget}/seed_{self.seed}"


def cells(config: CompareConfig) -> Iterator[Cell]:
    """All cells, seed by seed, so that an interrupted comparison has every method once."""
    for seed in config.seeds:
        for method in config.methods:
            for point in method.points:
                yield Cell(method, point, point.epsilon, seed)
            for epsilon in method.epsilons:
                yield Cell(method, None, epsilon, seed)
            if method.reference is not None:
                yield Cell(method, None, None, seed)


def compare(
    config: CompareConfig, out: Path, *, entropy: Entropy, console: Console
) -> list[dict[str, Any]]:
    """Run, or finish, all cells; returns the table's rows.

    Nothing is read before every budget is affordable.

    Writes comparison.json, comparison.md and plots into ``out``; private caches into OUT.custodian
    (mode 0700).
    """
    require_devices(config.student)
    for cell in cells(config):
        if cell.point is not None:
            point = config.run_config(cell.point, cell.seed, "")
            require_affordable(point.solved(console.progress).plan())
        if isinstance(cell.method.baseline, PrivateClassification):
            require_diffprivlib()
    places = [cell.folder for cell in cells(config)]
    if len(set(places)) != len(places):
        raise LabelwallError(
            "two methods or budgets of the comparison would share a folder. "
            "Give them different names."
        )
    _remember(config, out)
    private = Path(f"{out}.custodian")
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    private.chmod(0o700)  # private embeddings lie below
    results = []
    for number, cell in enumerate(cells(config), start=1):
        console.say(f"cell {number} of {len(places)}: {cell.folder}{_noise(config, cell)}")
        results.append(_result(config, cell, out, entropy, console))
        _write(out, results)
    return summarise(results)


def _noise(config: CompareConfig, cell: Cell) -> str:
    """The numbers that a cell's budget decided, for its line."""
    if cell.point is None:
        return ""
    line = solved_line(solved_numbers(config.run_config(cell.point, cell.seed, "")))
    return f", {line}" if line else ""


def _remember(config: CompareConfig, out: Path) -> None:
    """Record the settings that all cells share.

    Raises LabelwallError for another split, student or delta, which need another folder.
    """
    out.mkdir(parents=True, exist_ok=True)
    shared = asdict(config)
    # More methods and seeds may be added later.
    for name in ("methods", "seeds", "threads", "workers", "batch_size"):
        del shared[name]
    text, path = json.dumps(shared, indent=2, sort_keys=True), out / "shared.json"
    if path.exists() and path.read_text() != text:
        raise LabelwallError(
            f"{out} holds a comparison of another split, student or delta. Choose another --out."
        )
    path.write_text(text)


def _result(
    config: CompareConfig, cell: Cell, out: Path, entropy: Entropy, console: Console
) -> dict[str, Any]:
    """A cell's result: read from its file when it is finished, otherwise by running it.

    Raises LabelwallError where the finished one had other settings.
    """
    place, settings = out / cell.folder, json.loads(json.dumps(asdict(cell)))
    kept = place / "result.json"
    if kept.exists():
        stored = json.loads(kept.read_text())
        if stored["cell"] != settings:
            raise LabelwallError(f"{place} holds a cell with other settings. Choose another --out.")
        return dict(stored["result"])
    place.mkdir(parents=True, exist_ok=True)
    private, started = Path(f"{out}.custodian"), _cpu_seconds()
    if cell.point is not None:
        outcome = _answered(config, cell, place, private, entropy, console)
    elif cell.method.baseline is not None:
        assert cell.epsilon is not None
        outcome = baseline_result(
            config, cell.method.baseline, cell.epsilon, cell.seed, private / "shared", console
        )
    else:
        outcome = reference_result(
            config, cell.method.reference == "non_private", cell.seed, place / "student"
        )
    result = {
        "method": cell.method.name,
        "budget": cell.epsilon,
        "delta": config.delta,
        "seed": cell.seed,
        **outcome,
    }
    result["cpu_seconds"] = round(_cpu_seconds() - started, 1)
    scratch = kept.with_suffix(".part")
    scratch.write_text(json.dumps({"cell": settings, "result": result}, indent=2))
    scratch.replace(kept)
    return result


def _cpu_seconds() -> float:
    """CPU seconds of this process, its threads and the workers it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _answered(
    config: CompareConfig,
    cell: Cell,
    place: Path,
    private: Path,
    entropy: Entropy,
    console: Console,
) -> dict[str, Any]:
    """A run of `labelwall run`.

    Embeddings under the first features are shared: every cell has the same private rows.
    """
    assert cell.point is not None
    own = private / cell.folder
    settings = config.run_config(cell.point, cell.seed, str(own))
    inputs = read_public(config.data).inputs

    def plain(spec: ExtractorSpec) -> np.ndarray:
        return embedder_of(settings.computing, spec, inputs).features(inputs)

    spec = starting_extractor(settings.first, describe(config.data), plain)
    cache = cache_name(spec, settings.device)
    _link(private / "shared" / cache, own / cache)
    summary: dict[str, Any] = run(settings, place / "run", entropy=entropy, console=console)
    _link(own / cache, private / "shared" / cache)
    rounds = summary["rounds"]
    kept = rounds[summary["best_round"] - 1]
    return {
        "epsilon": summary["epsilon"],
        "labels": kept["answered"]
        if settings.mechanism_of(len(rounds)).once_a_round
        else sum(r["answered"] for r in rounds),
        "label_accuracy": kept["label_accuracy"],
        "accuracy": summary["test_accuracy"],
        "label_errors": kept.get("label_errors"),
        "errors": summary.get("test_errors"),
    }


def _link(source: Path, target: Path) -> None:
    """One file under two names, in folders of mode 0700.

    Caches are replaced, never changed in place.
    """
    if source.exists() and not target.exists():
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.link(source, target)


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


def _write(out: Path, results: list[dict[str, Any]]) -> None:
    """comparison.json, comparison.md and the plots, of the cells that are done."""
    rows = summarise(results)
    (out / "comparison.json").write_text(json.dumps({"table": rows, "cells": results}, indent=2))
    (out / "comparison.md").write_text(render(rows) + "\n")
    for name, svg in plots(rows).items():
        (out / f"{name}.svg").write_bytes(svg)
