"""A round's questions: with which features, about which public rows, and what comes back."""

from __future__ import annotations

import numpy as np

from ...teacher.features.embedder import unit_length
from ...wall.labels.base import has_label
from ...wall.messages import Answers, ExtractorSpec, Queries
from .experiment import Experiment
from .extractors import extractor_of_round, starting_extractor
from .matrices import MatrixRound, ask_matrices, rows_of_round
from .public_features import PROBE
from .quality import UNKNOWN, Estimate, best_round
from .query_selection import choose_queries


def asking_extractor(experiment: Experiment, number: int) -> ExtractorSpec:
    """``_extractor`` as the round's mechanism asks with it; stored, as ``_starting`` is."""
    asks = experiment.config.mechanism_of(number).query_form
    if asks.axes is None and not asks.landmarks:
        return _extractor(experiment, number)

    def build() -> ExtractorSpec:
        return extractor_of_round(_extractor(experiment, number), asks, experiment.features.plain)

    return experiment.folder.features(build, number)


def _extractor(experiment: Experiment, number: int) -> ExtractorSpec:
    """The features that round ``number`` asks with.

    Those of the round before, unless labels became worse by its own features: then those that the
    best round asked with.
    """
    if number == 1:
        return _starting(experiment)
    kept = best_round(experiment.estimates(number - 1))
    if kept < number - 1:
        return _extractor(experiment, kept)
    return experiment.folder.load_extractor(number - 1)


def _starting(experiment: Experiment) -> ExtractorSpec:
    """The first round's features.

    Whitened ones are stored, since their last digit may depend on the machine.
    """
    config = experiment.config

    def build() -> ExtractorSpec:
        return starting_extractor(config.first, experiment.task, experiment.features.plain)

    return experiment.folder.features(build) if config.whiten else build()


def ask(
    experiment: Experiment, number: int, extractor: ExtractorSpec
) -> tuple[Answers, np.ndarray, Estimate | None]:
    """Choose the round's queries, ask the teacher, and store the answers and the ledger's copy.

    Returns the answers, the rows of the public pool that were asked (int64 [n]), and an estimate of
    the labels where the release tells one.
    """
    config, public, estimate = experiment.config, experiment.public, None
    count = config.rounds[number - 1].queries or len(public.inputs)
    rows = _choose(experiment, number, extractor, count)
    if len(rows) < count:
        experiment.console.say(
            f"round {number}: the public pool has only {len(rows)} rows left to ask"
        )
    experiment.console.say(
        f"round {number}: asking {len(rows)} queries with {extractor.backbone} features"
    )
    experiment.teacher.use_extractor(extractor, probe=public.inputs[:PROBE])
    if config.mechanism_of(number).query_form.matrix is not None:
        features = experiment.features.quantised(extractor)[rows]
        asked = MatrixRound(
            config.asks_of(number),
            config.slots()[number - 1],
            config.round_seed(number),
            experiment.task.num_classes,
            unit_length(extractor, features.shape[1]),
            extractor.sha256(),
            experiment.folder.round(number),
        )
        answers, estimate = ask_matrices(experiment.teacher, asked, features)
        if estimate is not None and estimate.by == UNKNOWN:
            experiment.console.say(
                f"round {number}: the released counts do not tell the records from none, so "
                "nothing is known of the labels. Are there private rows?"
            )
    else:
        slot = config.slots()[number - 1]
        answers = experiment.teacher.answer(Queries(public.inputs[rows], slot=slot))
    experiment.folder.save_answers(number, rows, answers.labels, answers.outcomes)
    experiment.teacher.export(experiment.folder.ledger)
    return answers, rows, estimate


def _choose(
    experiment: Experiment, number: int, extractor: ExtractorSpec, count: int
) -> np.ndarray:
    """Rows of the public pool to ask in round ``number``: int64 [n], in request order."""
    config, inputs, features = experiment.config, experiment.public.inputs, None
    if config.mechanism_of(number).once_a_round:
        return rows_of_round(config.seed, number, config.rounds[number - 1].queries, len(inputs))
    if config.choice == "typical":
        features = experiment.features.quantised(extractor).astype(np.float32)
    return choose_queries(config.seed, number, _status(experiment, number), count, features)


def _status(experiment: Experiment, number: int) -> np.ndarray:
    """The ``status`` of ``choose_queries`` before round ``number``: uint8 [n_public]."""
    status = np.zeros(len(experiment.public.inputs), dtype=np.uint8)
    for earlier in range(1, number):
        rows, labels, _ = experiment.folder.load_answers(earlier)
        status[rows] = np.maximum(status[rows], np.where(has_label(labels), 2, 1))
    return status
