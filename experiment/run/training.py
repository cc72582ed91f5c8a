"""A round's student: what it is trained on, its training on all labels that were released, and its
scores.
"""

import time
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...student.config import StudentConfig
from ...student.data import Pool, has_soft
from ...student.held_out import drop_doubtful
from ...student.train import LINEAR, check, export, on_plain, outputs, statistics, train, with_head
from ...teacher.features.embedder import Embedder, integers
from ...wall.datasets.config import Task
from ...wall.errors import InvalidInput, LabelwallError
from ...wall.labels import has_label
from ...wall.messages import ABSTAINED, ExtractorSpec, Outcome
from ...wall.preprocessing import Preprocessing
from ..config.groups import Round
from ..linear.model import after_features, as_network, stored_probabilities, virtual_rows
from .asking import Asked, Experiment, asking_extractor
from .metrics import lost_line, round_metrics, student_metrics
from .quality import FOREIGN, by_agreement, worse_rounds
from .run_folder import CLASSIFIER, PROBABILITIES, RunFolder

# Students of fewer rows are behind the classifier: of docstrings' vectors by 4 points with 50, 0.9
# with 100, 0.7 with 400. So are linear ones of fewer rows than features: of 1,500 photographs by
# 0.8 and 2.6 at epsilon 1, by -0.4 and 1.0 at 0.25.
FEW_PUBLIC = 400
UNTAUGHT: dict[str, Any] = {"dropped": 0, "seconds": 0.0}
Taught = tuple[Pool, np.ndarray, np.ndarray | None]  # rows, labels, probabilities


