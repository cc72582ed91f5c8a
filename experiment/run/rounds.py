"""The loop: ask -> train -> send features back -> ask again. Each round is complete on disk before the next starts."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from labelwall.experiment.config.config import Config, first_extractor
from labelwall.experiment.run.console import Console
from labelwall.experiment.run.query_selection import choose_queries
from labelwall.experiment.run.reverse_knn_round import ask_cells
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.experiment.run.teachers import Answering, teacher_of
from labelwall.experiment.run.whitening import starting_extractor
from labelwall.student.data import Pool
from labelwall.student.devices import require_devices
from labelwall.student.export import export
from labelwall.student.fit import TrainedStudent
from labelwall.student.prune import prune
from labelwall.student.train import check, predict, train
from labelwall.teacher.accounting.accountant import (
    certificates,
    certified_epsilon,
    odometer,
    require_affordable,
)
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.features.embedder import Embedder
from labelwall.teacher.noise.entropy import Entropy
from labelwall.wall.datasets.sources import PublicData, Task, describe, read_public
from labelwall.wall.errors import LabelwallError
from labelwall.wall.labels.base import LabelSpace, Score, has_label
from labelwall.wall.messages import ABSTAINED, Answers, ExtractorSpec, Outcome, Queries

PROBE = 64  # public rows on which a network is tested for independence of its batch

# What summary.json says about a round; its metrics.json says more. Errors are there where rows have values.
SUMMARY_KEYS = (
    "asked",
    "answered",
    "abstained",
    "cap_reached",
    "label_accuracy",
    "student_accuracy",
    "label_errors",
    "student_errors",
    "epsilon_reading",
    "extractor",
    "seconds",
)


@dataclass
class Experiment:
    """All that a run holds on to between rounds."""

    config: Config
    folder: RunFolder
    task: Task
    public: PublicData
    teacher: Answering
    console: Console


def run(
    config: Config, run_dir: Path, *, entropy: Entropy, console: Console, isolate: bool = False
) -> dict[str, object]:
    """Run, or resume, an experiment; returns what summary.json holds.

    Nothing is read before the plan is affordable. A killed run continues with the same command: known queries are served
    from the ledger, finished rounds are not repeated, an interrupted training continues from its checkpoint.
    ``isolate``: the teacher runs in a process of its own, and this one opens no private file.
    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData.
    """
    plan = config.plan()
    require_affordable(plan)
    require_devices(config.student)
    folder = RunFolder(run_dir)
    folder.prepare(config)
    known = folder.known_dataset()
    task = describe(config.data)
    public = read_public(
        config.data, lambda done, total: console.progress("reading public rows", done, total)
    )
    first_extractor(config, task)  # fails early
    check(config.student, task.input_shape, task.labels)
    directory = Path(config.custodian_dir or f"{run_dir}.custodian")
    with teacher_of(
        config, task, directory, entropy, console, known_dataset=known, isolate=isolate
    ) as teacher:
        teacher.export(folder.ledger)
        experiment = Experiment(config, folder, task, public, teacher, console)
        rounds = [_round(experiment, number) for number in range(1, len(config.rounds) + 1)]
        return _summarise(experiment, rounds)


def _round(experiment: Experiment, number: int) -> dict:
    """One round's metrics: from its file when finished, else by doing it."""
    folder, console = experiment.folder, experiment.console
    metrics = folder.metrics(number)
    if metrics is None:
        extractor = _starting(experiment) if number == 1 else folder.load_extractor(number - 1)
        answers, rows = _ask(experiment, number, extractor)
        metrics = _train(experiment, number, answers, rows, extractor)
        folder.write_text(folder.round(number) / "metrics.json", json.dumps(metrics, indent=2))
    folder.drop_checkpoints(number)  # scratch of an interrupted training; what it led to is on disk
    labels, student = (
        experiment.task.labels.format_score(_score_of(metrics, name))
        for name in ("label", "student")
    )
    console.say(
        f"round {number}: {metrics['answered']} of {metrics['asked']} answered, labels {labels}, student {student}, "
        f"epsilon so far {metrics['epsilon_reading']:.3f} (a reading)"
    )
    return metrics


def _starting(experiment: Experiment) -> ExtractorSpec:
    """The first round's features; whitened ones are kept, since their last digit may depend on the machine."""
    config, inputs = experiment.config, experiment.public.inputs

    def build() -> ExtractorSpec:
        return starting_extractor(config, experiment.task, inputs)

    return experiment.folder.features(build) if config.whiten else build()


