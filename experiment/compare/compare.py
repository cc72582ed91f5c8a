"""`compare`: every method on the same split, students and budgets.

A finished cell is a result.json, written last; a run's folder inside it resumes by itself. So an
interrupted comparison resumes, and a cell whose settings changed is refused.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...student.data import Pool
from ...student.devices import require_devices
from ...student.linear import LINEAR, LinearRows
from ...student.train import predict, train
from ...teacher.accounting.accountant import require_affordable
from ...teacher.accounting.conversion import round_up
from ...teacher.baselines.config import AnyBaseline, LinearNoisySgd, NoisySgd, PrivateClassification
from ...teacher.baselines.noisy_sgd import train_privately
from ...teacher.baselines.private_classifiers import fit_privately, require_diffprivlib
from ...teacher.features.embedder import Embedder
from ...teacher.noise.entropy import Entropy
from ...teacher.private_files import make_private
from ...teacher.records.sources import open_records
from ...teacher.search.int8_matmul import LARGEST
from ...wall.datasets.config import PublicData
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import InvalidInput, LabelwallError
from ...wall.files import whole
from ...wall.messages import ExtractorSpec
from ...wall.preprocessing import Preprocessing
from ..config.config import Config
from ..run.console import Console
from ..run.features import embedder_of, starting_extractor
from ..run.rounds import run
from .config import Cell
from .table import plot, render, summarise


def compare(
    cells: list[Cell], out: Path, *, entropy: Entropy, console: Console
) -> list[dict[str, Any]]:
    """Run, or finish, all cells; returns the table's rows.

    Nothing is read before every budget is affordable. Writes comparison.json, comparison.md and a
    plot into ``out``; each run's custodian's directory is in OUT.custodian (mode 0700). Raises
    LabelwallError where ``out`` holds a cell of that name with other settings.
    """
    require_devices(cells[0].config.student)
    if len({cell.folder for cell in cells}) != len(cells):
        text = "two methods or budgets of the comparison would share a folder."
        raise LabelwallError(f"{text} Give them different names.")
    for cell in cells:
        if cell.runs:
            require_affordable(cell.config.solved(console.progress).plan())
        if isinstance(cell.baseline, PrivateClassification):
            require_diffprivlib()
    known = [_stored(cell, out) for cell in cells]  # before anything is written
    custodian = Path(f"{out}.custodian")
    make_private(custodian)
    results, public = list[dict[str, Any]](), read_public(cells[0].config.data)
    for number, (cell, result) in enumerate(zip(cells, known, strict=True), start=1):
        console.say(f"cell {number} of {len(cells)}: {cell.folder}")
        results.append(result or _result(cell, out, custodian, public, entropy, console))
        rows = summarise(results)
        (out / "comparison.json").write_text(
            json.dumps({"table": rows, "cells": results}, indent=2)
        )
        (out / "comparison.md").write_text(render(rows) + "\n")
        (out / "accuracy_by_epsilon.svg").write_bytes(plot(rows))
    return summarise(results)


def _stored(cell: Cell, out: Path) -> dict[str, Any] | None:
    """A finished cell's result. Raises LabelwallError where it had other settings."""
    kept = out / cell.folder / "result.json"
    if not kept.exists():
        return None
    stored = json.loads(kept.read_text())
    if stored["cell"] != cell.settings():
        text = f"{kept.parent} holds a cell with other settings. Choose another --out."
        raise LabelwallError(text)
    return dict(stored["result"])


def _result(
    cell: Cell, out: Path, custodian: Path, public: PublicData, entropy: Entropy, console: Console
) -> dict[str, Any]:
    """A cell's result, which is stored."""
    place, started = out / cell.folder, _cpu_seconds()
    place.mkdir(parents=True, exist_ok=True)
    if cell.baseline is not None:
        outcome = _baseline(cell.config, cell.baseline, public, console)
    elif cell.reference is not None:
        outcome = _reference(cell, public, place)
    else:
        own = custodian / cell.folder
        summary = run(cell.config, place / "run", entropy=entropy, console=console, custodian=own)
        outcome = _answered(cell.config, summary)
    name = {"method": cell.method, "budget": cell.epsilon, "delta": cell.config.budget.delta}
    seconds = round(_cpu_seconds() - started, 1)
    result = {**name, "seed": cell.config.seed, **outcome, "cpu_seconds": seconds}
    with whole(place / "result.json") as file:
        file.write(json.dumps({"cell": cell.settings(), "result": result}, indent=2).encode())
    return result


