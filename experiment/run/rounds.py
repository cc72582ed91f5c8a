"""The loop: ask, train, send features back, ask again.

Each round is complete on disk before the next one starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from labelwall.experiment.config.config import Config, first_extractor
from labelwall.experiment.config.solved import solved_line, solved_numbers
from labelwall.experiment.run.console import Console
from labelwall.experiment.run.described_student import described_student
from labelwall.experiment.run.judge import (
    Estimate,
    by_agreement,
    estimate_of,
    foreseen,
    kept_round,
    plurality,
)
from labelwall.experiment.run.lesson import check_student, lesson_of
from labelwall.experiment.run.matrix_round import ask_matrices, rows_of_round
from labelwall.experiment.run.metrics import (
    calibration,
    round_line,
    round_metrics,
    run_summary,
)
from labelwall.experiment.run.public_features import PROBE, PublicFeatures
from labelwall.experiment.run.query_selection import choose_queries
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.experiment.run.teachers import Answering, teacher_of
from labelwall.experiment.run.whitening import extractor_of_round, starting_extractor
from labelwall.student.calibrate import temperature
from labelwall.student.devices import require_devices
from labelwall.student.prune import prune
from labelwall.student.train import train
from labelwall.teacher.accounting.accountant import require_affordable
from labelwall.teacher.noise.entropy import Entropy
from labelwall.wall.datasets.registry import data_set
from labelwall.wall.datasets.sources import PublicData, Task, describe, read_public
from labelwall.wall.errors import LabelwallError
from labelwall.wall.labels.base import has_label
from labelwall.wall.messages import ABSTAINED, Answers, ExtractorSpec, Outcome, Queries

SHARE_ROWS = 2_000  # test rows among which neighbours are counted, for a warning


@dataclass
class Experiment:
    """What the rounds of a run share."""

    config: Config
    folder: RunFolder
    task: Task
    public: PublicData
    teacher: Answering
    console: Console
    features: PublicFeatures


def run(
    config: Config,
    run_dir: Path,
    *,
    entropy: Entropy,
    console: Console,
    isolate: bool = False,
    expected_records: int | None = None,
) -> dict[str, object]:
    """Run, or resume, an experiment; returns what summary.json holds.

    No data is read unless the plan is affordable. A killed run continues with the same command:
    known queries are served from the ledger, finished rounds are not repeated, an interrupted
    training continues from its checkpoint.

    ``isolate``: the teacher runs in a child process, and this process opens no private file.
    ``expected_records``: a PUBLIC guess of the number of private records, for warnings alone; by
    default the published split's, or the public rows'.

    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData.
    """
    folder = RunFolder(run_dir)
    config = folder.resumed(config)
    require_affordable(config.plan())
    require_devices(config.student)
    folder.create()
    known = folder.known_dataset()
    task = describe(config.data)
    public = read_public(
        config.data, lambda done, total: console.progress("reading public rows", done, total)
    )
    check_student(config, first_extractor(config, task), task)  # fails early
    features = PublicFeatures(config, public, console.progress)
    if folder.metrics(1) is None:
        _foresee(config, task, public, features, expected_records, console)
    directory = Path(config.custodian_dir or f"{run_dir}.custodian")
    with teacher_of(
        config, task, directory, entropy, console, known_dataset=known, isolate=isolate
    ) as teacher:
        teacher.export(folder.ledger)
        config = _fixed(config, folder, console)
        folder.prepare(config)
        experiment = Experiment(config, folder, task, public, teacher, console, features)
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


def _foresee(
    config: Config,
    task: Task,
    public: PublicData,
    features: PublicFeatures,
    expected_records: int | None,
    console: Console,
) -> None:
    """Say, before anything is charged, where public facts foresee a useless round."""
    published = data_set(config.data.source).private_records
    records = expected_records or published or len(public.inputs)

    def share(part: float) -> float:
        if task.labels.kind != "class":
            return 1.0
        spec, rows = first_extractor(config, task), slice(SHARE_ROWS)
        test = features.quantised(spec, "test")[rows]
        return plurality(test, public.test_labels[rows], part)

    for line in foreseen(config, records, share):
        console.say(line)


def _round(experiment: Experiment, number: int) -> dict:
    """A round's metrics: read from its file when it is finished, otherwise by running it."""
    folder, console = experiment.folder, experiment.console
    metrics = folder.metrics(number)
    if metrics is None:
        extractor = _asking_extractor(experiment, number)
        answers, rows, estimate = _ask(experiment, number, extractor)
        metrics = _train(experiment, number, answers, rows, extractor, estimate)
        folder.write_text(folder.round(number) / "metrics.json", json.dumps(metrics, indent=2))
    folder.drop_checkpoints(number)
    console.say(round_line(number, metrics, experiment.task.labels))
    estimates = _estimates(folder, number)
    if (kept := kept_round(estimates)) < number:
        console.say(
            f"round {number} is worse than round {kept}: labels {_text(estimates[number - 1])} "
            f"against {_text(estimates[kept - 1])}. Round {kept}'s student and features are kept."
        )
    return metrics


