"""A round's questions: with which features, about which public rows, and what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ...teacher.features.embedder import unit_length
from ...wall.datasets.config import PublicData, Task
from ...wall.errors import listed
from ...wall.labels import has_label
from ...wall.messages import RELEASED, Answers, ExtractorSpec, Queries
from ..config.groups import PublicSide, Round, Scoring
from ..linear.labelled import Labelled, labelled
from .console import Console
from .features import PublicFeatures, extractor_of_round, whitened
from .matrices import ask_matrices, axes_by_count
from .quality import FOREIGN, UNKNOWN, Estimate, best_round, estimate_of
from .query_selection import choose_queries
from .run_folder import CLASSIFIER, COUNTED, FEATURES, RunFolder
from .teachers import Answering


@dataclass(frozen=True)
class Experiment:
    """What the rounds of a run share."""

    settings: PublicSide
    rounds: list[Round]
    folder: RunFolder
    task: Task
    public: PublicData
    first_extractor: ExtractorSpec  # of the first round, before whitening
    features: PublicFeatures
    teacher: Answering
    console: Console
    known: np.ndarray | None = None  # labels of public rows to learn, int64 [n], -1 elsewhere
    scoring: Scoring | None = None
    loggers: Sequence[Any] = ()  # of Lightning

    def estimates(self, before: Round) -> list[Estimate | None]:
        """Those of the rounds before this one, all of them finished; None for other periods', whose
        records were others.
        """
        return [
            estimate_of(self.folder.metrics(earlier.number) or {})
            if earlier.period == before.period
            else None
            for earlier in self.rounds[: before.number - 1]
        ]

    def kept(self, last: Round) -> int:
        """The round whose student is kept after this one, which is finished."""
        own = estimate_of(self.folder.metrics(last.number) or {})
        return best_round([*self.estimates(last), own])


class Asked(NamedTuple):
    """What a round released: ``answers`` for ``rows`` of the public pool (int64 [n]), by features
    of the ``extractor``; ``estimate``: of the labels, where the release tells one.
    """

    answers: Answers
    rows: np.ndarray
    extractor: ExtractorSpec
    estimate: Estimate | None


def asking_extractor(experiment: Experiment, number: int) -> ExtractorSpec:
    """The features of round ``number`` as its mechanism asks with them; stored where they follow
    from public rows, since their last digit may depend on the machine.
    """
    form = experiment.rounds[number - 1].form
    if (before := _period_before(experiment, number)) is not None:
        return asking_extractor(experiment, experiment.kept(before))
    if _again(experiment, number):
        return asking_extractor(experiment, number - 1)
    if form.axes is None and not form.landmarks:
        return _extractor(experiment, number)
    counted = experiment.folder.round(number) / COUNTED
    return _on_axes(experiment, number, form.axes, COUNTED if counted.exists() else FEATURES)


def _untaught(experiment: Experiment, number: int) -> bool:
    """Whether the student of round ``number`` is its released classifier, with no new features."""
    extractor = experiment.folder.load_extractor(number)
    return extractor.backbone.startswith(RELEASED)


def _again(experiment: Experiment, number: int) -> bool:
    """Whether a round takes sums as the one before did, with which its classifier is averaged."""
    if number == 1 or not _untaught(experiment, number - 1):
        return False
    return experiment.rounds[number - 1].form == experiment.rounds[number - 2].form


def _period_before(experiment: Experiment, number: int) -> Round | None:
    """The last round of the period before that of round ``number``; None in the first."""
    period = experiment.rounds[number - 1].period
    earlier = [each for each in experiment.rounds if each.period < period]
    return earlier[-1] if earlier else None


def _on_axes(experiment: Experiment, number: int, axes: int | None, file: str) -> ExtractorSpec:
    form = replace(experiment.rounds[number - 1].form, axes=axes)
    plain = experiment.features.plain
    return experiment.folder.features(
        lambda: extractor_of_round(_extractor(experiment, number), form, plain), number, file
    )


def _extractor(experiment: Experiment, number: int) -> ExtractorSpec:
    """Those of the round before, unless labels became worse by its own features: then those that
    the best round asked with.
    """
    folder, spec, count = experiment.folder, experiment.first_extractor, experiment.settings.whiten
    if number == 1 and not count:
        return spec
    if number == 1:
        return folder.features(lambda: whitened(spec, count, experiment.features.plain))
    kept = best_round(experiment.estimates(experiment.rounds[number - 1]))
    if kept < number - 1 or _untaught(experiment, kept):
        return _extractor(experiment, kept)
    return folder.load_extractor(kept)


def public_alone(experiment: Experiment) -> str | None:
    """What the public labels that are learned give without private rows, in a line."""
    extractor = asking_extractor(experiment, 1)
    if (known := _labelled(experiment, extractor)) is None:
        return None
    return (
        f"public labels alone: {100 * known.right:.1f}% right by logistic regression on "
        f"{len(known.labels)} rows, cross-validated. They are learned beside the released ones "
        "(--public_labels metrics: they serve metrics alone)"
    )


def _labelled(experiment: Experiment, extractor: ExtractorSpec) -> Labelled | None:
    features = experiment.features.quantised(extractor)
    length = unit_length(extractor, features.shape[1])
    return labelled(features, experiment.known, length, experiment.task.num_classes)


def ask(experiment: Experiment, asked: Round, others: str | None = None) -> Asked:
    """Choose the round's queries, and ask the teacher.

    ``others``: the name of the rows that answers by matrices label, the queries where it is None.
    """
    public, teacher = experiment.public, experiment.teacher
    name, count, estimate = f"round {asked.number}", asked.queries or len(public.inputs), None
    extractor, say = asking_extractor(experiment, asked.number), experiment.console.say
    rows = _choose(experiment, asked, extractor, count)
    if len(rows) < count:
        say(f"{name}: the public pool has only {len(rows)} rows left to ask")
    say(f"{name}: asking {len(rows)} queries with {extractor.backbone} features")
    with experiment.console.timed("embedding"):
        teacher.use_extractor(extractor)
    if asked.form.matrix is None:
        answers = teacher.answer(Queries(public.inputs[rows], slot=asked.slot))
    else:
        before, again = _period_before(experiment, asked.number), _again(experiment, asked.number)
        if asked.periods == 1 and not again:  # later records would want other axes
            asked, extractor = _by_count(experiment, asked, extractor)
        features, place = experiment.features.quantised, experiment.folder.round(asked.number)
        rest = None if others is None else features(extractor, others)
        known = _labelled(experiment, extractor)
        last = None
        if before is not None or again:
            number = asked.number - 1
            if before is not None and number == before.number:  # of the period before
                number = experiment.kept(before)
            last = experiment.folder.round(number) / CLASSIFIER
        answers, estimate = ask_matrices(
            teacher.count, asked, extractor, place, features(extractor)[rows], rest, known, last
        )
        for text in _remarks(estimate, experiment.task.labels.names):
            say(f"{name}: {text}")
    return Asked(answers, rows, extractor, estimate)


def _by_count(
    experiment: Experiment, asked: Round, extractor: ExtractorSpec
) -> tuple[Round, ExtractorSpec]:
    """The round and its features, after its first sum has counted the records."""
    number, inputs = asked.number, experiment.public.inputs
    if not (experiment.folder.round(number) / COUNTED).exists():
        guess = experiment.settings.records(len(inputs))
        plain, teacher = experiment.features.plain(extractor), experiment.teacher
        axes = axes_by_count(teacher.count, asked, extractor, guess, plain)
        if axes is None:
            return asked, extractor
        kept = experiment.features.quantised(extractor).shape[1]
        experiment.console.say(
            f"round {number}: there are not about {guess} records (expected_records), so "
            f"{axes} axes are asked about instead of {kept}"
        )
        extractor = _on_axes(experiment, number, axes, COUNTED)
        teacher.use_extractor(extractor)
    steps = (asked.form.steps or 1) - 1  # the first sum was spent on other axes
    return replace(asked, form=replace(asked.form, steps=steps)), extractor


def _remarks(estimate: Estimate | None, names: tuple[str, ...]) -> list[str]:
    """What an estimate tells a reader beside its number."""
    if estimate is None:
        return []
    remarks = list[str]()
    if estimate.by == UNKNOWN:
        remarks.append(
            "the released counts do not tell the records from none, so nothing is known of the "
            "labels. Are there private rows?"
        )
    if estimate.why == FOREIGN:
        remarks.append(f"private rows differ from the public ones: {FOREIGN}")
    if estimate.few:
        few = listed(f"{names[int(k)]} (about {n})" for k, n in estimate.few.items())
        remarks.append(
            f"classes with too few records for this epsilon: {few}. Their labels are hardly "
            "known: merge them with others, or raise epsilon"
        )
    return remarks


def _choose(
    experiment: Experiment, asked: Round, extractor: ExtractorSpec, count: int
) -> np.ndarray:
    """Rows of the public pool to ask: int64 [n], in request order."""
    status, features = np.zeros(len(experiment.public.inputs), dtype=np.uint8), None
    if experiment.settings.choice == "typical" and not asked.once:
        features = experiment.features.quantised(extractor).astype(np.float32)
    for earlier in range(1, 1 if asked.once else asked.number):  # which may ask all rows again
        rows, labels, _ = experiment.folder.load_answers(earlier)
        status[rows] = np.maximum(status[rows], np.where(has_label(labels), 2, 1))
    rows = choose_queries(experiment.settings.seed, asked.number, status, count, features)
    cells = asked.form.matrix == "cells"  # which depend on the order: rehearsals have this one
    return np.sort(rows) if cells else rows
