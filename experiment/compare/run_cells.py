"""Runs a comparison's cells: every method on the same split, students and budgets.

A finished cell is a result.json, written last; a run's folder inside it resumes by itself. So an
interrupted comparison resumes, and a cell whose settings changed is refused.
"""

import json
import os
import resource
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...student.asking.features import PublicFeatures, first_extractor, whitened
from ...student.batches import Lesson, Pool
from ...student.measures import means
from ...student.public_settings import PublicSide
from ...student.scores import measured
from ...student.several_devices import parallel, require_devices
from ...student.student_model import outputs
from ...student.train import LINEAR, standardising, train
from ...teacher.accounting.accountant import require_affordable
from ...teacher.accounting.conversion import round_up
from ...teacher.baselines.baseline_settings import (
    AnyBaseline,
    LinearNoisySgd,
    NoisySgd,
    PrivateClassification,
)
from ...teacher.baselines.noisy_sgd import PrivateModel, train_privately
from ...teacher.baselines.private_classifiers import (
    PrivateClassifier,
    fit_privately,
    require_diffprivlib,
)
from ...teacher.custody.places import tell_budgets
from ...teacher.custody.solver import solved
from ...teacher.noise.entropy import Entropy
from ...teacher.private_files import make_private
from ...teacher.records.private_records import open_records
from ...wall.computing import Computing
from ...wall.console import Console
from ...wall.datasets.data_config import PublicData, Task
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import BudgetRefused, InvalidInput, LabelwallError
from ...wall.features.embedder import Embedder
from ...wall.files import digest, reading, write_file
from ...wall.labels import has_truth
from ...wall.matrices import MAX_ENTRY
from ...wall.preprocessing import Preprocessing
from ...wall.progress import no_progress
from ..config.config import Config
from ..config.own import CURES, run_name
from ..config.settings import load_config
from ..plan import tuning
from ..plan.rehearsal import LabelledRows, labelled_rows
from ..plan.search import by_features
from ..run.baselines import frequent
from ..run.run_folder import RunFolder
from ..whole_run import run
from .cells import Cell, Reference
from .table import MEASURES, groups_table, lines_of, plot, render, summarise, to_csv

