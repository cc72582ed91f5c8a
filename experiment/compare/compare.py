"""`compare`: every method on the same split, students and budgets.

A cell is a method at a budget with a seed. A finished cell is a result.json, written last; a run's
folder inside it resumes by itself. So an interrupted comparison resumes, and the run folder refuses
a cell whose settings changed.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...student.data import Pool
from ...student.devices import require_devices
from ...student.train import predict, train
from ...teacher.accounting.accountant import require_affordable
from ...teacher.accounting.conversion import round_up
from ...teacher.baselines.config import AnyBaseline, LinearNoisySgd, NoisySgd, PrivateClassification
from ...teacher.baselines.noisy_sgd import PrivateModel, train_privately
from ...teacher.baselines.private_classifiers import (
    PrivateClassifier,
    fit_privately,
    require_diffprivlib,
)
from ...teacher.features.cache import cache_name, embed_records
from ...teacher.features.embedder import Embedder
from ...teacher.noise.entropy import Entropy
from ...teacher.records.sources import open_records
from ...wall.datasets.config import PublicData, Task
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import InvalidInput, LabelwallError
from ...wall.files import whole
from ...wall.messages import ExtractorSpec
from ...wall.preprocessing import Preprocessing
from ..config.config import Config, solved_line, solved_numbers
from ..run.console import Console
from ..run.features import embedder_of, starting_extractor
from ..run.rounds import run
from .config import CompareConfig, MethodConfig, PointConfig
from .table import plots, render, summarise

UNIT = 63.0  # quantised features are integers in -63..63


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

    Nothing is read before every budget is affordable. Writes comparison.json, comparison.md and
    plots into ``out``; private caches into OUT.custodian (mode 0700). Raises LabelwallError for a
    folder of another split, student, delta, or cell of that name.
    """
    require_devices(config.student)
    places = [cell.folder for cell in cells(config)]
    for cell in cells(config):
        if cell.point is not None:
            point = config.run_config(cell.point, cell.seed, "")
            require_affordable(point.solved(console.progress).plan())
        if isinstance(cell.method.baseline, PrivateClassification):
            require_diffprivlib()
    if len(set(places)) != len(places):
        raise LabelwallError(
            "two methods or budgets of the comparison would share a folder. "
            "Give them different names."
        )
    _remember(config, out)
    comparison = Comparison(config, out, entropy, console)
    comparison.private.mkdir(mode=0o700, parents=True, exist_ok=True)
    comparison.private.chmod(0o700)  # private embeddings lie below
    results = list[dict[str, Any]]()
    for number, cell in enumerate(cells(config), start=1):
        console.say(f"cell {number} of {len(places)}: {cell.folder}{_noise(config, cell)}")
        results.append(comparison.result(cell))
        table = {"table": summarise(results), "cells": results}
        (out / "comparison.json").write_text(json.dumps(table, indent=2))
        (out / "comparison.md").write_text(render(summarise(results)) + "\n")
        for name, svg in plots(summarise(results)).items():
            (out / f"{name}.svg").write_bytes(svg)
    return summarise(results)


def _noise(config: CompareConfig, cell: Cell) -> str:
    """The numbers that a cell's budget decided, for its line."""
    if cell.point is None:
        return ""
    line = solved_line(solved_numbers(config.run_config(cell.point, cell.seed, "")))
    return f", {line}" if line else ""


def _remember(config: CompareConfig, out: Path) -> None:
    """Record the settings that all cells share. Raises LabelwallError for others."""
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


