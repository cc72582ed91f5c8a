"""A round's questions: about which public rows, by which features, and what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...wall.answering import Answering
from ...wall.console import Console
from ...wall.errors import listed
from ...wall.labels import LabelSpace, has_label
from ...wall.messages import Answers, ExtractorSpec, Queries
from ...wall.questions import Round
from ..results import UNKNOWN, Estimate, RoundResult
from ..round_files import CLASSIFIER, COUNTED, RoundFiles
from .ask_matrices import ask_matrices, axes_by_count
from .asking_features import AskingFeatures, choose_features, features_on_axes, kept_round, repeats
from .estimates import FOREIGN
from .public_rows import PublicRows
from .query_selection import choose_queries


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a round released: ``answers`` for ``rows`` of the public pool (int64 [n]), by these
    features; ``estimate``: of the labels, where the release tells one.
    """

    answers: Answers
    rows: np.ndarray
    features: AskingFeatures
    estimate: Estimate | None


def public_alone(public: PublicRows, extractor: ExtractorSpec) -> str | None:
    """What the public labels that are learned give without private rows, in a line.

    ``extractor``: of the first round.
    """
    if public.learned is None or (known := public.labelled(extractor)) is None:
        return None
    return (
        f"public labels alone: {100 * known.right:.1f}% right by logistic regression on "
        f"{len(known.labels)} rows, cross-validated. They are learned beside the released ones "
        "(--public_labels metrics: they serve metrics alone)"
    )


def ask(
    teacher: Answering,
    public: PublicRows,
    planned: Round,
    results: Sequence[RoundResult],
    folder: RoundFiles,
    console: Console,
    others: str | None = None,
) -> Asked:
    """Choose the round's queries, and ask the teacher.

    ``results``: of all earlier rounds. ``others``: the name of the rows that answers by matrices
    label, the queries where it is None.
    """
    name, count = f"round {planned.number}", planned.queries or len(public.data.inputs)
    features = choose_features(public, planned, results, folder)
    rows = _choose(public, planned, features.spec, folder, count)
    if len(rows) < count:
        console.say(f"{name}: the public pool has only {len(rows)} rows left to ask")
    console.say(f"{name}: asking {len(rows)} queries with {features.spec.backbone} features")
    with console.timed("embedding"):
        teacher.use_extractor(features.spec)
    if planned.form.matrix is None:
        answers = teacher.answer(Queries(public.data.inputs[rows], slot=planned.slot))
        return Asked(answers=answers, rows=rows, features=features, estimate=None)
    if planned.periods == 1 and not repeats(planned, results):  # later records want other axes
        planned, features = _by_count(teacher, public, planned, results, features, folder, console)
    extractor, quantised = features.spec, public.features.quantised
    answers, estimate = ask_matrices(
        teacher.count,
        planned,
        extractor,
        folder.round(planned.number),
        quantised(extractor)[rows],
        None if others is None else quantised(extractor, others),
        public.labelled(extractor),
        _last_classifier(planned, results, folder),
    )
    for text in _remarks(estimate, public.task.labels):
        console.say(f"{name}: {text}")
    return Asked(answers=answers, rows=rows, features=features, estimate=estimate)


def _last_classifier(
    planned: Round, results: Sequence[RoundResult], folder: RoundFiles
) -> Path | None:
    """The file of an earlier classifier of the same features, which is averaged with the round's
    own; None where there is none.
    """
    if not results or (results[0].period == planned.period and not repeats(planned, results)):
        return None
    first_of_period = results[-1].period < planned.period
    number = kept_round(results) if first_of_period else len(results)
    return folder.round(number) / CLASSIFIER


def _by_count(
    teacher: Answering,
    public: PublicRows,
    planned: Round,
    results: Sequence[RoundResult],
    features: AskingFeatures,
    folder: RoundFiles,
    console: Console,
) -> tuple[Round, AskingFeatures]:
    """The round and its features, after its first sum has counted the records."""
    file = f"round_{planned.number}/{COUNTED}"
    if not (folder.path / file).exists():
        guess, extractor = public.settings.records(len(public.data.inputs)), features.spec
        plain = public.features.plain(extractor)
        axes = axes_by_count(teacher.count, planned, extractor, guess, plain)
        if axes is None:
            return planned, features
        kept = public.features.quantised(extractor).shape[1]
        console.say(
            f"round {planned.number}: there are not about {guess} records (expected_records), so "
            f"{axes} axes are asked about instead of {kept}"
        )
        features = features_on_axes(public, planned, results, folder, axes, file)
        teacher.use_extractor(features.spec)
    steps = (planned.form.steps or 1) - 1  # the first sum was spent on other axes
    return replace(planned, form=replace(planned.form, steps=steps)), features


def _remarks(estimate: Estimate | None, labels: LabelSpace) -> list[str]:
    """What an estimate tells a reader beside its number."""
    if estimate is None:
        return []
    remarks = list[str]()
    if estimate.by == UNKNOWN:
        remarks.append(
            "the released counts do not tell the records from none, so nothing is known of the "
            f"labels, and nothing is left of the round to ask again. {labels.causes}"
        )
    if estimate.why == FOREIGN:
        remarks.append(f"private rows differ from the public ones: {FOREIGN}")
    if estimate.few:
        few = listed(f"{labels.names[int(k)]} (about {n})" for k, n in estimate.few.items())
        remarks.append(
            f"classes with too few records for this epsilon: {few}. Their labels are hardly "
            "known: merge them with others, raise epsilon, or see by `labelwall data` if they are "
            "written otherwise"
        )
    return remarks


def _choose(
    public: PublicRows, planned: Round, extractor: ExtractorSpec, folder: RoundFiles, count: int
) -> np.ndarray:
    """Rows of the public pool to ask: int64 [n], in request order."""
    status, features = np.zeros(len(public.data.inputs), dtype=np.uint8), None
    if planned.once:  # it may ask all rows again
        rows = choose_queries(public.settings.seed, planned.number, status, count)
        # Cells depend on the rows' order: rehearsals have this one
        return np.sort(rows) if planned.form.matrix == "cells" else rows
    if public.settings.choice == "typical":
        features = public.features.quantised(extractor).astype(np.float32)
    for earlier in range(1, planned.number):
        rows, labels, _ = folder.load_answers(earlier)
        status[rows] = np.maximum(status[rows], np.where(has_label(labels), 2, 1))
    return choose_queries(public.settings.seed, planned.number, status, count, features)