Lines = list[dict[str, Any]]
# Inputs of a model, and which of the rows are finite
Inputs = Callable[[np.ndarray], tuple[torch.Tensor, np.ndarray]]
MEMORY = Path("/proc/meminfo")
RESTORE = "Restore it: without it a baseline is trained anew, which is another release."


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all cells of a comparison share: the folder ``out``, the split, and a source of noise.

    Each run's custodian's directory is in OUT.custodian (mode 0700).
    """

    out: Path
    task: Task
    public: PublicData
    entropy: Entropy

    @property
    def custodian(self) -> Path:
        return Path(f"{self.out}.custodian")

    @property
    def console(self) -> Console:
        """What shows warnings alone: the comparison has a bar of its own."""
        return Console(quiet=True)


def run_cells(
    cells: list[Cell],
    out: Path,
    *,
    entropy: Entropy,
    console: Console,
    measure: str | None = None,
    processes: int = 1,
) -> tuple[Lines, Lines]:
    """Run, or finish, all cells; returns the table's rows, and a line for each cell.

    Nothing is read before every budget is affordable. Writes comparison.json, .md and .csv and
    a plot into ``out``, also of cells that are there already. ``measure``: of MEASURES, what
    the table and the plot show. ``processes``: how many cells run at a time, as far as memory
    goes, each in a process of its own if there are several; all share the threads of the first
    cell's configuration.
    Raises LabelwallError if ``out`` has a cell of that name with other settings.
    """
    require_devices(cells[0].config.student)
    torch.set_num_threads(cells[0].config.threads)
    if len({cell.folder for cell in cells}) != len(cells):
        raise LabelwallError("two cells have the same folder. Rename a method.")
    for cell in cells:
        if not cell.config.open:  # as those of baselines and references are
            require_affordable(solved(cell.config.schedule, console.progress).plan())
        if isinstance(cell.baseline, PrivateClassification):
            require_diffprivlib()
    data = cells[0].config.data
    task, public = describe(data), read_public(data)
    if measure is not None and task.labels.kind == "value":
        raise InvalidInput.needless("measure", "rows with values have one measure")
    if measure is not None and measure not in MEASURES:
        raise InvalidInput("measure", f"one of {', '.join(MEASURES)}", measure)
    if processes < 1:
        raise InvalidInput("processes", "a count, at least 1", processes)
    if (fitting := _fitting(processes)) < processes:
        console.say(f"memory allows {fitting} of {processes} cells at a time")
    processes = fitting
    bench = Bench(out=out, task=task, public=public, entropy=entropy)
    results = [_stored(cell, bench) for cell in cells]  # before anything is written
    if not len(public.test_labels):
        raise InvalidInput.missing("data.test", "methods are compared on it", CURES["test"])
    make_private(bench.custodian)
    for line in [spent(cells), *dict.fromkeys(map(_votes, cells))]:
        if line:
            console.say(line)
    if task.labels.kind == "class":
        name, share = frequent(task.labels, public.test_labels)
        console.say(
            f"always {name!r}, the most frequent class, is right on {share:.2%} of test rows"
        )
    todo = [number for number, result in enumerate(results) if result is None]
    tasks = (partial(_result, number, _shared(cells[number], processes), bench) for number in todo)
    finished = parallel(processes, tasks, ordered=False)
    try:
        for done in range(len(todo)):
            console.progress("cells", done, len(todo))
            if any(results):  # a killed comparison has its table, too
                _write(cells, results, out, measure)
            if processes == 1:
                console.say(f"cell {todo[done] + 1} of {len(cells)} begins")
            number, results[number] = next(finished)
            console.say(f"cell {number + 1} of {len(cells)} is there: {cells[number].folder}")
    except BrokenExecutor as error:
        text = "a cell's process was ended, maybe as memory ran out. The same command continues; "
        raise LabelwallError(f"{text}fewer --processes take less memory.") from error
    finally:
        with warnings.catch_warnings():  # joblib's, of cells that did not finish
            warnings.simplefilter("ignore")
            finished.close()
        console.progress("cells", len(todo), len(todo))
    return _write(cells, results, out, measure)


def _fitting(processes: int) -> int:
    """How many ``processes`` fit into this machine's memory, if it tells that (Linux).

    Each takes about twice what this one took to read the public rows: 1.6 times with MNIST's 60,000
    private images.
    """
    if not MEMORY.exists():
        return processes
    known = dict(line.split(":") for line in MEMORY.read_text().splitlines())
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB, as in the file
    return max(1, min(processes, int(known["MemAvailable"].split()[0]) // (2 * own)))


def _shared(cell: Cell, processes: int) -> Cell:
    """A cell that computes on its share of the threads and of the workers."""
    own = {name: max(1, vars(cell.config)[name] // processes) for name in ("threads", "workers")}
    return replace(cell, config=replace(cell.config, **own))


def _write(
    cells: list[Cell], results: list[Any], out: Path, measure: str | None
) -> tuple[Lines, Lines]:
    """Write what is known of the ``cells``; returns the table's rows, and a line for each cell."""
    known, data = [result for result in results if result is not None], cells[0].config.data
    places = {"data": data.path, "public": data.public}
    name = run_name({key: place for key, place in places.items() if place}, ())
    rows, lines = summarise(known, measure or MEASURES[0]), lines_of(known, name or data.source)
    content = json.dumps({"table": rows, "cells": known}, indent=2)
    write_file(out / "comparison.json", content)
    tables = f"{render(rows)}\n\n{spent(cells)}\n", groups_table(known, measure or MEASURES[0])
    write_file(out / "comparison.md", "\n".join(filter(None, tables)))
    write_file(out / "comparison.csv", to_csv(lines))
    write_file(out / f"{measure or MEASURES[0]}_by_epsilon.svg", plot(rows))
    return rows, lines


def _votes(cell: Cell) -> str:
    """How many queries PATE's teachers are asked, which follows from a guess; "" of others."""
    asked = [round.queries for round in cell.config.rounds if round.queries is not None]
    teachers = vars(cell.config.mechanism).get("teachers")
    if teachers is None or not asked or cell.baseline or cell.reference:
        return ""
    guess = cell.config.expected_records
    of = "as many private records as public rows" if guess is None else f"{guess} private records"
    return (
        f"{cell.method} at epsilon {cell.config.budget.epsilon:g}: {sum(asked)} queries of "
        f"{teachers} teachers, for {of}, a public guess (--expected_records)"
    )


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
    known: dict[str, Any] = json.loads(json.dumps(asdict(cell)))
    for entry in fields(Computing):  # which change last digits at most
        del known["config"][entry.name]
    if cell.reference is not None:
        del known["config"]["budget"]  # it has none: the comparison may get another one
    return known | {"test_sha256": digest(public.test_inputs, digest(public.test_labels))}