def _text(estimate: Estimate | None) -> str:
    return "unknown" if estimate is None else estimate.text()


def _estimates(folder: RunFolder, rounds: int) -> list[Estimate | None]:
    """Those of the first ``rounds`` rounds, all of them finished."""
    return [estimate_of(folder.metrics(number) or {}) for number in range(1, rounds + 1)]


def _extractor(experiment: Experiment, number: int) -> ExtractorSpec:
    """The features that round ``number`` asks with.

    Those of the round before, unless labels became worse by its own features: then those that the
    best round asked with.
    """
    if number == 1:
        return _starting(experiment)
    kept = kept_round(_estimates(experiment.folder, number - 1))
    if kept < number - 1:
        return _extractor(experiment, kept)
    return experiment.folder.load_extractor(number - 1)


def _asking_extractor(experiment: Experiment, number: int) -> ExtractorSpec:
    """``_extractor`` as the round's mechanism asks with it; stored, as ``_starting`` is."""
    asks = experiment.config.mechanism_of(number).asks
    if asks.axes is None:
        return _extractor(experiment, number)

    def build() -> ExtractorSpec:
        return extractor_of_round(_extractor(experiment, number), asks, experiment.features.plain)

    return experiment.folder.features(build, number)


def _starting(experiment: Experiment) -> ExtractorSpec:
    """The first round's features.

    Whitened ones are stored, since their last digit may depend on the machine.
    """
    config, inputs = experiment.config, experiment.public.inputs

    def build() -> ExtractorSpec:
        return starting_extractor(config, experiment.task, inputs, experiment.features.plain)

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
) -> tuple[Answers, np.ndarray, Estimate | None]:
    config, public, estimate = experiment.config, experiment.public, None
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
    if config.mechanism_of(number).asks.matrix is not None:
        answers, estimate = ask_matrices(
            experiment.teacher,
            config,
            number,
            extractor,
            experiment.features.quantised(extractor)[rows],
            experiment.task.num_classes,
            experiment.folder.round(number),
        )
    else:
        slot = config.slots()[number - 1]
        answers = experiment.teacher.answer(Queries(public.inputs[rows], slot=slot))
    experiment.folder.save_answers(number, rows, answers.labels, answers.outcomes)
    experiment.teacher.export(experiment.folder.ledger)
    return answers, rows, estimate


def _choose(
    experiment: Experiment, number: int, extractor: ExtractorSpec, count: int
) -> np.ndarray:
    """Rows of the public pool to ask in round ``number``: int64 [n], in request order."""
    config, inputs, features = experiment.config, experiment.public.inputs, None
    if config.mechanism_of(number).once_a_round:
        return rows_of_round(config, number, len(inputs))
    if config.choice == "typical":
        features = experiment.features.quantised(extractor).astype(np.float32)
    return choose_queries(config.seed, number, _status(experiment, number), count, features)


def released_labels(
    folder: RunFolder, number: int, size: int, worse: Collection[int] = ()
) -> np.ndarray:
    """All labels released up to round ``number``; -1 where there is none.

    int64 [size], or [size, c] for attributes. For a row that was asked again the later outcome
    counts, an abstention too: better features found the row doubtful. Of a round that is ``worse``
    than an earlier one, labels count where there is no other. A query refused by a cap changes
    nothing.
    """
    labels = np.full((size, *folder.load_answers(number)[1].shape[1:]), ABSTAINED, dtype=np.int64)
    for earlier in range(1, number + 1):
        rows, answered, outcomes = folder.load_answers(earlier)
        counted = outcomes != Outcome.CAP_REACHED
        if earlier in worse:
            counted &= ~has_label(labels[rows])
        labels[rows[counted]] = answered[counted]
    return labels


