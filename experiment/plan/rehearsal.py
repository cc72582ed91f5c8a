"""Rehearsals: a round of a run with public rows alone, before anything private is read.

A part of the labelled public rows stands for the records (stand_ins.py), the others tell how many
labels are right. The mechanism's own code counts and draws, the run's own code fits and labels.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from ...student.asking.ask_cells import cluster
from ...student.asking.ask_matrices import ask_matrices
from ...student.asking.features import (
    BINS,
    MAX_ROWS,
    axes_a_row,
    extractor_of_round,
    first_extractor,
    plain_features,
    principal_axes,
    whitened,
)
from ...student.asking.matrix_round import MatrixRound
from ...student.linear.labelled import Labelled as LabelledRows
from ...student.linear.labelled import labelled
from ...student.linear.shift_of_counts import compared
from ...student.settings import FirstFeatures, PublicSide
from ...teacher.mechanisms.base import Mechanism
from ...teacher.mechanisms.ind_knn import IndKnn
from ...teacher.search.cpu import ExactIndex
from ...wall.datasets.config import PublicData, Task
from ...wall.features.embedder import Embedder, unit_length
from ...wall.labels import has_truth
from ...wall.matrices import nearest_cells
from ...wall.messages import ABSTAINED, ExtractorSpec
from ...wall.progress import Progress
from ...wall.questions import CellsForm, QueryForm, Round, RowForm
from .planner import Goal, Score, View
from .stand_ins import RehearsingTeacher, ScaledVoters, StandInNoise, conversations

MAX_PUBLIC = 2_000  # public rows that a rehearsed round asks about
MAX_LABELLED = 4_000
MAX_NEIGHBOURS = 1_000  # labelled rows that are queries and neighbours of all others
MAX_NETWORK = 1_500  # rows of each kind, where a network computes features
FOLDS = 4  # a quarter of the labelled rows is asked about
MOST_AXES = 256  # principal axes that rehearsals look at
WHITENED = (16, 64, 128)
CELLS_A_CLASS, ROWS_A_CELL = 4, 10  # that tell whether public rows are like those of the test split


@dataclass(frozen=True, eq=False)
class Labelled:
    """Public rows with labels, as ``PublicData`` has them. ``source``: for a reader."""

    inputs: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    source: str
    public: bool = False  # whether a run can learn them


def on_plain(task: Task, plain: np.ndarray, box: list[list[float]], whiten: int) -> ExtractorSpec:
    """What makes the first round's features of ``plain`` ones of PUBLIC rows, float32 [n, d]."""
    first = FirstFeatures(features="box" if box else "raw", box=box, whiten=whiten)
    spec = first_extractor(first, replace(task, input_shape=(plain.shape[1],)))
    return whitened(spec, whiten, lambda _: plain)


