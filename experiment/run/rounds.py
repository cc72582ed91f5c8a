"""The loop: ask, train, send features back, ask again.

Each round is complete on disk before the next one starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwall.experiment.config.config import Config, first_extractor
from labelwall.experiment.plan.show_plan import solved_line, solved_numbers
from labelwall.experiment.run.console import Console
from labelwall.experiment.run.described_student import described_student
from labelwall.experiment.run.matrix_round import PROBE, ask_matrices, rows_of_round
from labelwall.experiment.run.metrics import round_line, round_metrics, run_summary
from labelwall.experiment.run.query_selection import choose_queries
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.experiment.run.teachers import Answering, teacher_of
from labelwall.experiment.run.whitening import starting_extractor
from labelwall.student.calibrate import temperature as choose_temperature
from labelwall.student.data import Pool, channel_statistics
from labelwall.student.devices import require_devices
from labelwall.student.export import export
from labelwall.student.prune import prune
from labelwall.student.train import check, train
from labelwall.teacher.accounting.accountant import require_affordable
from labelwall.teacher.features.embedder import Embedder
from labelwall.teacher.noise.entropy import Entropy
from labelwall.wall.datasets.sources import PublicData, Task, describe, read_public
from labelwall.wall.errors import LabelwallError
from labelwall.wall.labels.base import has_label
from labelwall.wall.messages import ABSTAINED, Answers, ExtractorSpec, Outcome, Queries


@dataclass
class Experiment:
    """What the rounds of a run share."""

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

    No data is read unless the plan is affordable. A killed run continues with the same command:
    known queries are served from the ledger, finished rounds are not repeated, an interrupted
    training continues from its checkpoint.

    ``isolate``: the teacher runs in a child process, and this process opens no private file.
    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData.
    """
    folder = RunFolder(run_dir)
    config = folder.resumed(config)
    require_affordable(config.plan())
    require_devices(config.student)
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
        run_dir.mkdir(parents=True, exist_ok=True)
        teacher.export(folder.ledger)
        config = _fixed(config, folder, console)
        folder.prepare(config)
        experiment = Experiment(config, folder, task, public, teacher, console)
        rounds = [_round(experiment, number) for number in range(1, len(config.rounds) + 1)]
        return _summarise(experiment, rounds)


def _fixed(config: Config, folder: RunFolder, console: Console) -> Config:
    """With every number that the budget decided, as the ledger fixed it before its first release.

    Another version may have solved it otherwise, which is said.
    """
    plan = folder.ledger_state().plan
    assert plan is not None
    require_affordable(plan)
    fixed = config.recorded(plan)
    if fixed != config.solved():
        console.say(f"as the ledger fixed it, {solved_line(solved_numbers(config, fixed))}")
    return fixed


def _round(experiment: Experiment, number: int) -> dict:
    """A round's metrics: read from its file when it is finished, otherwise by running it."""
    folder, console = experiment.folder, experiment.console
    metrics = folder.metrics(number)
    if metrics is None:
        extractor = _starting(experiment) if number == 1 else folder.load_extractor(number - 1)
        answers, rows = _ask(experiment, number, extractor)
        metrics = _train(experiment, number, answers, rows, extractor)
        folder.write_text(folder.round(number) / "metrics.json", json.dumps(metrics, indent=2))
    folder.drop_checkpoints(number)
    console.say(round_line(number, metrics, experiment.task.labels))
    return metrics


def _starting(experiment: Experiment) -> ExtractorSpec:
    """The first round's features.

    Whitened ones are stored, since their last digit may depend on the machine.
    """
    config, inputs = experiment.config, experiment.public.inputs

    def build() -> ExtractorSpec:
        return starting_extractor(config, experiment.task, inputs)

    return experiment.folder.features(build) if config.whiten else build()


