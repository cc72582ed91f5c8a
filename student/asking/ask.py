"""A round's questions: about which public rows, by which features, and what comes back."""

from dataclasses import dataclass, replace

import numpy as np

from ...wall.answering import Answering
from ...wall.console import Console
from ...wall.labels import LabelSpace, has_label
from ...wall.messages import Answers, ExtractorSpec, Queries
from ..linear.stored import StoredLayer, stored_layer
from ..results import UNKNOWN, Estimate
from ..round_files import CLASSIFIER
from .asking_features import AskingFeatures, AskingRound, choose_features, last_classifier
from .counted_axes import on_counted_axes
from .estimates import DRAWN, FOREIGN
from .matrix_round import MatrixRound, ask_matrices
from .public_rows import PublicRows
from .query_selection import choose_queries


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Answers for ``rows`` of the public pool, int64 [n], by these features.

    ``estimate``: of the labels, if the release tells one. ``classifier``: or regression, if the
    round left one.
    """

    answers: Answers
    rows: np.ndarray
    features: AskingFeatures
    estimate: Estimate | None
    classifier: StoredLayer | None


def public_alone(public: PublicRows, extractor: ExtractorSpec) -> str | None:
    """What the public labels that are learned give without private rows, in a line.

    ``extractor``: of the first round.
    """
    if public.learned is None or (alone := public.alone(extractor)) is None:
        return None
    name, right = alone
    values = public.task.labels.kind == "value"
    score = f"R2 {right:.3f}" if values else f"{100 * right:.1f}% right"
    return (
        f"public labels alone: {score} by {name}, cross-validated on "
        f"{int((public.learned >= 0).sum())} rows. They are learned beside the released ones "
        "(--public_labels metrics: they serve metrics alone)"
    )


def ask(
    teacher: Answering,
    public: PublicRows,
    current: AskingRound,
    console: Console,
    others: str | None = None,
) -> Asked:
    """Choose the round's queries, and ask the teacher.

    ``others``: the name of the rows that answers by matrices label; None: the queries.
    """
    planned = current.planned
    name, count = f"round {planned.number}", planned.queries or len(public.data.inputs)
    with console.timed(f"{name}: embedding"):
        features = choose_features(public, current)
        rows = _choose(public, current, features.spec, count)
        if len(rows) < count:
            console.say(f"{name}: the public pool has only {len(rows)} rows left to ask")
        console.say(f"{name}: asking {len(rows)} queries with {features.spec.backbone} features")
        teacher.use_extractor(features.spec)
    if planned.form.matrix is None:
        answers = teacher.answer(Queries(public.data.inputs[rows], slot=planned.slot))
        return Asked(answers=answers, rows=rows, features=features, estimate=None, classifier=None)
    if planned.periods == 1 and not current.repeats:  # later records want other axes
        planned, features = on_counted_axes(teacher, public, current, features, console)
    extractor, quantised = features.spec, public.features.quantised
    by_matrices = MatrixRound(
        count=teacher.count,
        planned=planned,
        extractor=extractor,
        features=quantised(extractor)[rows],
        rows=None if others is None else quantised(extractor, others),
        labelled=public.labelled(extractor),
        drawn=public.settings.data.draws,
        balanced=public.settings.balanced,
        last=last_classifier(current),
        folder=current.path,
    )
    answers, estimate = ask_matrices(by_matrices)
    if by_matrices.drawn and estimate is not None and estimate.known:
        estimate = replace(estimate, why=DRAWN)
    for text in _remarks(estimate, public.task.labels):
        console.say(f"{name}: {text}")
    return Asked(
        answers=answers,
        rows=rows,
        features=features,
        estimate=estimate,
        classifier=stored_layer(current.path / CLASSIFIER),
    )


def _remarks(estimate: Estimate | None, labels: LabelSpace) -> list[str]:
    """What an estimate tells a reader beside its number."""
    if estimate is None:
        return []
    remarks = list[str]()
    if estimate.by == UNKNOWN:
        remarks.append(
            "the noisy counts could come from no records at all. So the labels are of unknown "
            "quality, and this round has no budget left. Either there are too few records for this "
            f"epsilon, or they were not read. {labels.causes}"
        )
    if estimate.why == FOREIGN:
        remarks.append(f"{FOREIGN}, so the share of right labels cannot be estimated")
    return remarks


def _choose(
    public: PublicRows, current: AskingRound, extractor: ExtractorSpec, count: int
) -> np.ndarray:
    """Rows of the public pool to ask: int64 [n], in request order."""
    planned = current.planned
    status, features = np.zeros(len(public.data.inputs), dtype=np.uint8), None
    if planned.once:  # it may ask all rows again
        rows = choose_queries(public.settings.seed, planned.number, status, count)
        # Cells depend on the rows' order: rehearsals have this one
        return np.sort(rows) if planned.form.matrix == "cells" else rows
    if public.settings.choice == "typical":
        features = public.features.quantised(extractor).astype(np.float32)
    for earlier in range(1, planned.number):
        rows, labels, _ = current.folder.load_answers(earlier)
        status[rows] = np.maximum(status[rows], np.where(has_label(labels), 2, 1))
    return choose_queries(public.settings.seed, planned.number, status, count, features)