def _cpu_seconds() -> float:
    """CPU seconds of this process, its threads and the workers it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@dataclass(frozen=True)
class Comparison:
    """What all cells share. ``private``: the custodian's folder, for caches."""

    config: CompareConfig
    out: Path
    entropy: Entropy
    console: Console

    @property
    def private(self) -> Path:
        return Path(f"{self.out}.custodian")

    @cached_property
    def task(self) -> Task:
        return describe(self.config.data)

    @cached_property
    def public(self) -> PublicData:
        return read_public(self.config.data)

    def result(self, cell: Cell) -> dict[str, Any]:
        """A cell's result: read from its file when it is finished, otherwise by running it.

        Raises LabelwallError where the finished one had other settings.
        """
        place, settings = self.out / cell.folder, json.loads(json.dumps(asdict(cell)))
        kept = place / "result.json"
        if kept.exists():
            stored = json.loads(kept.read_text())
            if stored["cell"] != settings:
                text = f"{place} holds a cell with other settings. Choose another --out."
                raise LabelwallError(text)
            return dict(stored["result"])
        place.mkdir(parents=True, exist_ok=True)
        started, method = _cpu_seconds(), cell.method
        if cell.point is not None:
            outcome = self._answered(cell, cell.point)
        elif method.baseline is not None and cell.epsilon is not None:
            outcome = self._baseline(method.baseline, cell.epsilon, cell.seed)
        else:
            outcome = self._reference(cell)
        name = {"method": method.name, "budget": cell.epsilon, "delta": self.config.delta}
        seconds = round(_cpu_seconds() - started, 1)
        result = {**name, "seed": cell.seed, **outcome, "cpu_seconds": seconds}
        with whole(kept) as file:
            file.write(json.dumps({"cell": settings, "result": result}, indent=2).encode())
        return result

    def _answered(self, cell: Cell, point: PointConfig) -> dict[str, Any]:
        """A run of `labelwall run`.

        Embeddings under the first features are shared: every cell has the same private rows.
        """
        own, shared = self.private / cell.folder, self.private / "shared"
        settings = self.config.run_config(point, cell.seed, str(own))
        cache = cache_name(self._extractor(settings), settings.device)
        _link(shared / cache, own / cache)
        folder = self.out / cell.folder / "run"
        summary: dict[str, Any] = run(settings, folder, entropy=self.entropy, console=self.console)
        _link(own / cache, shared / cache)
        rounds = summary["rounds"]
        kept = rounds[summary["best_round"] - 1]
        once = settings.mechanism_of(len(rounds)).once_a_round
        return {
            "epsilon": summary["epsilon"],
            "labels": kept["answered"] if once else sum(r["answered"] for r in rounds),
            "label_accuracy": kept["label_accuracy"],
            "accuracy": summary["test_accuracy"],
            "label_errors": kept.get("label_errors"),
            "errors": summary.get("test_errors"),
        }

    def _extractor(self, config: Config | CompareConfig) -> ExtractorSpec:
        """The first round's."""
        inputs = self.public.inputs

        def plain(spec: ExtractorSpec) -> np.ndarray:
            return embedder_of(config, spec, inputs).features(inputs)

        return starting_extractor(config, self.task, plain)

    def _baseline(self, baseline: AnyBaseline, epsilon: float, seed: int) -> dict[str, Any]:
        """A model trained privately on the records, judged on the public test split.

        ``claim`` says whose epsilon it is: the ledger certifies none of them. diffprivlib's
        classifiers have no seed.
        """
        inputs, labels, tests = self._baseline_rows(baseline)
        facts: dict[str, Any] = {"labels": None, "label_accuracy": None}
        classes, console = self.task.num_classes, self.console
        model: PrivateModel | PrivateClassifier
        if isinstance(baseline, NoisySgd | LinearNoisySgd):
            model = train_privately(
                baseline,
                inputs,
                labels,
                num_classes=classes,
                epsilon=epsilon,
                delta=self.config.delta,
                seed=seed,
                progress=lambda done, total: console.progress("training privately", done, total),
            )
            predicted = model.predict(tests)
            facts["epsilon_rdp"] = round_up(model.epsilon_rdp)
            facts["noise_multiplier"] = model.noise_multiplier
        else:
            wide, wide_tests = (rows.numpy().astype(np.float64) for rows in (inputs, tests))
            model = fit_privately(
                baseline, wide, labels.numpy(), num_classes=classes, epsilon=epsilon
            )
            predicted = model.predict(wide_tests)
        right = float((predicted == self.public.test_labels).mean())
        return {
            "epsilon": round_up(model.epsilon),
            "claim": model.claim,
            **facts,
            "accuracy": right,
        }

    def _baseline_rows(
        self, baseline: AnyBaseline
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """PRIVATE inputs and labels, and inputs of the test split: images, standardised by
        statistics of the public rows, for noisy_sgd, otherwise the first round's features, -1..1.
        """
        config, public = self.config, self.public
        if isinstance(baseline, NoisySgd) and len(self.task.input_shape) != 3:
            raise InvalidInput("baseline.kind", "another baseline for feature vectors", "noisy_sgd")
        records, tests = open_records(config.data, self.task), public.test_inputs
        if isinstance(baseline, NoisySgd):
            scaled = Preprocessing.of_public(public.inputs)
            return scaled(records.inputs), torch.from_numpy(records.labels), scaled(tests)
        spec = self._extractor(config)
        embedder = Embedder(
            spec, probe=public.inputs[:64], batch_size=config.batch_size, workers=config.workers
        )
        (shared := self.private / "shared").mkdir(mode=0o700, exist_ok=True)

        def progress(done: int, total: int) -> None:
            share = 100 * done // max(1, total)
            self.console.progress("embedding private records (percent)", share, 100)

        features, rows = embed_records(shared, records, spec, embedder, progress)
        both = (features, embedder.embed(tests)[0])
        scaled_rows = [torch.from_numpy(f.astype(np.float32) / np.float32(UNIT)) for f in both]
        return scaled_rows[0], torch.from_numpy(rows.labels), scaled_rows[1]

    def _reference(self, cell: Cell) -> dict[str, Any]:
        """A student without privacy, of all private rows and labels or of the public rows' true
        labels.
        """
        config, public, space = self.config, self.public, self.task.labels
        private = cell.method.reference == "non_private"
        if private:
            records = open_records(config.data, self.task, unit=config.privacy.unit)
            inputs, codes = records.inputs, records.labels
        elif public.labels is None:
            rule = "non_private where the public rows have no labels"
            raise InvalidInput("methods.reference", rule, "true_labels")
        else:
            inputs, codes = public.inputs, space.encode("public_y", public.labels)
        labels, statistics = space.expand(codes), Preprocessing.of_public(public.inputs)
        pool = Pool(inputs, space, statistics.mean, statistics.std)
        folder = self.out / cell.folder / "student"
        trained = train(config.student, pool, labels, run_dir=folder, seed=cell.seed)
        spec = pool.spec(config.student.backbone, trained.weights)
        score = space.score(predict(spec, public.test_inputs, space), public.test_labels)
        return {
            "epsilon": None,
            "labels": None if private else len(labels),
            "label_accuracy": None if score["accuracy"] is None else 1.0,
            **score,
        }


def _link(source: Path, target: Path) -> None:
    """One file under two names, in folders of mode 0700. Caches are replaced, never changed."""
    if source.exists() and not target.exists():
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.link(source, target)
