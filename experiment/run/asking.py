"""A round's questions: with which features, about which public rows, and what comes back."""

from dataclasses import dataclass, replace

import numpy as np

from ...teacher.features.embedder import unit_length
from ...wall.datasets.config import PublicData, Task
from ...wall.labels import has_label
from ...wall.messages import Answers, ExtractorSpec, Queries
from ..config.groups import PublicSide, Round
from ..linear.labelled import labelled
from ..linear.measure import with_bias
from .console import Console
from .features import PROBE, PublicFeatures, extractor_of_round, starting_extractor
from .matrices import ask_matrices, axes_by_count, known_rows, one_step_fewer, question_of
from .quality import FOREIGN, UNKNOWN, Estimate, best_round, estimate_of
from .query_selection import choose_queries
from .run_folder import COUNTED, FEATURES, RunFolder
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
    known: np.ndarray | None = None  # labels of public rows to learn, int64 [n], -1 elsewhere

    def estimates(self, rounds: int) -> list[Estimate | None]:
        """Those of the first ``rounds`` rounds, all of them finished."""
        return [estimate_of(self.folder.metrics(n) or {}) for n in range(1, rounds + 1)]


def asking_extractor(experiment: Experiment, number: int) -> ExtractorSpec:
    """The features of round ``number`` as its mechanism asks with them; stored where they follow
    from public rows, since their last digit may depend on the machine.
    """
    form = experiment.settings.rounds[number - 1].form
    if form.axes is None and not form.landmarks:
        return _extractor(experiment, number)
    counted = experiment.folder.round(number) / COUNTED
    return _on_axes(experiment, number, form.axes, COUNTED if counted.exists() else FEATURES)


def public_alone(experiment: Experiment) -> str | None:
    """What the public labels that are learned give without private rows, in a line."""
    extractor = asking_extractor(experiment, 1)
    rows = known_rows(experiment.known, experiment.features.quantised(extractor))
    if rows is None:
        return None
    inputs = with_bias(rows[0], unit_length(extractor, rows[0].shape[1]))
    inputs /= np.linalg.norm(inputs, axis=1).mean()
    if (known := labelled(inputs, rows[1], experiment.task.num_classes)) is None:
        return None
    return (
        f"public labels alone: {100 * known.right:.1f}% right by logistic regression on "
        f"{len(known.labels)} rows, cross-validated. They are learned beside the released ones "
        "(--public_labels metrics: they serve metrics alone)"
    )


def _on_axes(experiment: Experiment, number: int, axes: int | None, file: str) -> ExtractorSpec:
    form = replace(experiment.settings.rounds[number - 1].form, axes=axes)
    plain = experiment.features.plain
    return experiment.folder.features(
        lambda: extractor_of_round(_extractor(experiment, number), form, plain), number, file
    )


def _by_count(
    experiment: Experiment, asked: Round, extractor: ExtractorSpec
) -> tuple[Round, ExtractorSpec]:
    """The round and its features, after its first sum has counted the records."""
    folder, number, size = experiment.folder, asked.number, len(experiment.public.inputs)
    if not (folder.round(number) / COUNTED).exists():
        classes, place = experiment.task.num_classes, folder.round(number)
        kept = experiment.features.quantised(extractor).shape[1]
        question = question_of(asked, classes, extractor, kept, place)
        guess, plain = experiment.settings.records or size, experiment.features.plain(extractor)
        axes = axes_by_count(experiment.teacher, question, kept, guess, plain)
        if axes is None:
            return asked, extractor
        experiment.console.say(
            f"round {number}: there are not about {guess} records (expected_records), so "
            f"{axes} axes are asked about instead of {kept}"
        )
        extractor = _on_axes(experiment, number, axes, COUNTED)
        experiment.teacher.use_extractor(extractor, probe=experiment.public.inputs[:PROBE])
    return one_step_fewer(asked), extractor


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
        asked, extractor = _by_count(experiment, asked, extractor)
        features = experiment.features.quantised(extractor)
        classes, place = experiment.task.num_classes, folder.round(asked.number)
        question = question_of(asked, classes, extractor, features.shape[1], place)
        question = replace(question, known=known_rows(experiment.known, features))
        answers, estimate = ask_matrices(teacher, question, features[rows])
        if estimate is not None and estimate.by == UNKNOWN:
            say(
                f"{name}: the released counts do not tell the records from none, so "
                "nothing is known of the labels. Are there private rows?"
            )
        if estimate is not None and estimate.why == FOREIGN:
            say(f"{name}: private rows differ from the public ones: {FOREIGN}")
        if estimate is not None and estimate.few:
            names = experiment.task.labels.names
            few = ", ".join(f"{names[int(k)]} (about {n})" for k, n in estimate.few.items())
            say(
                f"{name}: classes with too few records for this epsilon: {few}. Their labels are "
                "hardly known: merge them with others, or raise epsilon"
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
    status, features = np.zeros(len(experiment.public.inputs), dtype=np.uint8), None
    if experiment.settings.typical and not asked.once:
        features = experiment.features.quantised(extractor).astype(np.float32)
    for earlier in range(1, 1 if asked.once else asked.number):  # which may ask all rows again
        rows, labels, _ = experiment.folder.load_answers(earlier)
        status[rows] = np.maximum(status[rows], np.where(has_label(labels), 2, 1))
    return choose_queries(experiment.settings.seed, asked.number, status, count, features)