def _status(experiment: Experiment, number: int) -> np.ndarray:
    status = np.zeros(len(experiment.public.inputs), dtype=np.uint8)
    for earlier in range(1, number):
        rows, labels, _ = experiment.folder.load_answers(earlier)
        status[rows] = np.maximum(status[rows], np.where(has_label(labels), 2, 1))
    return status


def _ask(
    experiment: Experiment, number: int, extractor: ExtractorSpec
) -> tuple[Answers, np.ndarray]:
    config, public = experiment.config, experiment.public
    wanted = config.rounds[number - 1].queries or len(public.inputs)
    rows = _choose(experiment, number, extractor, wanted)
    if len(rows) < wanted:
        experiment.console.say(
            f"round {number}: the public pool has only {len(rows)} rows left to ask"
        )
    experiment.console.say(
        f"round {number}: asking {len(rows)} queries with {extractor.backbone} features"
    )
    experiment.teacher.use_extractor(extractor, probe=public.inputs[:PROBE])
    slot = config.slots()[number - 1]
    asks = config.mechanism_of(number).asks
    if asks.cells is not None:
        answers = ask_cells(
            experiment.teacher.count,
            public.inputs[rows],
            extractor,
            asks,
            slot=slot,
            seed=config.seed * 1000 + number,
            kept=experiment.folder.round(number) / "cells.npz",
            batch_size=config.batch_size,
            workers=config.workers,
            device=config.device,
        )
    else:
        answers = experiment.teacher.answer(Queries(public.inputs[rows], slot=slot))
    experiment.folder.save_answers(number, rows, answers.labels, answers.outcomes)
    experiment.teacher.export(experiment.folder.ledger)
    return answers, rows


def _choose(
    experiment: Experiment, number: int, extractor: ExtractorSpec, wanted: int
) -> np.ndarray:
    """Rows of the public pool to ask in round ``number``: int64 [n], in request order."""
    config, inputs, features = experiment.config, experiment.public.inputs, None
    if config.mechanism_of(number).once_a_round:  # rows cost nothing: every round covers them anew
        return choose_queries(config.seed, number, np.zeros(len(inputs), dtype=np.uint8), wanted)
    if config.choice == "typical":
        how = {"batch_size": config.batch_size, "workers": config.workers}
        embedder = Embedder(extractor, probe=inputs[:PROBE], device=config.device, **how)
        integers, _ = embedder.embed(
            inputs,
            lambda done, total: experiment.console.progress("features of public rows", done, total),
        )
        features = integers.astype(np.float32)
    return choose_queries(config.seed, number, _status(experiment, number), wanted, features)


def released_labels(folder: RunFolder, number: int, size: int) -> np.ndarray:
    """All labels released up to round ``number``: int64 [size], or [size, c] for attributes, -1 where there is none.

    Where a row was asked again the later word counts, an abstention too: better features found it doubtful. A refusal says
    nothing.
    """
    labels = np.full((size, *folder.load_answers(number)[1].shape[1:]), ABSTAINED, dtype=np.int64)
    for earlier in range(1, number + 1):
        rows, answered, outcomes = folder.load_answers(earlier)
        counted = outcomes != Outcome.CAP_REACHED
        labels[rows[counted]] = answered[counted]
    return labels


def _train(
    experiment: Experiment,
    number: int,
    answers: Answers,
    rows: np.ndarray,
    extractor: ExtractorSpec,
) -> dict:
    started = time.perf_counter()
    config, public, task, folder = (
        experiment.config,
        experiment.public,
        experiment.task,
        experiment.folder,
    )
    labels = released_labels(folder, number, len(public.inputs))
    if not has_label(labels).any():
        raise LabelwallError(
            "no query was answered, so there is nothing to train on. Lower the threshold or ask more queries."
        )
    seed = config.seed * 1000 + number
    pool = Pool(public.inputs, task.labels, *channel_statistics(public.inputs))
    kept = prune(config.student, pool, labels, seed=seed)
    trained = train(
        config.student,
        pool,
        kept,
        run_dir=folder.round(number),
        seed=seed,
        test_x=public.test_inputs,
        test_y=public.test_labels,
        progress=experiment.console.interactive,
        initial=extractor.weights or None,
    )
    spec = export(pool, config.student.backbone, trained.weights)
    folder.save_extractor(number, spec)
    pruned = int((labels != ABSTAINED).sum() - (kept != ABSTAINED).sum())
    metrics = _metrics(experiment, answers, rows, extractor, trained, spec)
    return metrics | {"pruned": pruned, "seconds": round(time.perf_counter() - started, 1)}


