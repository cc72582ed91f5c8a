"""`compare`: every method on the same split, students and budgets.

A finished cell is a result.json, written last; a run's folder inside it resumes by itself. So an
interrupted comparison resumes, and a cell whose settings changed is refused.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...student.asking.features import digest
from ...student.data import Pool
from ...student.devices import require_devices
from ...student.train import LINEAR, outputs, statistics, train
from ...teacher.accounting.accountant import require_affordable
from ...teacher.baselines.config import PrivateClassification
from ...teacher.baselines.private_classifiers import require_diffprivlib
from ...teacher.custody.places import tell_budgets
from ...teacher.custody.solver import solved
from ...teacher.noise.entropy import Entropy
from ...teacher.private_files import make_private
from ...teacher.records.sources import open_records
from ...wall.console import Console
from ...wall.datasets.config import PublicData
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import BudgetRefused, InvalidInput, LabelwallError
from ...wall.files import reading, write_file
from ...wall.labels import has_truth
from ...wall.preprocessing import Preprocessing
from ..config.config import Config
from ..config.own import CURES
from ..plan.search import decided
from ..run.door import resumed
from ..run.entry import run
from ..run.run_folder import RunFolder
from .baselines import first_embedder, rehearsed, trained
from .config import Cell
from .table import plot, render, summarise

RESTORE = "Restore it: without it a baseline is trained anew, which is another release."


def compare(
    cells: list[Cell], out: Path, *, entropy: Entropy, console: Console
) -> list[dict[str, Any]]:
    """Run, or finish, all cells; returns the table's rows.

    Nothing is read before every budget is affordable. Writes comparison.json, comparison.md and a
    plot into ``out``; each run's custodian's directory is in OUT.custodian (mode 0700). Raises
    LabelwallError where ``out`` holds a cell of that name with other settings.
    """
    require_devices(cells[0].config.student)
    torch.set_num_threads(cells[0].config.threads)
    if len({cell.folder for cell in cells}) != len(cells):
        text = "two methods or budgets of the comparison would share a folder."
        raise LabelwallError(f"{text} Give them different names.")
    for cell in cells:
        if cell.runs and not cell.config.open:
            require_affordable(solved(cell.config.schedule, console.progress).plan())
        if isinstance(cell.baseline, PrivateClassification):
            require_diffprivlib()
    custodian, public = Path(f"{out}.custodian"), read_public(cells[0].config.data)
    results = [_stored(cell, out, public) for cell in cells]  # before anything is written
    if not len(public.test_labels):
        raise InvalidInput("data.test", "given: methods are compared on it", None, CURES["test"])
    make_private(custodian)
    console.say(spent(cells))
    for place, cell in enumerate(cells):
        console.say(f"cell {place + 1} of {len(cells)}: {cell.folder}")
        results[place] = results[place] or _result(cell, out, custodian, public, entropy, console)
        known = [result for result in results if result is not None]
        rows = summarise(known)
        content = json.dumps({"table": rows, "cells": known}, indent=2)
        write_file(out / "comparison.json", content)
        write_file(out / "comparison.md", f"{render(rows)}\n\n{spent(cells)}\n")
        write_file(out / "accuracy_by_epsilon.svg", plot(rows))
    return rows


def spent(cells: list[Cell]) -> str:
    """What a comparison costs the records, in one line."""
    budgets = [cell.config.budget for cell in cells if cell.epsilon is not None]
    epsilon, delta = sum(b.epsilon for b in budgets), sum(b.delta for b in budgets)
    text = f"{len(budgets)} releases of the same records spend the sum, epsilon {epsilon:g} at "
    text += f"delta {delta:.3g}, whichever is used, beside other runs on them"
    if any(cell.baseline for cell in cells):
        text += "; epsilons of baselines are claims"
    if any(cell.reference == "non_private" for cell in cells):
        text += "; students of all private labels have no privacy: this folder is the custodian's"
    return f"{text}."


def _settings(cell: Cell, public: PublicData) -> dict[str, Any]:
    """All that decides its result, the test rows included, as JSON."""
    tests = digest(public.test_inputs, digest(public.test_labels))
    return cell.settings() | {"test_sha256": tests}


def _stored(cell: Cell, out: Path, public: PublicData) -> dict[str, Any] | None:
    """A finished cell's result. Raises LabelwallError where it had other settings."""
    kept = out / cell.folder / "result.json"
    if not kept.exists():
        return None
    with reading(kept, RESTORE):
        stored = json.loads(kept.read_text())
    if stored["cell"] != _settings(cell, public):
        text = f"{kept.parent} holds a cell with other settings or test rows. Choose another --out."
        raise LabelwallError(text)
    return dict(stored["result"])