def _stored(cell: Cell, bench: Bench) -> dict[str, Any] | None:
    """A finished cell's result. Raises LabelwallError if it had other settings."""
    kept = bench.out / cell.folder / "result.json"
    if not kept.exists():
        return None
    with reading(kept, RESTORE):
        stored = json.loads(kept.read_text())
    if stored["cell"] != _settings(cell, bench.public):
        text = f"{kept.parent} holds a cell with other settings or test rows. Choose another --out."
        raise LabelwallError(text)
    return dict(stored["result"])


def _result(number: int, cell: Cell, bench: Bench) -> tuple[int, dict[str, Any]]:
    """A cell's number and its result, which is kept."""
    folder, started = bench.out / cell.folder, _cpu_seconds()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if cell.baseline is not None:
            outcome = _trained(cell, cell.baseline, bench)
        elif cell.reference is not None:
            outcome = _reference(cell.config, cell.reference, bench, folder)
        else:
            outcome = _answered(cell.config, bench, cell.folder)
    except BudgetRefused as error:
        outcome = {"epsilon": cell.epsilon, "refused": str(error)}
    name = {"method": cell.method, "budget": cell.epsilon, "delta": cell.config.budget.delta}
    seconds = round(_cpu_seconds() - started, 1)
    result = {**name, "seed": cell.config.seed, **outcome, "cpu_seconds": seconds}
    kept = {"cell": _settings(cell, bench.public), "result": result}
    write_file(folder / "result.json", json.dumps(kept, indent=2))
    return number, result


def _cpu_seconds() -> float:
    """CPU seconds of this process, its threads and the workers it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _trained(cell: Cell, baseline: AnyBaseline, bench: Bench) -> dict[str, Any]:
    """What a model is worth that is trained privately on the records, by the public test split.

    Its features and its learning rate are those that are best on labelled public rows; as given if
    too few of these have labels, or if it has no rate. ``claim`` says whose epsilon it is: the
    ledger certifies none of them.
    """
    config, public = cell.config, bench.public
    own = replace(config.private_side(), custodian_dir=str(bench.custodian / cell.folder))
    tell_budgets(own, bench.console.warn)
    settings = config.public_side()
    rates = baseline.at_rates(tuning.RATES) if cell.rehearsed else []
    labelled = labelled_rows(public, tuning.MAX_LABELLED, config.seed)
    if rates and labelled is not None:
        settings, baseline = _rehearsed(config, rates, labelled, bench)
    records = open_records(config.data, bench.task)
    inputs = _inputs(settings, baseline, bench)
    rows, finite = inputs(records.inputs)
    labels = torch.from_numpy(records.labels[finite])
    model = _fitted(config, baseline, rows[finite], labels, bench)
    facts: dict[str, Any] = {"labels": None, "label_accuracy": None}
    if isinstance(model, PrivateModel):
        facts["noise_multiplier"] = model.noise_multiplier
    said, truth = model.probabilities(inputs(public.test_inputs)[0]), public.test_labels
    return {
        "epsilon": round_up(model.epsilon),
        "claim": model.claim,
        **facts,
        "accuracy": float((said.argmax(axis=1) == truth).mean()),
        **means(measured(bench.task, public, said)),
    }


def _rehearsed(
    config: Config, baselines: Sequence[AnyBaseline], labelled: LabelledRows, bench: Bench
) -> tuple[PublicSide, AnyBaseline]:
    """The features and the baseline that are best on labelled PUBLIC rows.

    Half of them, drawn as often as there are expected records, stand for these.
    """
    tried = [config.public_side()]
    if not baselines[0].images:
        tried = by_features(tried[0], bench.task, bench.public)
    codes = bench.task.labels.encode("labels", labelled.labels)
    rng = np.random.default_rng(config.seed)
    asked, known = np.array_split(rng.permutation(len(codes)), 2)
    drawn = rng.choice(known, config.records(len(bench.public.inputs)))
    found = list[tuple[float, PublicSide, AnyBaseline]]()
    for settings in tried:
        rows = _inputs(settings, baselines[0], bench)(labelled.inputs)[0]
        for baseline in baselines:
            labels = torch.from_numpy(codes[drawn])
            model = _fitted(config, baseline, rows[drawn], labels, bench)
            right = float((model.predict(rows[asked]) == codes[asked]).mean())
            found.append((right, settings, baseline))
    _, settings, baseline = max(found, key=lambda each: each[0])
    return settings, baseline


def _inputs(settings: PublicSide, baseline: AnyBaseline, bench: Bench) -> Inputs:
    """Images, standardised by statistics of the public rows, or the first round's features,
    -1..1.
    """
    if baseline.images:
        if bench.public.inputs.ndim != 4:
            rule = "another baseline for feature vectors"
            raise InvalidInput("baseline.kind", rule, baseline.kind)
        scaled = Preprocessing.of_public(bench.public.inputs)
        return lambda rows: (scaled(rows), np.ones(len(rows), dtype=bool))
    embedder = _first_embedder(settings, bench)

    def embedded(rows: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
        features, finite = embedder.embed(rows)
        return torch.from_numpy(features.astype(np.float32) / np.float32(MAX_ENTRY)), finite

    return embedded


def _first_embedder(settings: PublicSide, bench: Bench) -> Embedder:
    """What computes the first round's features, by PUBLIC inputs."""
    public = bench.public.inputs
    plain = PublicFeatures(settings, {"public": public}, no_progress).plain
    spec = whitened(first_extractor(settings, bench.task, public), settings.whiten, plain)
    return Embedder(spec, workers=settings.workers, device=settings.device)