def _metrics(
    experiment: Experiment,
    answers: Answers,
    rows: np.ndarray,
    extractor: ExtractorSpec,
    trained: TrainedStudent,
    exported: ExtractorSpec,
) -> dict:
    public, task, state = experiment.public, experiment.task, experiment.folder.ledger_state()
    truth = None if public.labels is None else public.labels[rows]
    assert state.plan is not None
    return {
        "asked": len(rows),
        "answered": int(has_label(answers.labels).sum()),
        "abstained": int((answers.outcomes == Outcome.ABSTAINED).sum()),
        "cap_reached": int((answers.outcomes == Outcome.CAP_REACHED).sum()),
        **_scores(task.labels, answers.labels, truth, exported, public),
        # Another certificate than the reading's may be smaller for all that the caps allow, hence for what was bought of it.
        "epsilon_reading": round_up(
            min(odometer(state.plan, state.counts()), certified_epsilon(state.plan))
        ),
        "extractor": extractor.backbone,
        "ledger_head": answers.receipt.ledger_head,
        "history": trained.history,
    }


def _scores(
    space: LabelSpace,
    labels: np.ndarray,
    truth: np.ndarray | None,
    student: ExtractorSpec,
    public: PublicData,
) -> dict[str, object]:
    """Released ``labels`` against the public rows' own, where there are any, and the student on the test split."""
    predicted = predict(student, public.test_inputs, space)
    of_student = space.score(predicted, public.test_labels)
    of_labels = dict.fromkeys(of_student)
    if truth is not None:
        of_labels = space.score(space.decode(labels), truth, labels != ABSTAINED)
    scores = {"label": of_labels, "student": of_student}
    return {
        **{f"{name}_{key}": scores[name][key] for key in of_student for name in scores},
        "confusion": space.confusion(public.test_labels, predicted).tolist(),
    }


def _score_of(metrics: dict, name: Literal["label", "student"]) -> Score:
    """One of the scores that ``_scores`` wrote."""
    keys = ("accuracy", "errors")
    return {key: metrics[f"{name}_{key}"] for key in keys if f"{name}_{key}" in metrics}


def _test_errors(metrics: dict) -> dict[str, object]:
    """The last student's errors for the summary, where rows have values."""
    return {"test_errors": metrics["student_errors"]} if "student_errors" in metrics else {}


def channel_statistics(inputs: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per-channel (mean, std) of PUBLIC images on the 0..1 scale; empty for feature vectors."""
    if inputs.ndim != 4:
        return (), ()
    counts = np.stack(
        [np.bincount(inputs[..., c].ravel(), minlength=256) for c in range(inputs.shape[-1])]
    )  # [channels, 256]
    values, total = np.arange(256) / 255, counts.sum(axis=1)
    mean = counts @ values / total
    std = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 1e-4))
    return tuple(mean.tolist()), tuple(std.tolist())


def _summarise(experiment: Experiment, rounds: Sequence[dict]) -> dict[str, object]:
    folder, plan = experiment.folder, experiment.config.plan()
    folder.write_bytes(
        folder.student, (folder.round(len(rounds)) / "student.safetensors").read_bytes()
    )
    experiment.teacher.export(folder.ledger)
    state = folder.ledger_state()
    summary: dict[str, object] = {
        "epsilon": None if state.unsafe else round_up(certified_epsilon(plan)),
        "delta": plan.delta,
        "unsafe": state.unsafe,
        "adversary": state.adversary,
        "certificates": {name: round_up(c.epsilon) for name, c in certificates(plan).items()},
        "test_accuracy": rounds[-1]["student_accuracy"],
        **_test_errors(rounds[-1]),
        "rounds": [
            {key: metrics[key] for key in SUMMARY_KEYS if key in metrics} for metrics in rounds
        ],
        "dataset": state.dataset,
        "ledger_head": state.head,
        "seed": experiment.config.seed,
    }
    folder.write_text(folder.summary, json.dumps(summary, indent=2))
    return summary
