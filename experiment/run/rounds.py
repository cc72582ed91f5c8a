"""The loop: ask, train, send features back, ask again.

Each round is complete on disk before the next one starts.
"""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ...student.devices import require_devices
from ...student.model import Privacy, StudentInfo, pack
from ...teacher.accounting.accountant import require_affordable, smallest_certified
from ...teacher.accounting.plan import Plan
from ...teacher.mechanisms.base import Mechanism
from ...teacher.mechanisms.registry import from_slot
from ...teacher.mechanisms.sums import ReverseKnn
from ...teacher.mechanisms.votes import SampledVotes
from ...teacher.noise.entropy import Entropy
from ...wall.datasets.config import DataConfig
from ...wall.datasets.sources import describe, read_public
from ...wall.datasets.tables import scaling
from ...wall.labels import LabelSpace
from ..config.config import Config, solved_line, solved_numbers
from ..config.groups import Round
from ..config.settings import to_yaml
from .asking import Experiment, ask, asking_extractor
from .console import Console
from .features import PublicFeatures, first_extractor
from .metrics import round_line, run_summary
from .places import custodian_place, record, resumed
from .quality import Estimate, best_round, estimate_of
from .run_folder import RunFolder, write_file
from .teachers import teacher_of
from .training import check_student, train_round, untaught

LEAST_PASSING = 0.2  # share of queries that pass; with fewer the budget buys hardly a label
LEAST_VOTES = 3.0  # on a row, in deviations of their noise: with fewer, most labels are chance


def run(
    config: Config,
    run_dir: Path,
    *,
    entropy: Entropy,
    console: Console,
    isolate: bool = False,
    custodian: Path | None = None,
) -> dict[str, object]:
    """Run, or resume, an experiment; returns what summary.json holds.

    The entry, which splits the configuration into what each room needs. No data is read unless the
    plan is affordable. A killed run continues with the same command: known queries are served from
    the ledger, finished rounds are not repeated, an interrupted training continues from its
    checkpoint.

    ``isolate``: the teacher runs in a child process, and this process opens no private file.
    ``custodian``: the private side's directory; ``custodian_place`` where it is None.

    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData.
    """
    folder = RunFolder(run_dir)
    config = resumed(config, folder)
    require_affordable(config.plan())
    require_devices(config.student)
    folder.create()
    side, task = config.private_side(), describe(config.data)
    public = read_public(
        config.data, lambda done, total: console.progress("reading public rows", done, total)
    )
    extractor = first_extractor(config, task)
    check_student(config.student, extractor, task)  # fails early
    features = PublicFeatures(config, public, console.progress)
    directory, known = custodian or custodian_place(side, run_dir), folder.known_dataset()
    child = to_yaml(replace(config, custodian_dir=str(directory), teacher=None))
    with teacher_of(
        side, task, directory, entropy, console, known, child if isolate else None
    ) as teacher:
        teacher.export(folder.ledger)
        config = _fixed(config, folder, console)
        record(config, folder)
        if folder.metrics(1) is None:  # before anything is charged
            plan, records = config.plan(), config.records(len(public.inputs))
            for number, slot in enumerate(config.slots(), start=1):
                if reason := foresee(from_slot(plan.slots[slot]), records):
                    console.say(f"round {number} may be useless: {reason}")
        settings = config.public_side()
        experiment = Experiment(
            settings, folder, task, public, extractor, features, teacher, console
        )
        rounds = [_round(experiment, current) for current in experiment.settings.rounds]
        return _summarise(experiment, rounds, config.data, config.plan())


