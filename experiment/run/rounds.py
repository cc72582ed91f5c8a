"""The loop: ask, train, send features back, ask again.

Each round is complete on disk before the next one starts.
"""

import json
import math
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from ...student.devices import require_devices
from ...student.model import Privacy, StudentInfo, pack
from ...teacher.accounting.accountant import require_affordable, smallest_certified
from ...teacher.mechanisms.base import Mechanism
from ...teacher.mechanisms.registry import from_slot
from ...teacher.mechanisms.sums import ReverseKnn
from ...teacher.mechanisms.votes import SampledVotes
from ...teacher.noise.entropy import Entropy
from ...wall.datasets.config import DataConfig
from ...wall.datasets.sources import describe, read_public
from ...wall.datasets.tables import encoding
from ...wall.labels import LabelSpace
from ..config.config import Config, solved_line, solved_numbers
from ..config.groups import Round
from ..config.own import CURES
from ..config.settings import to_yaml
from .asking import Experiment, ask, public_alone
from .console import Console
from .features import PublicFeatures, first_extractor
from .metrics import round_line, run_summary
from .places import custodian_place, record, resumed
from .quality import best_round, estimate_of
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
    plan is affordable. A killed run continues where it stopped, and pays for nothing twice.

    ``isolate``: the teacher runs in a child process, and this process opens no private file.
    ``custodian``: the private side's directory; ``custodian_place`` where it is None.

    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData.
    """
    folder = RunFolder(run_dir)
    config = resumed(config, folder)
    require_affordable(config.plan())
    require_devices(config.student)
    folder.create()
    task = describe(config.data)
    public = read_public(config.data, partial(console.progress, "reading public rows"))
    if public.held_out:
        held_out = f"{len(public.test_inputs)} of the labelled public rows"
        console.say(f"no test rows: {held_out} are held out, and are the test split")
    elif not len(public.test_inputs):
        console.say(f"no test rows: accuracy stays unknown. {CURES['test']}")
    extractor = first_extractor(config, task)
    check_student(config.student, extractor, task)  # fails early
    rows = {"public": public.inputs, "test": public.test_inputs}
    features = PublicFeatures(config, rows, console.progress)
    directory = custodian or custodian_place(config.private_side(), run_dir)
    known = folder.ledger_state().dataset if folder.ledger.exists() else None
    side = replace(config.private_side(), directory=directory, dataset=known)
    child = to_yaml(replace(config, custodian_dir=str(directory), teacher=None))
    with teacher_of(side, task, entropy, console, child if isolate else None) as teacher:
        teacher.export(folder.ledger)
        config = _fixed(config, folder, console, len(public.inputs))
        record(config, folder)
        settings = config.public_side()
        taught = public.labels if settings.taught else None
        if taught is not None:  # no metric is of rows that were trained on
            public = replace(public, labels=None)
        experiment = Experiment(
            settings, folder, task, public, extractor, features, teacher, console, taught
        )
        if taught is not None and (alone := public_alone(experiment)):
            console.say(alone)
        rounds = [_round(experiment, current) for current in settings.rounds]
        return _summarise(experiment, rounds, config.data)


def foresee(mechanism: Mechanism, records: int) -> str | None:
    """Why answers from so many records, a PUBLIC guess, may be useless; None where nothing
    indicates it.
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


def _fixed(config: Config, folder: RunFolder, console: Console, public: int) -> Config:
    """With every number that the budget decided, as the ledger fixed it before its first release.

    Another version may have solved it otherwise, which is said; so are rounds that may be useless,
    before anything is charged. ``public``: how many public rows there are.
    """
    plan = folder.ledger_state().plan
    assert plan is not None
    require_affordable(plan)
    fixed = config.recorded(plan)
    if fixed != config.solved():
        console.say(f"as the ledger fixed it, {solved_line(solved_numbers(config, fixed))}")
    if folder.metrics(1) is None:
        for number, slot in enumerate(fixed.slots(), start=1):
            if reason := foresee(from_slot(plan.slots[slot]), fixed.records(public)):
                console.say(f"round {number} may be useless: {reason}")
    return fixed


def _round(experiment: Experiment, current: Round) -> dict:
    """A round's metrics: read from its file when it is finished, otherwise by running it."""
    folder, say, number = experiment.folder, experiment.console.say, current.number
    metrics = folder.metrics(number)
    if metrics is None:
        asked = ask(experiment, current)
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


def _summarise(experiment: Experiment, rounds: list[dict], data: DataConfig) -> dict[str, object]:
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
    write_file(folder.student, _described(folder, data, experiment.task.labels, summary))
    write_file(folder.summary, json.dumps(summary, indent=2))
    return summary


def _described(folder: RunFolder, data: DataConfig, labels: LabelSpace, summary: dict) -> bytes:
    """The kept round's student with its metadata: a safetensors file.

    ``summary``: what summary.json holds. All of it is public, so nothing is charged.
    """
    kept, plan = summary["best_round"], folder.ledger_state().plan
    assert plan is not None
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
