"""The entry of a run: it resolves the configuration, records it, and hands each side its part.

Rooms below take the parts alone.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...student.devices import require_devices
from ...teacher.accounting.accountant import require_affordable
from ...teacher.mechanisms.base import Mechanism
from ...teacher.mechanisms.registry import from_slot
from ...teacher.mechanisms.sums import ReverseKnn
from ...teacher.mechanisms.votes import SampledVotes
from ...teacher.noise.entropy import Entropy
from ...wall.datasets.config import PublicData
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import LabelwallError
from ..config.config import Config
from ..config.own import CURES
from ..config.private_side import solved_line, solved_numbers
from ..config.settings import load_config, to_yaml
from .asking import Experiment
from .console import Console
from .features import PublicFeatures, first_extractor
from .matrices import LEAST_VOTES
from .places import custodian_place
from .rounds import run_rounds
from .run_folder import RunFolder, write_file
from .teachers import teacher_of
from .training import check_student

LEAST_PASSING = 0.2  # share of queries that pass; with fewer the budget buys hardly a label
# What may change between a run and its resumption.
NOT_IDENTITY = {"threads", "workers", "batch_size", "device", "teacher"}
NOT_IDENTITY |= {"expected_records"}  # which decides nothing once a method is chosen


def run(
    config: Config,
    run_dir: Path,
    *,
    entropy: Entropy,
    console: Console,
    isolate: bool = False,
    custodian: Path | None = None,
    loggers: Sequence[Any] = (),
) -> dict[str, object]:
    """Run, or resume, an experiment; returns what summary.json holds.

    No data is read unless the plan is affordable. A killed run continues where it stopped, and pays
    for nothing twice.

    ``isolate``: the teacher runs in a child process, and this process opens no private file.
    ``custodian``: the private side's directory; ``custodian_place`` where it is None. ``loggers``:
    of Lightning, for the students' metrics.

    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData.
    """
    folder = RunFolder(run_dir)
    config = resumed(config, folder)
    require_affordable(config.plan())
    require_devices(config.student)
    torch.set_num_threads(config.threads)
    folder.create()
    settings, task = config.public_side(), describe(config.data)
    public = read_public(config.data, partial(console.progress, "reading public rows"))
    if missing := _untested(public):
        console.say(missing)
    extractor = first_extractor(settings, task)
    check_student(config.student, extractor, task)  # fails early
    rows = {"public": public.inputs, "test": public.test_inputs}
    features = PublicFeatures(settings, rows, console.progress)
    directory = custodian or custodian_place(config, run_dir)
    side = replace(config.private_side(), custodian_dir=str(directory))
    known = folder.ledger_state().dataset if folder.ledger.exists() else None
    shared = side, task, entropy, console, known
    with teacher_of(*shared, left_out=folder.left_out, isolate=isolate) as teacher:
        teacher.export(folder.ledger)
        config = _fixed(config, folder, console, len(public.inputs))
        if not folder.config.exists():
            write_file(folder.config, to_yaml(config))
        taught = public.labels if settings.taught else None
        if taught is not None:  # no metric is of rows that were trained on
            public = replace(public, labels=None)
        rest = folder, task, public, extractor, features, teacher, console, taught
        rounds, score = config.asked_rounds(config.seed), config.asked_score()
        return run_rounds(Experiment(settings, rounds, *rest, score, loggers))


def _untested(public: PublicData) -> str:
    """What a run without test rows of its own does, in a line; empty for others."""
    if public.held_out:
        count = len(public.test_inputs)
        return f"no test rows: {count} of the labelled public ones are held out, and are these"
    return "" if len(public.test_inputs) else f"no test rows, so no accuracy. {CURES['test']}"


def _fixed(config: Config, folder: RunFolder, console: Console, public: int) -> Config:
    """With every number that the budget decided, as the ledger fixed it before its first release.

    Another version may have solved it otherwise, which is said; so are rounds that may be useless,
    before anything is charged. ``public``: how many public rows there are.
    """
    plan = folder.plan()
    require_affordable(plan)
    fixed = config.recorded(plan)
    if fixed != config.solved():
        console.say(f"as the ledger fixed it, {solved_line(solved_numbers(config, fixed))}")
    if folder.metrics(1) is None:
        for number, slot in enumerate(fixed.slots(), start=1):
            if reason := foresee(from_slot(plan.slots[slot]), fixed.records(public)):
                console.say(f"round {number} may be useless: {reason}")
    return fixed


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


def resumed(config: Config, folder: RunFolder) -> Config:
    """With the method and the numbers that the folder records, where ``config`` leaves them open.

    Raises LabelwallError where another configuration is recorded.
    """
    config = recorded_choice(config, folder)
    if not folder.config.exists():
        return config
    known = load_config(folder.config)
    config = config.recorded(known.plan())
    before, now = _json(known), _json(config)
    if differing := [name for name in now if before[name] != now[name]]:
        raise LabelwallError(
            f"{folder.path} holds a run with other settings ({', '.join(differing)}). Choose "
            "another --run_dir. Budgets of the same private records add up."
        )
    return config


def recorded_choice(config: Config, folder: RunFolder) -> Config:
    """With the method that the folder records, where ``config`` leaves it open.

    Before the run began, only where it was chosen for the same other settings.
    """
    if not config.open or not folder.choice.exists():
        return config
    known = load_config(folder.choice)
    chosen = config.chosen(known)
    same = _json(known) == _json(chosen) and known.expected_records == config.expected_records
    return chosen if same or folder.config.exists() else config


def _json(config: Config) -> dict[str, Any]:
    settings = json.loads(json.dumps(asdict(config)))
    return {name: value for name, value in settings.items() if name not in NOT_IDENTITY}
