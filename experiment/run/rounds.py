"""The loop: ask, train, send features back, ask again.

Each round is complete on disk before the next one starts.
"""

import json
import shutil
from datetime import UTC, datetime

import numpy as np

from ...student.model import Privacy, StudentInfo, pack
from ...teacher.accounting.accountant import smallest_certified
from ...wall.datasets.config import DataConfig
from ...wall.datasets.tables import encoding
from ...wall.labels import LabelSpace
from ..config.groups import Round
from .asking import Experiment, ask, public_alone
from .metrics import round_line, run_summary
from .quality import best_round, estimate_of
from .run_folder import RunFolder, write_file
from .training import train_round, untaught


def run_rounds(experiment: Experiment) -> dict[str, object]:
    """All rounds, those that are not finished; returns what summary.json holds."""
    if experiment.known is not None and (alone := public_alone(experiment)):
        experiment.console.say(alone)
    rounds = [_round(experiment, current) for current in experiment.rounds]
    return _summarise(experiment, rounds)


def _round(experiment: Experiment, current: Round) -> dict:
    """A round's metrics: read from its file when it is finished, otherwise by running it."""
    folder, say, number = experiment.folder, experiment.console.say, current.number
    metrics = folder.metrics(number)
    if metrics is None:
        asked = ask(experiment, current)
        folder.save_answers(number, asked.rows, asked.answers.labels, asked.answers.outcomes)
        experiment.teacher.export(folder.ledger)
        metrics = untaught(experiment, current, asked) or train_round(experiment, current, asked)
        folder.save_metrics(number, metrics)
    shutil.rmtree(folder.round(number) / "checkpoints", ignore_errors=True)
    say(round_line(number, metrics, experiment.task.labels))
    estimates = experiment.estimates(number)
    if (kept := best_round(estimates)) < number:
        labels = [estimate.text() for n in (number, kept) if (estimate := estimates[n - 1])]
        say(
            f"round {number} is worse than round {kept}: labels {' against '.join(labels)}. "
            f"Round {kept}'s student and features are kept."
        )
    return metrics


def _summarise(experiment: Experiment, rounds: list[dict]) -> dict[str, object]:
    folder, settings = experiment.folder, experiment.settings
    experiment.teacher.export(folder.ledger)
    kept = best_round([estimate_of(metrics) for metrics in rounds])
    finished = folder.summary.exists() and json.loads(folder.summary.read_text())
    summary = run_summary(folder.ledger_state(), rounds, kept, settings.seed) | {
        "public_rows": len(experiment.public.inputs),
        "test_rows": len(experiment.public.test_inputs),
        "held_out": experiment.public.held_out,
        "date": finished["date"] if finished else datetime.now(UTC).date().isoformat(),
    }
    write_file(folder.student, _described(folder, settings.data, experiment.task.labels, summary))
    write_file(folder.summary, json.dumps(summary, indent=2))
    return summary


def _described(folder: RunFolder, data: DataConfig, labels: LabelSpace, summary: dict) -> bytes:
    """The kept round's student with its metadata: a safetensors file.

    ``summary``: what summary.json holds. All of it is public, so nothing is charged.
    """
    kept, plan = summary["best_round"], folder.plan()
    spec = folder.load_extractor(kept)
    names = ("epsilon", "delta", "adversary", "ledger_head", "dataset", "unit")
    known = {name: summary[name] for name in names}
    privacy = Privacy(certificate=smallest_certified(plan), **known)
    shares = None
    if labels.kind == "class":  # a class without a label is as if it had one
        taught = folder.load_training_labels(kept)
        counts = 1.0 + np.bincount(taught[taught >= 0], minlength=labels.outputs)
        shares = tuple(map(float, counts / counts.sum()))
    table = encoding(data) if data.source == "table" else None
    network = spec.backbone, spec.input_shape, spec.mean, spec.std
    return pack(StudentInfo(*network, labels, privacy, table, shares), spec.weights)