def foresee(mechanism: Mechanism, records: int) -> str | None:
    """Why answers may be useless, and what to change; None where nothing indicates it.

    ``records``: a PUBLIC guess of their number.
    """
    if isinstance(mechanism, SampledVotes):
        votes = mechanism.expected_votes(records)  # were all of them of one class
        deviation = math.sqrt(2) * mechanism.require("sigma_screen")
        passing = 0.5 * math.erfc((mechanism.threshold - votes) / deviation)
        if passing < LEAST_PASSING:
            return (
                f"of {records} records about {votes:.0f} vote on a query, and "
                f"{100 * passing:.1f}% of queries pass a threshold of {mechanism.threshold}. Set "
                f"mechanism.threshold to {votes:.0f} or less."
            )
    elif isinstance(mechanism, ReverseKnn):
        ballots = mechanism.row_neighbours
        votes = records * mechanism.neighbours * ballots / mechanism.centroids
        noise = mechanism.require("sigma") * math.sqrt(ballots)
        if votes < LEAST_VOTES * noise:
            few = max(1, int(votes * mechanism.centroids / (LEAST_VOTES * noise)))
            return (
                f"about {votes:.0f} of {records} records vote on a row, under noise of "
                f"{noise:.0f} votes. Set mechanism.centroids to {few} or fewer, or epsilon "
                f"{LEAST_VOTES * noise / votes:.1f} times as high."
            )
    return None


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


def _round(experiment: Experiment, current: Round) -> dict:
    """A round's metrics: read from its file when it is finished, otherwise by running it."""
    folder, say, number = experiment.folder, experiment.console.say, current.number
    metrics = folder.metrics(number)
    if metrics is None:
        extractor = asking_extractor(experiment, number)
        answers, rows, estimate = ask(experiment, current, extractor)
        metrics = untaught(experiment, current, answers, rows, estimate)
        if metrics is None:
            metrics = train_round(experiment, current, answers, rows, extractor, estimate)
        folder.save_metrics(number, metrics)
    folder.drop_checkpoints(number)
    say(round_line(number, metrics, experiment.task.labels))
    estimates = experiment.estimates(number)
    if (kept := best_round(estimates)) < number:
        say(
            f"round {number} is worse than round {kept}: labels {_text(estimates[number - 1])} "
            f"against {_text(estimates[kept - 1])}. Round {kept}'s student and features are kept."
        )
    return metrics


def _text(estimate: Estimate | None) -> str:
    return "unknown" if estimate is None else estimate.text()


def _summarise(
    experiment: Experiment, rounds: list[dict], data: DataConfig, plan: Plan
) -> dict[str, object]:
    folder = experiment.folder
    experiment.teacher.export(folder.ledger)
    kept = best_round([estimate_of(metrics) for metrics in rounds])
    settings = experiment.settings
    finished = folder.summary.exists() and json.loads(folder.summary.read_text())
    summary = run_summary(plan, folder.ledger_state(), rounds, kept, settings.seed) | {
        "public_rows": len(experiment.public.inputs),
        "date": finished["date"] if finished else datetime.now(UTC).date().isoformat(),
    }
    student = described_student(folder, data, experiment.task.labels, summary, plan)
    write_file(folder.student, student)
    folder.write_text(folder.summary, json.dumps(summary, indent=2))
    return summary


def described_student(
    folder: RunFolder, data: DataConfig, labels: LabelSpace, summary: dict, plan: Plan
) -> bytes:
    """The kept round's student with its metadata: a safetensors file.

    ``summary``: what summary.json holds. All of it is public, so nothing is charged.
    """
    kept = summary["best_round"]
    spec = folder.load_extractor(kept)
    privacy = Privacy(
        summary["epsilon"],
        summary["delta"],
        smallest_certified(plan),
        summary["adversary"],
        summary["ledger_head"],
        summary["dataset"],
        plan.unit,
    )
    shares = None
    if labels.kind == "class":  # a class without a label is as if it had one
        taught = folder.load_training_labels(kept)
        counts = 1.0 + np.bincount(taught[taught >= 0], minlength=labels.outputs)
        shares = tuple(map(float, counts / counts.sum()))
    info = StudentInfo(
        spec.backbone,
        spec.input_shape,
        spec.mean,
        spec.std,
        labels,
        privacy,
        table=scaling(data) if data.source == "table" else None,
        shares=shares,
    )
    return pack(info, spec.weights)
