"""A round's student: trained on all labels that were released, scored, calibrated."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from ...student.devices import parallel, process_count, share_of_threads, threads
from ...student.held_out import drop_doubtful, temperature
from ...student.train import TrainedStudent, train
from ...wall.errors import LabelwallError
from ...wall.labels.base import has_label
from ...wall.messages import ABSTAINED, Answers, ExtractorSpec, Outcome
from ..linear.model import stored_probabilities, virtual_rows
from .asking import asking_extractor
from .experiment import Experiment
from .matrices import CLASSIFIER
from .metrics import calibration, round_metrics
from .quality import Estimate, best_round, by_agreement
from .run_folder import RunFolder
from .training_rows import TrainingRows


def train_round(
    experiment: Experiment,
    number: int,
    answers: Answers,
    rows: np.ndarray,
    extractor: ExtractorSpec,
    estimate: Estimate | None,
) -> dict:
    """Train on every label released so far; stores the student and returns the round's metrics.

    ``answers``, ``rows``, ``estimate``: of ``ask``. Raises LabelwallError where no row has a label.
    """
    started = time.perf_counter()
    config, folder, task = experiment.config, experiment.folder, experiment.task
    estimates = [*experiment.estimates(number - 1), estimate]
    worse = {n for n in range(2, number + 1) if best_round(estimates[:n]) < n}
    labels = released_labels(folder, number, len(experiment.public.inputs), worse)
    _require_labels(labels, answers)
    soft = released_probabilities(folder, number, labels, worse)
    training_rows = experiment.training_rows()
    judging = partial(experiment.console.progress, "checking labels")
    cleaned = drop_doubtful(
        config.student,
        training_rows.pool,
        labels,
        seed=config.round_seed(number),
        progress=judging,
        soft=soft,
        workers=config.workers,
    )
    estimate = estimate or by_agreement(cleaned)
    last = number == len(config.rounds) and best_round([*estimates[:-1], estimate]) == number
    taught = training_rows, cleaned.labels, soft
    if number not in worse:
        taught = with_virtual_rows(experiment, number, *taught)
    trained, chosen = _trained(experiment, number, *taught, last)
    exported = training_rows.export(trained.weights)
    folder.save_extractor(number, exported)
    folder.save_training_labels(number, cleaned.labels)
    outputs = training_rows.outputs(exported)
    metrics = round_metrics(
        task.labels,
        experiment.public,
        folder.ledger_state(),
        answers,
        rows,
        extractor,
        trained,
        outputs,
        estimate,
    )
    for divisor in chosen:
        metrics |= calibration(task.labels, outputs, experiment.public.test_labels, divisor)
    doubtful = int((labels != ABSTAINED).sum() - (cleaned.labels != ABSTAINED).sum())
    return metrics | {"dropped": doubtful, "seconds": round(time.perf_counter() - started, 1)}


def _require_labels(labels: np.ndarray, answers: Answers) -> None:
    """Raises LabelwallError where no row has a label."""
    if has_label(labels).any():
        return
    cure = "Lower the threshold or ask more queries."
    if (answers.outcomes == Outcome.CAP_REACHED).all():
        cure = "The budget of these records is spent; only what spent it is answered again."
    raise LabelwallError(f"no query was answered, so there is nothing to train on. {cure}")


def _trained(
    experiment: Experiment,
    number: int,
    training_rows: TrainingRows,
    labels: np.ndarray,
    soft: np.ndarray | None,
    last: bool,
) -> tuple[TrainedStudent, Iterator[float]]:
    """A round's student and, of the ``last`` one where it can be chosen beside the training, its
    temperature.
    """
    config = experiment.config
    processes = 1
    if last and config.student.calibration_folds:
        processes = min(2, process_count(config.workers, config.student, training_rows.pool))
    choosing = _choosing(experiment, number, training_rows, labels, soft)
    chosen = parallel(processes, [choosing] if processes > 1 else [])
    with threads(share_of_threads(processes)):
        trained = train(
            config.student,
            training_rows.pool,
            labels,
            run_dir=experiment.folder.round(number),
            seed=config.round_seed(number),
            test_x=training_rows.test_inputs,
            test_y=experiment.public.test_labels,
            progress=partial(experiment.console.progress, "training the student"),
            soft=soft,
        )
    return trained, chosen


def calibrated(experiment: Experiment, number: int, metrics: dict) -> dict:
    """A round's metrics with the temperature of its student, chosen now where it was not chosen
    beside the training.
    """
    folder, console = experiment.folder, experiment.console
    if "temperature" in metrics:
        return metrics
    labels = folder.load_training_labels(number)
    training_rows = experiment.training_rows()
    soft = released_probabilities(folder, number, labels)
    taught = with_virtual_rows(experiment, number, training_rows, labels, soft)
    choosing = _choosing(experiment, number, *taught)
    chosen = choosing(progress=partial(console.progress, "choosing the temperature"))
    outputs = training_rows.outputs(folder.load_extractor(number))
    space, truth = experiment.task.labels, experiment.public.test_labels
    metrics = metrics | calibration(space, outputs, truth, chosen)
    folder.write_text(folder.round(number) / "metrics.json", json.dumps(metrics, indent=2))
    return metrics


def _choosing(
    experiment: Experiment,
    number: int,
    training_rows: TrainingRows,
    labels: np.ndarray,
    soft: np.ndarray | None,
) -> partial[float]:
    """The choice of a temperature for the student of a round, which trains on ``labels``."""
    student, seed = experiment.config.student, experiment.config.round_seed(number)
    return partial(temperature, student, training_rows.pool, labels, seed=seed, soft=soft)


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
    probabilities = None
    for earlier in range(1, number + 1):
        rows, _, outcomes = folder.load_answers(earlier)
        counted = outcomes != Outcome.CAP_REACHED
        chances = folder.load_probabilities(earlier)
        if probabilities is None:
            if chances is None:
                continue
            probabilities = np.full((len(labels), chances.shape[1]), np.nan, dtype=np.float32)
        if earlier in worse:
            counted &= np.isnan(probabilities[rows, 0])
        probabilities[rows[counted]] = np.nan if chances is None else chances[counted]
    return probabilities


def with_virtual_rows(
    experiment: Experiment,
    number: int,
    training_rows: TrainingRows,
    labels: np.ndarray,
    soft: np.ndarray | None,
) -> tuple[TrainingRows, np.ndarray, np.ndarray | None]:
    """A round's rows, ``labels`` and probabilities, with those of virtual rows after them.

    The labels of few rows do not tell a student all that their classifier knows; it says as much of
    any vector. Nothing is added where the student sees images or learns no probabilities, and where
    the round left no classifier of classes. A resumed run has the same rows.
    """
    path = experiment.folder.round(number) / CLASSIFIER
    public = training_rows.pool.inputs
    learned = experiment.config.student.soft
    if soft is None or not learned or public.ndim != 2 or not path.exists():
        return training_rows, labels, soft
    rows = virtual_rows(public, experiment.config.round_seed(number))
    features, finite = training_rows.embed(asking_extractor(experiment, number), rows)
    rows, chances = rows[finite], stored_probabilities(path, features[finite])
    taught = replace(
        training_rows, pool=replace(training_rows.pool, inputs=np.concatenate([public, rows]))
    )
    labels = np.concatenate([labels, chances.argmax(axis=1)])
    return taught, labels, np.concatenate([soft, chances])