def _result(
    cell: Cell, out: Path, custodian: Path, public: PublicData, entropy: Entropy, console: Console
) -> dict[str, Any]:
    place, started = out / cell.folder, _cpu_seconds()
    place.mkdir(parents=True, exist_ok=True)
    try:
        if cell.baseline is not None:
            settings, baseline = cell.config.public_side(), cell.baseline
            budget, own = cell.config.budget, str(custodian / cell.folder)
            tell_budgets(replace(cell.config.private_side(), custodian_dir=own), console.warn)
            if cell.rehearsed:
                settings, baseline = rehearsed(settings, budget, baseline, public, console)
            outcome = trained(settings, budget, baseline, public, console)
        elif cell.reference is not None:
            outcome = _reference(cell, public, place)
        else:
            outcome = _answered(
                cell.config, place / "run", custodian / cell.folder, entropy, console
            )
    except BudgetRefused as error:
        outcome = {"epsilon": cell.epsilon, "refused": str(error)}
    name = {"method": cell.method, "budget": cell.epsilon, "delta": cell.config.budget.delta}
    seconds = round(_cpu_seconds() - started, 1)
    result = {**name, "seed": cell.config.seed, **outcome, "cpu_seconds": seconds}
    kept = {"cell": _settings(cell, public), "result": result}
    write_file(place / "result.json", json.dumps(kept, indent=2))
    return result


def _cpu_seconds() -> float:
    """CPU seconds of this process, its threads and the workers it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _answered(
    config: Config, folder: Path, custodian: Path, entropy: Entropy, console: Console
) -> dict[str, Any]:
    """What a run says, as `labelwall run` makes it."""
    config = resumed(config, RunFolder(folder))
    if config.open:
        config = decided(config, RunFolder(folder), custodian, console)
    summary = run(config, folder, entropy=entropy, console=console, custodian=custodian)
    kept, once = summary.kept, config.schedule.mechanism_of(len(summary.rounds)).once_a_round
    return {
        "epsilon": summary.epsilon,
        "labels": kept.answered if once else sum(result.answered for result in summary.rounds),
        "label_accuracy": kept.label_accuracy,
        "accuracy": summary.test_accuracy,
        "label_errors": kept.label_errors,
        "errors": summary.test_errors,
    }


def _reference(cell: Cell, public: PublicData, place: Path) -> dict[str, Any]:
    """A student without privacy, of all private rows and labels or of the public rows' true
    labels.
    """
    config, task = cell.config, describe(cell.config.data)
    space, student, tests = task.labels, config.student, public.test_inputs
    if cell.reference == "non_private":
        records = open_records(config.data, task, unit=config.privacy.unit)
        inputs, codes = records.inputs, records.labels
    elif public.labels is None:
        rule = "non_private where the public rows have no labels"
        raise InvalidInput("methods.reference", rule, cell.reference)
    else:
        known = has_truth(public.labels)
        inputs, codes = public.inputs[known], space.encode("public_y", public.labels[known])
    scale, labels = Preprocessing.of_public(public.inputs), space.expand(codes)
    if student.backbone == LINEAR:
        if inputs.ndim == 4:
            embedder = first_embedder(config, public)
            inputs, tests = (embedder.features(x).astype(np.float32) for x in (inputs, tests))
        scale = statistics(inputs)
    pool = Pool(inputs, space, scale.mean, scale.std)
    weights = train(student, pool, labels, run_dir=place / "student", seed=config.seed)
    said = outputs(pool.spec(student.backbone, weights), tests)
    score = space.score(space.predict(said), public.test_labels)
    return {
        "epsilon": None,
        "labels": len(labels) if cell.reference == "true_labels" else None,
        "label_accuracy": None if score["accuracy"] is None else 1.0,
        **score,
    }
