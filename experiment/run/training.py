"""A round's student: trained on all labels that were released, scored, calibrated."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from ...student.calibrate import temperature
from ...student.drop_doubtful import drop_doubtful
from ...student.fit import TrainedStudent
from ...student.parallel import parallel, process_count, share_of_threads, threads
from ...student.train import train
from ...wall.errors import LabelwallError
from ...wall.labels.base import has_label
from ...wall.messages import ABSTAINED, Answers, ExtractorSpec
from ..config.config import Config
from .experiment import Experiment
from .metrics import calibration, round_metrics
from .quality import Estimate, best_round, by_agreement
from .released import released_labels, released_probabilities
from .training_rows import TrainingRows, training_rows_of
from .virtual_rows import with_virtual_rows


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
    if not has_label(labels).any():
        raise LabelwallError(
            "no query was answered, so there is nothing to train on. "
            "Lower the threshold or ask more queries."
        )
    soft = released_probabilities(folder, number, labels, worse)
    training_rows = training_rows_of(config, task, experiment.public, experiment.features)
    judging = partial(experiment.console.progress, "checking labels")
    cleaned = drop_doubtful(
        config.student,
        training_rows.pool,
        labels,
        seed=config.seed * 1000 + number,
        progress=judging,
        soft=soft,
        workers=config.workers,
    )
    estimate = estimate or by_agreement(cleaned)
    last = number == len(config.rounds) and best_round([*estimates[:-1], estimate]) == number
    initial = training_rows.initial(extractor)
    taught = training_rows, cleaned.labels, soft
    if number not in worse:
        taught = with_virtual_rows(experiment, number, *taught)
    trained, chosen = _trained(experiment, number, *taught, initial, last)
    exported = training_rows.export(trained.weights)
    folder.save_extractor(number, exported)
    folder.save_training_labels(number, cleaned.labels)
    said = training_rows.outputs(exported)
    metrics = round_metrics(
        task.labels,
        experiment.public,
        folder.ledger_state(),
        answers,
        rows,
        extractor,
        trained,
        said,
        estimate,
    )
    for found in chosen:
        metrics |= calibration(task.labels, said, experiment.public.test_labels, found)
    doubtful = int((labels != ABSTAINED).sum() - (cleaned.labels != ABSTAINED).sum())
    return metrics | {"dropped": doubtful, "seconds": round(time.perf_counter() - started, 1)}


def _trained(
    experiment: Experiment,
    number: int,
    training_rows: TrainingRows,
    labels: np.ndarray,
    soft: np.ndarray | None,
    initial: bytes | None,
    last: bool,
) -> tuple[TrainedStudent, Iterator[float]]:
    """A round's student and, of the ``last`` one where it can be chosen beside the training, its
    temperature.
    """
    config = experiment.config
    processes = _processes(config, training_rows) if last else 1
    choosing = _choosing(config, number, training_rows, labels, soft)
    chosen = parallel(processes, [choosing] if processes > 1 else [])
    with threads(share_of_threads(processes)):
        trained = train(
            config.student,
            training_rows.pool,
            labels,
            run_dir=experiment.folder.round(number),
            seed=config.seed * 1000 + number,
            test_x=training_rows.test_inputs,
            test_y=experiment.public.test_labels,
            progress=partial(experiment.console.progress, "training the student"),
            initial=initial,
            soft=soft,
        )
    return trained, chosen


def calibrated(experiment: Experiment, number: int, metrics: dict) -> dict:
    """A round's metrics with the temperature of its student, chosen now where it was not chosen
    beside the training.

    A folder of an earlier version does not have the labels that are needed.
    """
    config, folder, console = experiment.config, experiment.folder, experiment.console
    labels = folder.load_training_labels(number)
    if labels is None or "temperature" in metrics:
        return metrics
    training_rows = training_rows_of(
        config, experiment.task, experiment.public, experiment.features
    )
    soft = released_probabilities(folder, number, labels)
    taught = with_virtual_rows(experiment, number, training_rows, labels, soft)
    choosing = _choosing(config, number, *taught)
    chosen = choosing(progress=partial(console.progress, "choosing the temperature"))
    outputs = training_rows.outputs(folder.load_extractor(number))
    space, truth = experiment.task.labels, experiment.public.test_labels
    metrics = metrics | calibration(space, outputs, truth, chosen)
    folder.write_text(folder.round(number) / "metrics.json", json.dumps(metrics, indent=2))
    return metrics


def _choosing(
    config: Config,
    number: int,
    training_rows: TrainingRows,
    labels: np.ndarray,
    soft: np.ndarray | None,
) -> partial[float]:
    """The choice of a temperature for the student of a round, which trains on ``labels``."""
    seed = config.seed * 1000 + number
    return partial(temperature, config.student, training_rows.pool, labels, seed=seed, soft=soft)


def _processes(config: Config, training_rows: TrainingRows) -> int:
    """2 where a temperature can be chosen beside the training of its student, otherwise 1."""
    if not config.student.calibration_folds:
        return 1
    return min(2, process_count(config.workers, config.student, training_rows.pool))