def _cpu_seconds() -> float:
    """CPU seconds of this process, its threads and the workers it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _answered(config: Config, summary: dict[str, Any]) -> dict[str, Any]:
    """What a finished run says."""
    rounds = summary["rounds"]
    kept, once = rounds[summary["best_round"] - 1], config.mechanism_of(len(rounds)).once_a_round
    return {
        "epsilon": summary["epsilon"],
        "labels": kept["answered"] if once else sum(r["answered"] for r in rounds),
        "label_accuracy": kept["label_accuracy"],
        "accuracy": summary["test_accuracy"],
        "label_errors": kept.get("label_errors"),
        "errors": summary.get("test_errors"),
    }


def _baseline(
    config: Config, baseline: AnyBaseline, public: PublicData, console: Console
) -> dict[str, Any]:
    """A model trained privately on the records, judged on the public test split.

    ``claim`` says whose epsilon it is: the ledger certifies none of them. diffprivlib's classifiers
    have no seed.
    """
    classes, budget = describe(config.data).num_classes, config.budget
    inputs, labels, tests = _baseline_rows(config, baseline, public)
    facts: dict[str, Any] = {}
    if isinstance(baseline, NoisySgd | LinearNoisySgd):
        model = train_privately(
            baseline,
            inputs,
            labels,
            num_classes=classes,
            epsilon=budget.epsilon,
            delta=budget.delta,
            seed=config.seed,
            progress=lambda done, total: console.progress("training privately", done, total),
        )
        epsilon, claim, predicted = model.epsilon, model.claim, model.predict(tests)
        facts["noise_multiplier"] = model.noise_multiplier
    else:
        rows, asked = (x.numpy().astype(np.float64) for x in (inputs, tests))
        fitted = fit_privately(
            baseline, rows, labels.numpy(), num_classes=classes, epsilon=budget.epsilon
        )
        epsilon, claim, predicted = fitted.epsilon, fitted.claim, fitted.predict(asked)
    right = float((predicted == public.test_labels).mean())
    unknown = {"labels": None, "label_accuracy": None}
    return {"epsilon": round_up(epsilon), "claim": claim, **unknown, **facts, "accuracy": right}


def _baseline_rows(
    config: Config, baseline: AnyBaseline, public: PublicData
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """PRIVATE inputs and labels, and inputs of the test split: images, standardised by statistics
    of the public rows, for noisy_sgd, otherwise the first round's features, -1..1.
    """
    task = describe(config.data)
    if isinstance(baseline, NoisySgd):
        if len(task.input_shape) != 3:
            rule = "another baseline for feature vectors"
            raise InvalidInput("baseline.kind", rule, baseline.kind)
        records, scaled = open_records(config.data, task), Preprocessing.of_public(public.inputs)
        labels = torch.from_numpy(records.labels)
        return scaled(records.inputs), labels, scaled(public.test_inputs)
    embedder, records = _embedder(config, public), open_records(config.data, task)
    features, finite = embedder.embed(records.inputs)
    rows, tests = (
        torch.from_numpy(x.astype(np.float32) / np.float32(LARGEST))
        for x in (features[finite], embedder.embed(public.test_inputs)[0])
    )
    return rows, torch.from_numpy(records.labels[finite]), tests


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
        inputs, codes = public.inputs, space.encode("public_y", public.labels)
    statistics, labels = Preprocessing.of_public(public.inputs), space.expand(codes)
    pool = Pool(inputs, space, statistics.mean, statistics.std)
    if student.backbone == LINEAR:
        if inputs.ndim == 4:
            embedder = _embedder(config, public)
            inputs, tests = embedder.features(inputs), embedder.features(tests)
        linear = LinearRows.of(inputs, tests, space)
        pool, tests = linear.pool, linear.test
    weights = train(student, pool, labels, run_dir=place / "student", seed=config.seed).weights
    score = space.score(
        predict(pool.spec(student.backbone, weights), tests, space), public.test_labels
    )
    return {
        "epsilon": None,
        "labels": len(labels) if cell.reference == "true_labels" else None,
        "label_accuracy": None if score["accuracy"] is None else 1.0,
        **score,
    }


def _embedder(config: Config, public: PublicData) -> Embedder:
    """What computes the first round's features."""

    def of(spec: ExtractorSpec) -> Embedder:
        return embedder_of(config, spec, public.inputs)

    task = describe(config.data)
    return of(starting_extractor(config, task, lambda spec: of(spec).features(public.inputs)))