def _status(experiment: Experiment, number: int) -> np.ndarray:
    """The ``status`` of ``choose_queries`` before round ``number``: uint8 [n_public]."""
    status = np.zeros(len(experiment.public.inputs), dtype=np.uint8)
    for earlier in range(1, number):
        rows, labels, _ = experiment.folder.load_answers(earlier)
        status[rows] = np.maximum(status[rows], np.where(has_label(labels), 2, 1))
    return status


def _ask(
    experiment: Experiment, number: int, extractor: ExtractorSpec
) -> tuple[Answers, np.ndarray]:
    config, public = experiment.config, experiment.public
    count = config.rounds[number - 1].queries or len(public.inputs)
    rows = _choose(experiment, number, extractor, count)
    if len(rows) < count:
        experiment.console.say(
            f"round {number}: the public pool has only {len(rows)} rows left to ask"
        )
    experiment.console.say(
        f"round {number}: asking {len(rows)} queries with {extractor.backbone} features"
    )
    experiment.teacher.use_extractor(extractor, probe=public.inputs[:PROBE])
    slot = config.slots()[number - 1]
    if config.mechanism_of(number).asks.matrix is not None:
        answers = ask_matrices(
            experiment.teacher,
            config,
            number,
            extractor,
            public.inputs[rows],
            experiment.task.num_classes,
            experiment.folder.round(number),
        )
    else:
        answers = experiment.teacher.answer(Queries(public.inputs[rows], slot=slot))
    experiment.folder.save_answers(number, rows, answers.labels, answers.outcomes)
    experiment.teacher.export(experiment.folder.ledger)
    return answers, rows


def _choose(
    experiment: Experiment, number: int, extractor: ExtractorSpec, count: int
) -> np.ndarray:
    """Rows of the public pool to ask in round ``number``: int64 [n], in request order."""
    config, inputs, features = experiment.config, experiment.public.inputs, None
    if config.mechanism_of(number).once_a_round:
        return rows_of_round(config, number, len(inputs))
    if config.choice == "typical":
        how = {"batch_size": config.batch_size, "workers": config.workers}
        embedder = Embedder(extractor, probe=inputs[:PROBE], device=config.device, **how)
        integers, _ = embedder.embed(
            inputs,
            lambda done, total: experiment.console.progress("features of public rows", done, total),
        )
        features = integers.astype(np.float32)
    return choose_queries(config.seed, number, _status(experiment, number), count, features)


def released_labels(folder: RunFolder, number: int, size: int) -> np.ndarray:
    """All labels released up to round ``number``; -1 where there is none.

    int64 [size], or [size, c] for attributes. For a row that was asked again the later outcome
    counts, an abstention too: better features found the row doubtful. A query refused by a cap
    changes nothing.
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
    config, folder = experiment.config, experiment.folder
    public, task = experiment.public, experiment.task
    labels = released_labels(folder, number, len(public.inputs))
    if not has_label(labels).any():
        raise LabelwallError(
            "no query was answered, so there is nothing to train on. "
            "Lower the threshold or ask more queries."
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
    # The student of the last round is the one that is used.
    temperature = 1.0
    if number == len(config.rounds):
        temperature = choose_temperature(config.student, pool, kept, seed=seed)
    pruned = int((labels != ABSTAINED).sum() - (kept != ABSTAINED).sum())
    metrics = round_metrics(
        task.labels,
        public,
        folder.ledger_state(),
        answers,
        rows,
        extractor,
        trained,
        spec,
        temperature,
    )
    return metrics | {"pruned": pruned, "seconds": round(time.perf_counter() - started, 1)}


def _summarise(experiment: Experiment, rounds: Sequence[dict]) -> dict[str, object]:
    folder, config = experiment.folder, experiment.config
    experiment.teacher.export(folder.ledger)
    plan, labels = config.plan(), experiment.task.labels
    summary = run_summary(plan, folder.ledger_state(), rounds, config.seed)
    folder.write_bytes(folder.student, described_student(folder, labels, summary, plan))
    folder.write_text(folder.summary, json.dumps(summary, indent=2))
    return summary