def _fitted(
    config: Config, baseline: AnyBaseline, rows: torch.Tensor, labels: torch.Tensor, bench: Bench
) -> PrivateModel | PrivateClassifier:
    """A model within the budget. diffprivlib's classifiers have no seed."""
    epsilon, classes = config.budget.epsilon, bench.task.num_classes
    if not isinstance(baseline, NoisySgd | LinearNoisySgd):
        wide = rows.numpy().astype(np.float64)
        codes = labels.numpy()
        return fit_privately(baseline, wide, codes, num_classes=classes, epsilon=epsilon)
    return train_privately(
        baseline,
        rows,
        labels,
        num_classes=classes,
        epsilon=epsilon,
        delta=config.budget.delta,
        seed=config.seed,
    )


def _answered(config: Config, bench: Bench, cell: str) -> dict[str, Any]:
    """What a run says, as `labelwall run` makes it."""
    folder, custodian = bench.out / cell / "run", bench.custodian / cell
    summary = run(config, folder, entropy=bench.entropy, console=bench.console, custodian=custodian)
    config = load_config(RunFolder(folder).config)
    kept, once = summary.kept, config.schedule.mechanism_of(len(summary.rounds)).once_a_round
    return {
        "epsilon": summary.epsilon,
        "labels": kept.answered if once else sum(result.answered for result in summary.rounds),
        "label_accuracy": kept.label_accuracy,
        "accuracy": summary.test_accuracy,
        "label_errors": kept.label_errors,
        "errors": summary.test_errors,
        **means(vars(kept)),
    }


def _reference(config: Config, reference: Reference, bench: Bench, folder: Path) -> dict[str, Any]:
    """A student without privacy, of all private rows and labels or of the public rows' true
    labels.
    """
    space, public, student = bench.task.labels, bench.public, config.student
    tests = public.test_inputs
    if reference == "non_private":
        records = open_records(config.data, bench.task, unit=config.privacy.unit)
        inputs, codes = records.inputs, records.labels
    elif public.labels is None:
        rule = "non_private if the public rows have no labels"
        raise InvalidInput("methods.reference", rule, reference)
    else:
        known = has_truth(public.labels)
        inputs, codes = public.inputs[known], space.encode("public_y", public.labels[known])
    shown = public.inputs
    if student.backbone == LINEAR and inputs.ndim == 4:
        features = _first_embedder(config.public_side(), bench).features
        inputs, tests, shown = (features(x).astype(np.float32) for x in (inputs, tests, shown))
    scale = standardising(student.backbone, shown, config.data.source == "table")
    pool = Pool(inputs, space, scale.mean, scale.std)
    lesson = Lesson(pool=pool, labels=space.expand(codes))
    weights = train(student, lesson, run_dir=folder / "student", seed=config.seed)
    said = outputs(pool.spec(student.backbone, weights), tests)
    score = space.score(space.predict(said), public.test_labels)
    told = means(measured(bench.task, public, space.probabilities(said)))
    return {
        "epsilon": None,
        "labels": len(codes) if reference == "true_labels" else None,
        "label_accuracy": None if score["accuracy"] is None else 1.0,
        **score,
        **told,
    }
