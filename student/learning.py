"""A round's student: what it is trained on, its training on all labels that were released, and its
scores.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..wall.console import Console
from ..wall.datasets.data_config import Task
from ..wall.errors import InvalidInput, LabelwallError
from ..wall.features.embedder import Embedder, quantised
from ..wall.files import reading
from ..wall.labels import has_label
from ..wall.messages import ABSTAINED, BESIDE, ExtractorSpec, Outcome
from ..wall.progress import TaskProgress
from .asking.ask import Asked
from .asking.asking_features import AskingRound
from .asking.estimates import FOREIGN, by_agreement
from .asking.features import stepped
from .asking.public_rows import PublicRows
from .batches import Lesson, Pool, has_soft
from .fine_tuning import Layer, beside, divide, keep_views, start
from .held_out import drop_doubtful
from .linear.stored import after_features, as_network
from .linear.tuning import VIRTUAL_ROWS
from .results import Estimate, StudentScore, estimates, worse_rounds
from .round_files import PROBABILITIES, RoundFiles
from .scores import student_score
from .student_config import PRETRAINED, StudentConfig
from .student_model import outputs, penultimate_features
from .train import LINEAR, check, export, on_plain, standardising, train, with_head
from .tuning import FEW_PUBLIC, MOST_LOST

MAX_ENTRIES = 10_000_000  # of the virtual rows: float32
VIEWS = "views.npy"  # of a round's folder, while a pretrained student is trained


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a round's student is, beside its file, as ``RoundResult`` records it."""

    score: StudentScore
    estimate: Estimate | None  # of the labels
    taught: bool
    dropped: int = 0
    seconds: float = 0.0
    worse: bool = False  # than the labels that it was taught, by far


