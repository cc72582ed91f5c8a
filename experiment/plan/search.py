"""The best configuration for a budget, by PUBLIC rows: what `mechanism: {kind: auto}` becomes.

Nothing private is read: not a row, not a count. All features that the data allow are computed once;
each kind of mechanism is searched for on them (candidates.py). The choice is the one with the most
right labels of all public rows, or with the best R2 of values.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ...student.asking.boosted import TREES, Boosted, boosted, lacking
from ...student.asking.features import first_extractor
from ...student.asking.public_rows import learned_labels
from ...student.learning import check_student
from ...student.public_settings import (
    STAGES,
    CountedPlan,
    PublicSide,
    can_count,
    student_beside,
)
from ...student.student_config import BY_FEATURES
from ...student.train import LINEAR
from ...teacher.accounting.accountant import require_affordable
from ...teacher.mechanisms.base import Charging, Mechanism
from ...teacher.mechanisms.registry import MECHANISMS
from ...teacher.private_files import make_private
from ...wall.console import Console
from ...wall.datasets.data_config import PublicData, Task
from ...wall.datasets.sources import describe, read_public
from ...wall.datasets.texts import HASHED
from ...wall.errors import BudgetRefused, InvalidInput
from ...wall.feature_maps import MAPS
from ...wall.files import write_file
from ...wall.progress import Progress
from ...wall.questions import MatrixForm, SumsForm
from ..config.config import Config
from ..config.settings import to_yaml
from ..config.tuning import MIN_ROWS
from ..run.run_folder import RunFolder
from ..run.served import split_rounds
from . import tuning
from .candidates import PLANNERS
from .planner import Choice, Goal, Optimum, RehearsalRows, View, noiseless
from .rehearsal import Rehearsal, labelled_rows, public_box
from .show import choices_table, describe_candidates, reason

# Why a kind is chosen that is not the best by its forecast
FOREIGN = "public rows differ from these, so {} is chosen: its classifier needs none"
GUESSED = "{} is within the error, and gains most if there are more records than guessed"
PHOTOGRAPHS = (
    "a network of photographs has the most right labels forecast. `--student.backbone auto` trains "
    "one layer on it instead of a network of its own: one round, and minutes instead of maybe an "
    "hour"
)


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


def best_plan(config: Config, console: Console) -> tuple[Config, Optimum[Any]]:
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
        goal = _goal(own, len(public.inputs))
        optimum = search(own.public_side(), task, public, goal, mechanisms, console.progress)
        planned = planned_config(own, optimum.chosen)
        found.append((replace(planned, by_count=list(optimum.by_count)), optimum))
    best, optimum = max(found, key=lambda each: each[1].chosen.worth)
    if len(found) > 1:
        console.say(f"texts: {best.data.text_features} has the most right labels forecast")
    photographs = config.features == "auto" and best.features == STAGES
    if photographs and best.student.backbone == "small_cnn":
        console.say(PHOTOGRAPHS)
    require_affordable(best.plan())
    return best, optimum


def _goal(config: Config, queries: int) -> Goal:
    return Goal(
        epsilon=config.budget.epsilon * (1 - config.evaluate.share),
        delta=config.budget.delta,
        expected_records=config.records(queries),
        queries=queries,
        rounds=len(config.rounds),
        asked=sum(entry.queries or 0 for entry in config.rounds) or None,
        told=bool(config.known_records),
        unit=config.privacy.unit,
        periods=round(1 / config.budget.first),
        custodians=config.schedule.custodians,
        given=getattr(config.mechanism, "given", {}),
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

    Raises InvalidInput if there is nothing to rehearse on, BudgetRefused if nothing is affordable.
    """
    learned = learned_labels(settings, task, public)
    trees = boosted(public.inputs, learned, task.labels)
    with tempfile.TemporaryDirectory(prefix="labelwall-rehearsal-") as scratch:
        prepared = [
            _rehearsal(named, task, _seen(public, named, trees), goal, progress, Path(scratch))
            for named in by_features(settings, task, public, trees)
        ]
        by_name = {stage.settings.features: stage for stage in prepared}
        rows = RehearsalRows(
            views=lambda: tuple(view for stage in prepared for view in stage.views),
            rehearse=lambda view, mechanism, draws, asked: by_name[view.features].score(
                view, mechanism, draws, asked
            ),
        )
        optima = _optima(mechanisms, goal, rows, progress)
        best = _taken(optima, lambda view: by_name[view.features].foreign(view))
        more = _by_count(best, by_name, progress)
        view = best.chosen.view
        alone = by_name[view.features].alone(view, best.chosen.mechanism.query_form, trees)
    tried = [choice for optimum in optima for choice in optimum.tried]
    # A single rehearsal that came out best did so by luck, too: those with a spread first
    tried.sort(key=lambda choice: (choice is not best.chosen, not choice.spread, -choice.worth))
    source, frequent = prepared[0].labelled.source, prepared[0].labelled.frequent
    if settings.balanced:
        source, frequent, alone = f"{source}, classes counting alike", 0.0, 0.0
    return replace(
        best,
        tried=tuple(tried),
        source=source,
        frequent=frequent,
        alone=alone,
        by_count=more,
    )