class Rehearsal:
    """Rehearses rounds on public rows, for as many records as the goal expects.

    ``settings``: with one name of features, which are computed once.
    """

    def __init__(
        self,
        settings: PublicSide,
        task: Task,
        public: np.ndarray,
        labelled: Labelled,
        goal: Goal,
        progress: Progress,
        scratch: Path,
    ) -> None:
        self.settings, self._task, self._progress = settings, task, progress
        self._inputs = public, labelled.inputs
        self.labelled, self._records, self._scratch = labelled, goal.expected_records, scratch
        self._unit, self._custodians = goal.unit, goal.custodians
        self._known: dict[object, tuple[ExtractorSpec, np.ndarray, np.ndarray]] = {}
        self._voting: dict[object, ScaledVoters] = {}
        self._alone: dict[object, LabelledRows | None] = {}
        self._scores: dict[object, tuple[float, float]] = {}
        self._box = settings.box if settings.features == "box" else []
        order = np.random.default_rng(settings.seed).permutation(len(labelled.labels))
        self._folds, self._few = order % FOLDS, order < MAX_NEIGHBOURS

    @cached_property
    def computed(self) -> tuple[np.ndarray, np.ndarray]:
        """Features of the public and of the labelled rows, float32 [n, d], as they are."""
        settings, (public, labelled) = self.settings, self._inputs
        if settings.features == "box":
            return self._inputs
        spec, report = first_extractor(settings, self._task, public), self._progress
        first, second = (
            plain_features(settings, spec, rows, partial(report, f"features of {name} rows"))
            for rows, name in ((public, "public"), (labelled, "labelled"))
        )
        return first.astype(np.float32, copy=False), second.astype(np.float32, copy=False)

    @cached_property
    def plain(self) -> tuple[np.ndarray, np.ndarray]:
        """The same on their principal axes where these are many, which no view tells apart."""
        public, labelled = self.computed
        if self.settings.features == "box" or public.shape[1] <= MOST_AXES:
            return public, labelled
        mean, axes = principal_axes(public, MOST_AXES, 0.0)
        on_axes = [(x - mean) @ axes.astype(np.float64) for x in (public, labelled)]
        return on_axes[0].astype(np.float32), on_axes[1].astype(np.float32)

    @cached_property
    def views(self) -> tuple[View, ...]:
        """Those that fit the rows and the configuration."""
        settings, public = self.settings, self.plain[0]
        name, whiten, classes = settings.features, settings.whiten, self._task.num_classes
        dimensions, rows, box = self.computed[0].shape[1], len(public), self._box
        if box:
            sides = tuple((low, high) for low, high in box)
            return (View(name, 0, dimensions, 0, rows, classes, self._records, sides),)
        # Columns may be constant, or sums of others
        spread_in = principal_axes(public[:MAX_ROWS], public.shape[1])[1].shape[1]
        axes = max(1, min(spread_in, int(rows * axes_a_row(name))))
        counts = sorted({min(count, axes) for count in WHITENED})
        return tuple(
            View(name, count, dimensions, axes, rows, classes, self._records)
            for count in ([whiten] if whiten or name == BINS else [0, *counts])
        )

    @cached_property
    def labels(self) -> np.ndarray:
        """Of the labelled rows, int64 [n]."""
        return self._task.labels.encode("labels", self.labelled.labels)

    def score(self, view: View, mechanism: Mechanism, draws: range, asked: int) -> Score:
        """See ``PublicRows.rehearse``. Deterministic, so that no draw is repeated."""
        folds = [self._fold(view, mechanism, number, asked) for number in draws]
        answered, scores = np.array(folds).T
        spread = float(scores.std(ddof=1)) if len(draws) > 1 else 0.0
        accuracy = float((answered * scores).sum() / max(answered.sum(), 1e-9))
        return Score(float(answered.mean()), accuracy, spread)

    def foreign(self, view: View) -> bool:
        """Whether no shares of the classes explain how PUBLIC rows lie among the test split's;
        False where that is unknown.
        """
        classes = self._task.num_classes
        _, public, rows = self._seen(view.whiten, RowForm())
        cells = min(CELLS_A_CLASS * classes, len(public) // ROWS_A_CELL)
        if self._task.labels.kind != "class" or self.labelled.public or cells <= classes:
            return False
        centers = cluster(public, cells, self.settings.seed)
        cast = np.bincount(nearest_cells(public, centers, 1)[:, 0], minlength=cells)
        votes = np.zeros((cells, classes))
        np.add.at(votes, (nearest_cells(rows, centers, 1)[:, 0], self.labels), 1)
        return compared(votes, 0.0, cast)[1].foreign

    def _fold(
        self, view: View, mechanism: Mechanism, number: int, queries: int
    ) -> tuple[float, float]:
        """(share of rows with a label, how good these are) of one rehearsal."""
        if (key := (view, mechanism, number, queries)) in self._scores:
            return self._scores[key]
        mechanism = mechanism.for_unit(self._unit)
        mechanism = mechanism.noisier(math.sqrt(self._custodians))  # each adds all of it
        rng = np.random.default_rng([self.settings.seed, number])
        if mechanism.query_form.matrix is None:
            asked, labels = self._by_queries(view, mechanism, number % FOLDS, rng, queries)
        else:
            asked, labels = self._by_matrices(view, mechanism, number % FOLDS, rng)
        space, has = self._task.labels, labels != ABSTAINED
        score = space.score(space.decode(labels), self.labelled.labels[asked], has)
        errors = score.get("errors")  # of values
        good = float(errors["r2"] if errors else score["accuracy"] or 0.0)
        self._scores[key] = float(has.mean()), good
        return self._scores[key]

    def _by_matrices(
        self, view: View, mechanism: Mechanism, fold: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """(places of the rows asked about, their labels)."""
        form, asked = mechanism.query_form, self._folds == fold
        spec, public, rows = self._seen(view.whiten, form)
        classes, length = self._task.num_classes, unit_length(spec, rows.shape[1])
        records, labels = rows[~asked], self.labels[~asked]
        teacher = RehearsingTeacher(mechanism, records, labels, classes, length, self._records, rng)
        form, seed = mechanism.query_form, self.settings.seed * 1000 + 1
        current = Round(number=1, slot=0, queries=None, once=True, form=form, seed=seed)
        # What these rows tell is told without records, too.
        known = self._taught(view, form, fold) if self.settings.taught else None
        answers, _ = ask_matrices(
            MatrixRound(
                count=teacher.count,
                planned=current,
                extractor=spec,
                features=public,
                rows=rows[asked],
                known=known,
                folder=self._folder(view, form),
            )
        )
        return np.flatnonzero(asked), answers.labels

    def _taught(self, view: View, form: QueryForm, fold: int) -> LabelledRows | None:
        """What the public labels of the other folds give alone."""
        key = view.whiten, form.basis, fold
        if key not in self._alone and self.labelled.public:
            spec, _, rows = self._seen(view.whiten, form)
            length, others = unit_length(spec, rows.shape[1]), self._folds != fold
            known = rows[others], self.labels[others], length, self._task.num_classes
            self._alone[key] = labelled(*known)
        return self._alone.get(key)

    def _by_queries(
        self,
        view: View,
        mechanism: Mechanism,
        fold: int,
        rng: np.random.Generator,
        queries: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same where every row is a query of its own."""
        asked = np.flatnonzero(self._few & (self._folds == fold))
        voters = self._voters(view.whiten, mechanism.query_form, fold)
        keys, noise = [""] * len(asked), StandInNoise(rng)
        if isinstance(mechanism, IndKnn):
            return asked, conversations(mechanism, voters, queries, noise)
        *screens, answers = (mechanism.draw(s, voters, keys, noise) for s in mechanism.stages)
        labels = np.array([mechanism.label(value) for value in answers.tolist()], dtype=np.int64)
        for bits in screens:
            labels[bits != 1] = ABSTAINED
        return asked, labels

    def _voters(self, whiten: int, form: QueryForm, fold: int) -> ScaledVoters:
        """The rows of the other folds before those of one."""
        key = whiten, form.basis, fold
        if key not in self._voting:
            spec, _, rows = self._seen(whiten, form)
            asked, others = (
                self._few & (side) for side in (self._folds == fold, self._folds != fold)
            )
            index = ExactIndex(rows[others], np.arange(others.sum()), threads=1)
            self._voting[key] = ScaledVoters(
                index,
                self.labels[others],
                self._task.num_classes,
                rows[asked],
                unit_length(spec, rows.shape[1]),
                landmarks=spec.landmarks,
                records=self._records,
            )
        return self._voting[key]

    def _seen(self, whiten: int, form: QueryForm) -> tuple[ExtractorSpec, np.ndarray, np.ndarray]:
        """What a round asks with, and its features of public and labelled rows, int8 [n, d]."""
        key = whiten, form.basis
        if key not in self._known:
            plain = self.plain
            start = on_plain(self._task, plain[0], self._box, whiten)
            spec = extractor_of_round(start, form, lambda _: plain[0])
            embedder = Embedder(spec)
            public, rows = (embedder.embed(x)[0] for x in plain)
            self._known[key] = spec, public, rows
        return self._known[key]

    def _folder(self, view: View, form: QueryForm) -> Path | None:
        """Where a round keeps its cells, which do not depend on the noise; sums are not kept."""
        if not isinstance(form, CellsForm):
            return None
        name = f"{view.features}-{view.whiten}-{form.centroids}"
        folder = self._scratch / name.replace("/", "_")
        folder.mkdir(exist_ok=True)
        return folder


def labelled_rows(public: PublicData, least: int, most: int, seed: int) -> Labelled | None:
    """Labelled public rows, at most ``most``; those of the test split where they are too few.

    None where both have fewer than ``least``.
    """
    test = (
        "rows of the test split, whose labels chose the method: accuracy on this split is slightly "
        "optimistic"
    )
    for inputs, labels, text in (
        (public.inputs, public.labels, "labelled public rows"),
        (public.test_inputs, public.test_labels, test),
    ):
        if labels is not None:
            rows = np.flatnonzero(has_truth(labels))
            if len(rows) >= least:
                rows = np.sort(np.random.default_rng(seed).permutation(rows)[:most])
                own = inputs is public.inputs
                return Labelled(inputs[rows], labels[rows], f"{len(rows)} {text}", own)
    return None


def public_box(inputs: np.ndarray) -> list[list[float]]:
    """The range of PUBLIC vectors (float32 [n, d]) on each side, a little wider: [low, high]."""
    low, high = (inputs.min(axis=0).astype(np.float64), inputs.max(axis=0).astype(np.float64))
    room = np.maximum(0.01 * (high - low), 1e-6)
    sides = np.stack([low - room, high + room], axis=1)
    return [[float(f"{a:.6g}"), float(f"{b:.6g}")] for a, b in sides]
