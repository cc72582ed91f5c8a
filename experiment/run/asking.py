"""A round's questions: with which features, about which public rows, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...wall.datasets.config import PublicData, Task
from ...wall.labels import has_label
from ...wall.messages import Answers, ExtractorSpec, Queries
from ..config.parts import PublicSide, Round
from .console import Console
from .features import PROBE, PublicFeatures, extractor_of_round, starting_extractor
from .matrices import ask_matrices, question_of, rows_of_round
from .quality import UNKNOWN, Estimate, best_round, estimate_of
from .query_selection import choose_queries
from .run_folder import RunFolder
from .teachers import Answering


@dataclass(frozen=True)
class Experiment:
    """What the rounds of a run share."""

    settings: PublicSide
    folder: RunFolder
    task: Task
    public: PublicData
    first_extractor: ExtractorSpec  # of the first round, before whitening
    features: PublicFeatures
    teacher: Answering
    console: Console

    def estimates(self, rounds: int) -> list[Estimate | None]:
        """Those of the first ``rounds`` rounds, all of them finished."""
        return [estimate_of(self.folder.metrics(n) or {}) for n in range(1, rounds + 1)]


def asking_extractor(experiment: Experiment, number: int) -> ExtractorSpec:
    """The features of round ``number`` as its mechanism asks with them; stored where they follow
    from public rows, since their last digit may depend on the machine.
    """
    form, plain = experiment.settings.rounds[number - 1].form, experiment.features.plain
    if form.axes is None and not form.landmarks:
        return _extractor(experiment, number)

    def build() -> ExtractorSpec:
        return extractor_of_round(_extractor(experiment, number), form, plain)

    return experiment.folder.features(build, number)


def _extractor(experiment: Experiment, number: int) -> ExtractorSpec:
    """Those of the round before, unless labels became worse by its own features: then those that
    the best round asked with.
    """
    folder, first = experiment.folder, experiment.settings.first

    def start() -> ExtractorSpec:
        return starting_extractor(first, experiment.task, experiment.features.plain)

    if number == 1:
        return folder.features(start) if first.whiten else start()
    kept = best_round(experiment.estimates(number - 1))
    return _extractor(experiment, kept) if kept < number - 1 else folder.load_extractor(number - 1)


def ask(
    experiment: Experiment, asked: Round, extractor: ExtractorSpec
) -> tuple[Answers, np.ndarray, Estimate | None]:
    """Choose the round's queries, ask the teacher, and store the answers and the ledger's copy.

    Returns the answers, the rows of the public pool that were asked (int64 [n]), and an estimate of
    the labels where the release tells one.
    """
    public, teacher, estimate = experiment.public, experiment.teacher, None
    folder, say = experiment.folder, experiment.console.say
    name, count = f"round {asked.number}", asked.queries or len(public.inputs)
    rows = _choose(experiment, asked, extractor, count)
    if len(rows) < count:
        say(f"{name}: the public pool has only {len(rows)} rows left to ask")
    say(f"{name}: asking {len(rows)} queries with {extractor.backbone} features")
    teacher.use_extractor(extractor, probe=public.inputs[:PROBE])
    if asked.form.matrix is not None:
        features = experiment.features.quantised(extractor)[rows]
        classes, place = experiment.task.num_classes, folder.round(asked.number)
        question = question_of(asked, classes, extractor, features.shape[1], place)
        answers, estimate = ask_matrices(teacher, question, features)
        if estimate is not None and estimate.by == UNKNOWN:
            say(
                f"{name}: the released counts do not tell the records from none, so "
                "nothing is known of the labels. Are there private rows?"
            )
    else:
        answers = teacher.answer(Queries(public.inputs[rows], slot=asked.slot))
    folder.save_answers(asked.number, rows, answers.labels, answers.outcomes)
    teacher.export(folder.ledger)
    return answers, rows, estimate


def _choose(
    experiment: Experiment, asked: Round, extractor: ExtractorSpec, count: int
) -> np.ndarray:
    """Rows of the public pool to ask: int64 [n], in request order."""
    size, features = len(experiment.public.inputs), None
    if asked.once:
        return rows_of_round(experiment.settings.seed, asked.number, asked.queries, size)
    if experiment.settings.typical:
        features = experiment.features.quantised(extractor).astype(np.float32)
    status = np.zeros(size, dtype=np.uint8)
    for earlier in range(1, asked.number):
        rows, labels, _ = experiment.folder.load_answers(earlier)
        status[rows] = np.maximum(status[rows], np.where(has_label(labels), 2, 1))
    return choose_queries(experiment.settings.seed, asked.number, status, count, features)