class TrainingRows:
    """What a run's student sees of public and test rows: ``pool``, ``test_inputs``.

    A linear student learns from standardised features, of images those of a fixed network.
    """

    def __init__(self, experiment: Experiment) -> None:
        public, labels = experiment.public, experiment.task.labels
        plain, test = public.inputs, public.test_inputs
        self._backbone = experiment.settings.student.backbone
        self._network: ExtractorSpec | None = None
        if self._backbone == LINEAR and plain.ndim == 4:
            self._network, features = experiment.first_extractor, experiment.features.plain
            plain, test = (
                features(self._network, rows).astype(np.float32) for rows in ("public", "test")
            )
        scale = statistics(plain) if self._backbone == LINEAR else Preprocessing.of_public(plain)
        self.pool, self.test_inputs = Pool(plain, labels, scale.mean, scale.std), test

    def embed(self, extractor: ExtractorSpec, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``Embedder.embed`` of rows like the pool's, which are vectors."""
        if self._network is not None:
            return integers(extractor, rows)
        return Embedder(extractor).embed(rows)

    def outputs(self, weights: bytes) -> np.ndarray:
        """The trained student's outputs for the test rows: float32 [n, c]."""
        return outputs(self.pool.spec(self._backbone, weights), self.test_inputs)

    def export(self, weights: bytes) -> ExtractorSpec:
        """The trained student, on plain rows, as it goes back to the teacher."""
        if self._backbone != LINEAR:
            return export(self.pool, self._backbone, weights)
        layer = on_plain(weights, self.pool)
        if self._network is not None:
            return with_head(self._network, layer)
        return export(replace(self.pool, mean=(), std=()), LINEAR, layer)


def check_student(student: StudentConfig, features: ExtractorSpec, task: Task) -> None:
    """Raises InvalidInput where the student can not be trained on such inputs.

    ``features``: of the first round.
    """
    shape = task.input_shape
    if student.backbone == LINEAR and len(shape) == 3:
        if not features.weights:
            rule = "another one, or features: efficientnet_lite0_stages or timm/NAME, for images"
            raise InvalidInput("student.backbone", rule, LINEAR)
        shape = (1,)
    check(student, shape, task.labels)


def train_round(experiment: Experiment, current: Round, asked: Asked) -> dict:
    """Train on every label released so far; stores the student and returns the round's metrics.

    Raises LabelwallError where no row has a label.
    """
    started, number = time.perf_counter(), current.number
    folder, public, settings = experiment.folder, experiment.public, experiment.settings
    worse = worse_rounds([*experiment.estimates(current), asked.estimate])
    labels, soft = released(folder, number, len(public.inputs), worse)
    if not has_label(labels).any():
        cure = "Lower the threshold or ask more queries."
        if (asked.answers.outcomes == Outcome.CAP_REACHED).all():
            cure = "The budget of these records is spent; only what spent it is answered again."
            cure += f" ({lost})" if (lost := lost_line(folder.ledger_state())) else ""
        raise LabelwallError(f"no query was answered, so there is nothing to train on. {cure}")
    seen, progress, judges = TrainingRows(experiment), experiment.console.progress, settings.student
    sure = has_soft(soft if judges.soft else None, len(labels))
    if asked.estimate is not None and sure[has_label(labels)].all():
        judges = replace(judges, doubtful_folds=0)  # they would drop none, and tell nothing new
    cleaned = drop_doubtful(
        judges,
        seen.pool,
        labels,
        seed=current.seed,
        progress=partial(progress, "checking labels"),
        soft=soft,
        workers=settings.workers,
    )
    taught = seen.pool, cleaned.labels, soft
    pool, classes, chances = _taught(experiment, current, seen, taught, number not in worse)
    weights = train(
        settings.student,
        pool,
        classes,
        run_dir=folder.round(number),
        seed=current.seed,
        test_x=seen.test_inputs,
        test_y=public.test_labels,
        progress=partial(progress, "training the student"),
        soft=chances,
        loggers=experiment.loggers,
    )
    student = seen.export(weights)
    folder.save_student(number, student, cleaned.labels)
    asked = asked._replace(estimate=asked.estimate or by_agreement(cleaned))
    return round_metrics(experiment, asked, seen.outputs(weights)) | {
        "dropped": int((labels != cleaned.labels).sum()),
        "seconds": round(time.perf_counter() - started, 1),
    }


def untaught(experiment: Experiment, current: Round, asked: Asked) -> dict | None:
    """A round's metrics with its released classifier as the student, where public rows are foreign
    or few and the classifier of classes with its features is a network; None elsewhere.

    A student that is taught on such rows forgets what was released.
    """
    folder, public, number = experiment.folder, experiment.public, current.number
    estimates = *experiment.estimates(current), asked.estimate
    foreign = any(estimate is not None and estimate.why == FOREIGN for estimate in estimates)
    path = folder.round(number) / CLASSIFIER
    linear = experiment.settings.student.backbone == LINEAR
    few = len(public.inputs) < max(FEW_PUBLIC, linear * len(asked.extractor.center))
    if not (foreign or few) or not path.exists():
        return None
    network = as_network(path, asked.extractor) if experiment.task.labels.kind == "class" else None
    if network is None:
        return None
    experiment.console.say(f"round {number}: its released classifier is taken for the student")
    folder.save_student(number, network, released(folder, number, len(public.inputs))[0])
    if public.test_inputs.ndim == 4:  # whose features are known
        plain = experiment.features.plain(asked.extractor, "test").astype(np.float32)
        predicted = outputs(after_features(network), plain)
    else:
        predicted = outputs(network, public.test_inputs)
    return round_metrics(experiment, asked, predicted) | UNTAUGHT


def retold(experiment: Experiment, network: ExtractorSpec) -> dict:
    """Of a finished round's metrics those that change with its classifier as the student."""
    return student_metrics(experiment, outputs(network, experiment.public.test_inputs)) | UNTAUGHT


def released(
    folder: RunFolder, number: int, size: int, worse: Collection[int] = ()
) -> tuple[np.ndarray, np.ndarray | None]:
    """(labels, class probabilities) that rounds up to ``number`` released, for each public row.

    Labels: int64 [size], or [size, c] for attributes, -1 where there is none. Probabilities:
    float32 [size, c], of the round that the label is of, NaN without; None where no round released
    any. For a row that was asked again the later outcome counts, an abstention too: better features
    found the row doubtful. Of a round that is ``worse`` than an earlier one, labels count where
    there is no other. A query refused by a cap changes nothing.
    """
    labels = np.full((size, *folder.load_answers(number)[1].shape[1:]), ABSTAINED, dtype=np.int64)
    soft = None
    for earlier in range(1, number + 1):
        rows, answered, outcomes = folder.load_answers(earlier)
        path = folder.round(earlier) / PROBABILITIES
        chances = np.load(path, allow_pickle=False) if path.exists() else None
        counted = outcomes != Outcome.CAP_REACHED
        if earlier in worse:
            counted &= ~has_label(labels[rows])
        if soft is None and chances is not None:
            soft = np.full((size, chances.shape[1]), np.nan, dtype=np.float32)
        if soft is not None:
            soft[rows[counted]] = np.nan if chances is None else chances[counted]
        labels[rows[counted]] = answered[counted]
    return labels, soft


def _taught(
    experiment: Experiment, current: Round, seen: TrainingRows, taught: Taught, virtual: bool
) -> Taught:
    """What a round's student sees, with ``virtual`` rows and the labelled public rows after it.

    The labels of few rows do not tell a student all that their classifier knows; it says as much of
    any vector. No virtual rows are added where the student sees images or learns no probabilities,
    and where the round left no classifier of classes. A resumed run has the same rows. A released
    label of a labelled public row is less noisy than the true one, and says less of its row: both
    are learned.
    """
    path, pool, soft = experiment.folder.round(current.number) / CLASSIFIER, taught[0], taught[2]
    learned = soft is not None and experiment.settings.student.soft and pool.inputs.ndim == 2
    if virtual and learned and path.exists():
        rows = virtual_rows(pool.inputs, current.seed)
        features, finite = seen.embed(asking_extractor(experiment, current.number), rows)
        chances = stored_probabilities(path, features[finite])
        taught = _with_rows(taught, rows[finite], chances.argmax(axis=1), chances)
    if experiment.known is None:
        return taught
    rows = np.flatnonzero(experiment.known >= 0)
    return _with_rows(taught, pool.inputs[rows], experiment.known[rows])


def _with_rows(
    taught: Taught, inputs: np.ndarray, labels: np.ndarray, chances: np.ndarray | None = None
) -> Taught:
    pool, known, soft = taught
    if soft is not None:
        none = np.full((len(inputs), soft.shape[1]), np.nan, dtype=np.float32)
        soft = np.concatenate([soft, none if chances is None else chances])
    pool = replace(pool, inputs=np.concatenate([pool.inputs, inputs]))
    return pool, np.concatenate([known, labels]), soft