class TrainingRows:
    """What a run's student sees of public and test rows: ``pool``, ``test_inputs``.

    A linear student learns from standardised features, of images those of a fixed network.
    """

    def __init__(self, rows: PublicRows) -> None:
        public, labels = rows.data, rows.task.labels
        plain, test = public.inputs, public.test_inputs
        self._backbone = fixed_or_small(rows.settings.student)
        self._network: ExtractorSpec | None = None
        if self._backbone == LINEAR and plain.ndim == 4:
            self._network, features = rows.first, rows.features.plain
            plain = features(self._network, "public").astype(np.float32)
            if rows.settings.student.backbone == LINEAR:
                test = features(self._network, "test").astype(np.float32)
        scale = standardising(self._backbone, plain, rows.settings.data.source == "table")
        self.pool, self.test_inputs = Pool(plain, labels, scale.mean, scale.std), test

    def embed(self, extractor: ExtractorSpec, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``Embedder.embed`` of rows like the pool's, which are vectors."""
        if self._network is not None:
            return quantised(extractor, rows)
        return Embedder(extractor).embed(rows)

    def outputs(self, weights: bytes) -> np.ndarray:
        """The trained student's outputs for the test rows: float32 [n, c]."""
        return outputs(self.pool.spec(self._backbone, weights), self.test_inputs)

    def export(self, weights: bytes) -> ExtractorSpec:
        """The trained student, on plain rows, as it goes back to the teacher."""
        if self._backbone != LINEAR:
            spec = self.pool.spec(self._backbone, weights)
            return export(spec, penultimate_features(spec, self.pool.inputs))
        layer = on_plain(weights, self.pool)
        if self._network is not None:
            return with_head(self._network, layer)
        plain = replace(self.pool, mean=(), std=())
        return export(plain.spec(LINEAR, layer), plain.inputs)  # which are the features


def fixed_or_small(student: StudentConfig) -> str:
    """The backbone of a training in memory; doubtful labels of a pretrained one are judged by its
    features as they are.
    """
    return LINEAR if student.backbone == PRETRAINED else student.backbone


def check_student(student: StudentConfig, features: ExtractorSpec, task: Task) -> None:
    """Raises InvalidInput where the student can not be trained on such inputs.

    ``features``: of the first round.
    """
    shape = task.input_shape
    if student.backbone == PRETRAINED:
        start(features, student, task.labels)
    student = replace(student, backbone=fixed_or_small(student))
    if student.backbone == LINEAR and len(shape) == 3:
        if not features.weights:
            rule = "another one, or features: efficientnet_lite2_stages or timm/NAME, for images"
            raise InvalidInput("student.backbone", rule, LINEAR)
        shape = (1,)
    check(student, shape, task.labels)


def learn(public: PublicRows, current: AskingRound, asked: Asked, console: Console) -> Learned:
    """Train a round's student on all labels released so far, and store it.

    The round's released classifier is the student, if it is a network with its features, where
    public rows are drawn, foreign or few: a student that is taught on such rows forgets what was
    released; and where the round asked with the features of a pretrained student, with bins or with
    trees, whose steps another network smooths. Raises LabelwallError where no row has a label.
    """
    number = current.planned.number
    period = current.planned.period
    estimated = [*estimates(current.results, period), asked.estimate]
    of = asked.features.of
    refined = bool(of) and current.results[of - 1].period == period
    network = _released_network(public, asked, refined)
    tuned = asked.features.spec.backbone.startswith(BESIDE)
    smoothed = tuned or stepped(asked.features.spec.backbone)
    linear, shape = public.settings.student.backbone == LINEAR, public.task.input_shape
    columns = len(asked.features.spec.center) if linear else shape[0] if len(shape) == 1 else 0
    fewest = max(FEW_PUBLIC, columns)
    # Virtual rows teach a value's student enough
    few = len(public.data.inputs) < fewest and public.task.labels.kind == "class"
    foreign = public.settings.data.draws or any(e and e.why == FOREIGN for e in estimated)
    if network is None or not (smoothed or few or foreign):
        learned = _train(public, current, asked, estimated, console)
        if network is None or not learned.worse:
            return learned
    why = f", as fewer than {fewest:,} public rows teach less than it knows" if few else ""
    if foreign and not tuned and public.settings.student.backbone == PRETRAINED:
        why = ", as public rows are unlike the private ones: the network was not trained on them"
    console.say(f"round {number}: its released classifier is taken for the student{why}")
    labels, _ = released(current.folder, number, len(public.data.inputs))
    current.folder.save_student(number, network, labels)
    if public.data.test_inputs.ndim == 4 and not tuned:  # whose features are known
        plain = public.features.plain(asked.features.spec, "test").astype(np.float32)
        predicted = outputs(after_features(network), plain)
    else:
        predicted = outputs(network, public.data.test_inputs)
    score = student_score(public, predicted)
    return Learned(score=score, estimate=asked.estimate, taught=False)


def _released_network(public: PublicRows, asked: Asked, refined: bool) -> ExtractorSpec | None:
    """A round's released classifier with the network of its features, where it has one.

    ``refined``: whether a student of the same records made these features. Then logits are the mean
    of the classifier's and of this student's: each has noise of its own.
    """
    features = asked.features.spec
    if asked.classifier is None:
        return None
    if features.backbone.startswith(BESIDE):
        layer = Layer.released(asked.classifier, features, public.features.plain(features))
        student = (layer.mean(Layer.of(features)) if refined else layer).on(features)
        return student.with_mirror() if public.settings.student.mirrors else student
    if public.task.labels.kind == "attributes":
        return None
    return as_network(asked.classifier, features)


def _train(
    public: PublicRows,
    current: AskingRound,
    asked: Asked,
    estimated: Sequence[Estimate | None],
    console: Console,
) -> Learned:
    """``learn`` by training. ``estimated``: the estimates of all rounds up to this one."""
    started = time.perf_counter()
    settings, student = public.settings, public.settings.student
    number = current.planned.number
    behind = worse_rounds(estimated)
    labels, soft = released(current.folder, number, len(public.data.inputs), behind)
    if not has_label(labels).any():
        cure = "Lower the threshold or ask more queries."
        if (asked.answers.outcomes == Outcome.CAP_REACHED).all():
            cure = "These records have no budget left. Only questions asked before are answered."
        raise LabelwallError(f"no query was answered, so there is nothing to train on. {cure}")
    seen = TrainingRows(public)
    judges = replace(student, backbone=fixed_or_small(student))
    sure = has_soft(soft if judges.soft else None, len(labels))
    if asked.estimate is not None and sure[has_label(labels)].all():
        judges = replace(judges, doubtful_folds=0)  # they would drop none, and tell nothing new
    lesson = Lesson(pool=seen.pool, labels=labels, chances=soft)
    cleaned = drop_doubtful(
        judges,
        lesson,
        seed=current.planned.seed,
        progress=partial(console.progress, "checking labels"),
        workers=settings.workers,
    )
    lesson = replace(lesson, labels=cleaned.labels)
    if student.backbone == PRETRAINED:
        spec = _fine_tuned(lesson, public, current, asked, console)
        scoring = partial(console.progress, "scoring")
        worse = _worse_than_labels(spec, public, soft, scoring)
        spec = spec.with_mirror() if student.mirrors else spec
        predicted = outputs(spec, public.data.test_inputs, scoring)
    else:
        worse, plain = False, lesson
        if number not in behind:
            lesson = _with_virtual_rows(lesson, public, current.planned.seed, asked, seen)
        if lesson is plain and public.learned is not None:
            # A released label of a labelled public row is less noisy than the true one, and says
            # less of its row: both are learned. The classifier that labels virtual rows knows both.
            rows = np.flatnonzero(public.learned >= 0)
            lesson = lesson.with_rows(seen.pool.inputs[rows], public.learned[rows])
        weights = train(
            student,
            lesson,
            run_dir=current.path,
            seed=current.planned.seed,
            test=(seen.test_inputs, public.data.test_labels),
            progress=partial(console.progress, "training the student"),
            loggers=console.loggers,
            say=console.say,
        )
        spec, predicted = seen.export(weights), seen.outputs(weights)
    current.folder.save_student(number, spec, cleaned.labels)
    return Learned(
        score=student_score(public, predicted),
        estimate=asked.estimate or by_agreement(cleaned),
        taught=True,
        dropped=int((labels != cleaned.labels).sum()),
        seconds=round(time.perf_counter() - started, 1),
        worse=worse,
    )


def _fine_tuned(
    lesson: Lesson, public: PublicRows, current: AskingRound, asked: Asked, console: Console
) -> ExtractorSpec:
    """A pretrained student: the network that the round asked with, trained from there on."""
    student = public.settings.student
    plain = public.features.plain
    network = divide(start(public.first, student, public.task.labels), student.trained_blocks)
    classifier = None
    if asked.classifier is not None and not asked.features.of:
        features = asked.features.spec
        classifier = Layer.released(asked.classifier, features, plain(features))
        classifier.begin(network.rest.head)
    kept = current.path / VIEWS
    views = keep_views(
        kept,
        network.front,
        public.data.inputs,
        student,
        current.planned.seed,
        partial(console.progress, "views of public images"),
        public.settings.workers,
    )
    lesson = _with_public_labels(lesson, public.learned)
    weights = train(
        student,
        replace(lesson, pool=Pool(views, public.task.labels)),
        run_dir=current.path,
        seed=current.planned.seed,
        progress=partial(console.progress, "training the student"),
        loggers=console.loggers,
        say=console.say,
        begin=(network.rest, network.depths),
    )
    kept.unlink()
    tuned = beside(public.first, network.trained(weights), classifier, plain)
    return export(tuned, plain(tuned))


def _with_public_labels(lesson: Lesson, learned: np.ndarray | None) -> Lesson:
    """With public labels that are learned, int64 [n], -1 elsewhere: a row's probabilities are then
    the mean of the released ones and its label's.
    """
    if learned is None:
        return lesson
    rows, soft = learned >= 0, lesson.chances
    labels = np.where(rows, learned, lesson.labels)
    if soft is not None:
        soft, own = soft.copy(), np.eye(soft.shape[1], dtype=np.float32)
        soft[rows] = (soft[rows] + own[learned[rows]]) / 2  # NaN stays where none was released
    return replace(lesson, labels=labels, chances=soft)


def _worse_than_labels(
    spec: ExtractorSpec, public: PublicRows, soft: np.ndarray | None, progress: TaskProgress
) -> bool:
    """Whether a student of classes gives public rows labels that released probabilities, float32
    [n, c], hold for much less likely than their own.
    """
    if soft is None or public.task.labels.kind != "class":
        return False
    rows = has_soft(soft, len(soft))
    said = outputs(spec, public.data.inputs[rows], progress).argmax(axis=1)
    likely = soft[rows]
    given = float(likely[np.arange(len(said)), said].mean())
    return given < float(likely.max(axis=1).mean()) - MOST_LOST


def _with_virtual_rows(
    lesson: Lesson, public: PublicRows, seed: int, asked: Asked, seen: TrainingRows
) -> Lesson:
    """With what the round's classifier or regression says of virtual rows.

    The labels of few rows do not tell a student all that their classifier knows; it says as much of
    any vector. No virtual rows are added where the student sees images or learns no probabilities
    of classes, and where the round left no classifier. A resumed run has the same rows.
    """
    classifier = asked.classifier
    learns = lesson.chances is not None and public.settings.student.soft
    values = public.task.labels.kind == "value"
    if not (learns or values) or seen.pool.inputs.ndim != 2 or classifier is None:
        return lesson
    rows = virtual_rows(seen.pool.inputs, seed)
    features, finite = seen.embed(asked.features.spec, rows)
    if values:
        return lesson.with_rows(rows[finite], classifier.steps(features[finite]))
    chances = classifier.probabilities(features[finite])
    return lesson.with_rows(rows[finite], chances.argmax(axis=1), chances)


def virtual_rows(rows: np.ndarray, seed: int) -> np.ndarray:
    """PUBLIC rows, float32 [n, d], each moved by a random part of the difference of two others."""
    count = min(VIRTUAL_ROWS, MAX_ENTRIES // rows.shape[1])
    random = np.random.default_rng(seed)
    at, to, by = random.integers(0, len(rows), (3, count))
    share = random.random((count, 1), dtype=np.float32)
    return np.asarray((rows[at] + share * (rows[to] - rows[by])).astype(np.float32))


def released(
    folder: RoundFiles, number: int, size: int, worse: Collection[int] = ()
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
        with reading(path):
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