def _by_count(
    best: Optimum[Any], stages: Mapping[str, Rehearsal], progress: Progress
) -> tuple[CountedPlan, ...]:
    """Features and axes that suit more records than were guessed, with the steps that were chosen.

    Nothing if somebody told the records, or if the mechanism has no sum to count them by.
    """
    chosen, goal = best.chosen, best.goal
    form = chosen.mechanism.query_form
    counts = isinstance(form, SumsForm) and form.axes is not None and can_count(form)
    if goal.told or goal.periods > 1 or not counts or "axes" in goal.given:
        return ()
    of_columns = ("raw", *MAPS)
    names = of_columns if chosen.view.features in of_columns else (chosen.view.features,)
    plain = [v for name in names if name in stages for v in stages[name].views if not v.whiten]
    tried = [
        (view, replace(chosen.mechanism, axes=axes))
        for view in plain
        for axes in sorted({min(count, view.axes) for count in tuning.AXES})
        if axes >= form.axes or view != chosen.view
    ]

    def right(candidate: tuple[View, Mechanism], times: int, draws: range) -> float:
        view, mechanism = candidate
        forecast = stages[view.features].score(view, mechanism, draws, chosen.asked, times)
        return forecast.answered * forecast.accuracy

    plans, what = list[CountedPlan](), "rehearsing more records"
    with threadpool_limits(limits=1):
        for number, times in enumerate(tuning.MORE if tried else ()):
            progress(what, number, len(tuning.MORE))
            ranked = sorted(tried, key=lambda each: -right(each, times, range(1)))[: tuning.LAST]
            fresh = range(1, 1 + tuning.DRAWS_OF_MORE)
            view, mechanism = max(ranked, key=lambda each: right(each, times, fresh))
            records = times * goal.expected_records
            plan = CountedPlan(records=records, features=view.features, axes=mechanism.axes)
            plans.append(plan)
            progress(what, number + 1, len(tuning.MORE))
    return tuple(plans)


def _optima(
    mechanisms: Sequence[Mechanism], goal: Goal, rows: RehearsalRows, progress: Progress
) -> list[Optimum[Any]]:
    """The optimum of each kind, for each number of queries. Raises BudgetRefused if none is."""
    optima = list[Optimum[Any]]()
    refused: BudgetRefused | None = None
    # Kinds with few candidates come first: others that are far behind them are left soon.
    for mechanism in sorted(mechanisms, key=lambda each: not each.once_a_round):
        prepaid, numbers = mechanism.charging is Charging.PREPAID, [goal.asked]
        if prepaid:  # budgets of records deplete
            numbers = [max(goal.rounds, round(share * goal.queries)) for share in tuning.ASKED]
        for asked in numbers:
            worth = max((optimum.chosen.worth for optimum in optima), default=0.0)
            if prepaid and (asked or 0) < worth:
                continue  # even if all of them were right
            own = replace(goal, worth=worth, asked=asked)
            try:
                optima.append(PLANNERS[mechanism.kind].plan(mechanism, own, rows, progress))
            except BudgetRefused as error:
                refused = error
    if not optima:
        raise refused or goal.nothing_affordable()
    return optima


def _taken(optima: Sequence[Optimum[Any]], foreign: Callable[[View], bool]) -> Optimum[Any]:
    """The best optimum or, if that is safer, the one that leaves a classifier of classes."""
    best = max(optima, key=lambda optimum: optimum.chosen.worth)
    leaving = [optimum for optimum in optima if optimum.chosen.mechanism.leaves_classifier]
    choice = best.chosen
    if choice.mechanism.label_space != "class" or not leaving or leaving[0] is best:
        return best
    if foreign(choice.view):
        return replace(leaving[0], safer=FOREIGN.format(leaving[0].chosen.mechanism.kind))
    near = choice.answered * (choice.accuracy - choice.spread)
    if not best.goal.told and leaving[0].chosen.worth > near:
        return replace(leaving[0], safer=GUESSED.format(leaving[0].chosen.mechanism.kind))
    return best