def released_probabilities(
    folder: RunFolder, number: int, labels: np.ndarray, worse: Collection[int] = ()
) -> np.ndarray | None:
    """Class probabilities that rounds up to ``number`` released: float32 [n, c], NaN without.

    ``labels``: of ``released_labels``; a row has the probabilities of the round that its label is
    of. None where no round released any.
    """
    found = None
    for earlier in range(1, number + 1):
        rows, _, outcomes = folder.load_answers(earlier)
        counted = outcomes != Outcome.CAP_REACHED
        chances = folder.load_probabilities(earlier)
        if found is None:
            if chances is None:
                continue
            found = np.full((len(labels), chances.shape[1]), np.nan, dtype=np.float32)
        if earlier in worse:
            counted &= np.isnan(found[rows, 0])
        found[rows[counted]] = np.nan if chances is None else chances[counted]
    return found


def _train(
    experiment: Experiment,
    number: int,
    answers: Answers,
    rows: np.ndarray,
    extractor: ExtractorSpec,
    estimate: Estimate | None,
) -> dict:
    started = time.perf_counter()
    config, folder, task = experiment.config, experiment.folder, experiment.task
    estimates = [*_estimates(folder, number - 1), estimate]
    worse = {n for n in range(2, number + 1) if kept_round(estimates[:n]) < n}
    labels = released_labels(folder, number, len(experiment.public.inputs), worse)
    if not has_label(labels).any():
        raise LabelwallError(
            "no query was answered, so there is nothing to train on. "
            "Lower the threshold or ask more queries."
        )
    soft = released_probabilities(folder, number, labels, worse)
    lesson = lesson_of(config, task, experiment.public, experiment.features)
    seed, console = config.seed * 1000 + number, experiment.console
    judging = partial(console.progress, "checking labels")
    pruned = prune(config.student, lesson.pool, labels, seed=seed, progress=judging, soft=soft)
    trained = train(
        config.student,
        lesson.pool,
        pruned.labels,
        run_dir=folder.round(number),
        seed=seed,
        test_x=lesson.test_inputs,
        test_y=experiment.public.test_labels,
        progress=partial(console.progress, "training the student"),
        initial=lesson.initial(extractor),
        soft=soft,
    )
    exported = lesson.export(trained.weights)
    folder.save_extractor(number, exported)
    folder.save_lesson(number, pruned.labels)
    metrics = round_metrics(
        task.labels,
        experiment.public,
        folder.ledger_state(),
        answers,
        rows,
        extractor,
        trained,
        lesson.outputs(exported),
        estimate or by_agreement(pruned),
    )
    doubtful = int((labels != ABSTAINED).sum() - (pruned.labels != ABSTAINED).sum())
    return metrics | {"pruned": doubtful, "seconds": round(time.perf_counter() - started, 1)}


def _calibrated(experiment: Experiment, number: int, metrics: dict) -> dict:
    """A round's metrics with the temperature of its student, chosen once.

    A folder of an earlier version does not have the labels that are needed.
    """
    config, folder, console = experiment.config, experiment.folder, experiment.console
    labels = folder.load_lesson(number)
    if labels is None or "temperature" in metrics:
        return metrics
    lesson = lesson_of(config, experiment.task, experiment.public, experiment.features)
    chosen = temperature(
        config.student,
        lesson.pool,
        labels,
        seed=config.seed * 1000 + number,
        progress=partial(console.progress, "choosing the temperature"),
        soft=released_probabilities(folder, number, labels),
    )
    outputs = lesson.outputs(folder.load_extractor(number))
    space, truth = experiment.task.labels, experiment.public.test_labels
    metrics = metrics | calibration(space, outputs, truth, chosen)
    folder.write_text(folder.round(number) / "metrics.json", json.dumps(metrics, indent=2))
    return metrics


def _summarise(experiment: Experiment, rounds: list[dict]) -> dict[str, object]:
    folder, config = experiment.folder, experiment.config
    experiment.teacher.export(folder.ledger)
    kept = kept_round([estimate_of(metrics) for metrics in rounds])
    rounds[kept - 1] = _calibrated(experiment, kept, rounds[kept - 1])
    plan, labels = config.plan(), experiment.task.labels
    summary = run_summary(plan, folder.ledger_state(), rounds, kept, config.seed)
    folder.write_bytes(folder.student, described_student(folder, labels, summary, plan))
    folder.write_text(folder.summary, json.dumps(summary, indent=2))
    return summary