def mechanisms_for(config: Config) -> list[Mechanism]:
    """The mechanisms that fit the labels of an open configuration, and among which it chooses.

    Raises InvalidInput if there are none.
    """
    planned = (MECHANISMS[kind]() for kind in PLANNERS)
    fits: list[Mechanism] = [m for m in planned if m.label_space == config.data.labels]
    if (periods := config.budget.periods) > 1:
        fits = [m for m in fits if m.updated]
        if not fits:
            rule = f"1 for labels of kind {config.data.labels}, whose models are not updated"
            raise InvalidInput("budget.periods", rule, periods, "Leave --periods out.")
    if config.schedule.custodians > 1:  # how right each one's votes are no rehearsal tells
        fits = [m for m in fits if isinstance(m.query_form, MatrixForm)]
    if config.balanced:  # a classifier alone can be
        fits = [m for m in fits if isinstance(m.query_form, SumsForm)]
    among = getattr(config.mechanism, "among", None)
    mechanisms = [m for m in fits if among in (None, m.kind)]
    if not mechanisms:
        rule = f"null, or one of {', '.join(m.kind for m in fits)}"
        rule += " with --balanced" if config.balanced else ""
        raise InvalidInput("mechanism.among", rule, among)
    return mechanisms


def _seen(public: PublicData, settings: PublicSide, trees: Boosted | None) -> PublicData:
    """The rows that a rehearsal sees by these features: trees add what they say of public ones."""
    if settings.features != TREES:
        return public
    if trees is None:
        raise lacking()
    return replace(public, inputs=trees.beside(public.inputs))


def by_features(
    settings: PublicSide, task: Task, public: PublicData, trees: Boosted | None = None
) -> list[PublicSide]:
    """The settings with each kind of features that its rows and its student allow."""
    if settings.features != "auto":
        return [settings]
    if len(task.input_shape) == 1:
        by_name = [replace(settings, features="raw")]
        if task.input_shape[0] <= tuning.CURVED:
            by_name += [replace(settings, features=name) for name in MAPS]
        if trees is not None and not settings.whiten:
            by_name.append(replace(settings, features=TREES))
        if task.input_shape[0] < tuning.EMBEDDED and not settings.whiten:
            by_name.append(replace(settings, features="box", box=public_box(public.inputs)))
        return by_name
    by_name = [replace(settings, features="hog")]
    if task.input_shape[2] == 3:
        by_name.append(replace(settings, features=STAGES))
    taught = []
    for named in by_name:
        with suppress(InvalidInput):  # its student can not be trained beside these features
            student = student_beside(named.student, named.features)
            check_student(student, first_extractor(named, task), task)
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
    network = settings.features not in ("hog", "raw", "box", *MAPS, TREES)
    seed = settings.seed
    most = tuning.MAX_NETWORK if network else tuning.MAX_LABELLED
    rows = np.random.default_rng(seed).permutation(len(public.inputs))
    labelled = labelled_rows(public, most, seed)
    if labelled is None:
        rule = f"at least {MIN_ROWS} labelled public or test rows, to rehearse on"
        raise InvalidInput("data.test", rule, len(public.test_labels))
    return Rehearsal(
        settings=settings,
        task=task,
        public=public.inputs[np.sort(rows[: min(tuning.MAX_PUBLIC, most)])],
        labelled=labelled,
        goal=goal,
        progress=progress,
        scratch=scratch,
    )


def planned_config(config: Config, choice: Choice[Any]) -> Config:
    """The configuration with what was chosen.

    A mechanism that asks once a round keeps the rounds' queries, and leaves its noise to the
    budget unless it was given; the queries of others are split evenly over the rounds.
    """
    mechanism, view = choice.mechanism, choice.view
    if mechanism.once_a_round:
        mechanism = noiseless(mechanism, getattr(config.mechanism, "given", {}))
    box = [list(side) for side in view.box]
    student, rounds = student_beside(config.student, view.features), config.rounds
    if config.student.backbone == BY_FEATURES and student.backbone == LINEAR:
        rounds = rounds[:1]  # its features do not change
    config = replace(
        config,
        features=view.features,
        whiten=view.whiten,
        box=box,
        student=student,
        rounds=rounds,
    )
    caps, rounds = split_rounds(config, mechanism, choice.asked, choice.cap)
    return replace(config, mechanism=mechanism, caps=caps, rounds=rounds)
