"""Rehearsals: a round of a run with public rows alone, before anything private is read.

A part of the labelled public rows stands for the records (stand_ins.py), and the others tell how
many labels are right. The mechanism's own code counts and draws, the run's own fits and labels.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import cast

import numpy as np

from ...student.asking.boosted import TREES, Boosted
from ...student.asking.features import (
    MAX_ROWS,
    axes_a_row,
    extractor_of_round,
    first_extractor,
    plain_features,
    principal_axes,
    stepped,
    whitened,
)
from ...student.asking.matrix_round import MatrixRound, ask_matrices, cluster
from ...student.asking.public_rows import labels_alone
from ...student.linear.labelled import PublicLabels, labelled
from ...student.linear.shift_of_counts import compared
from ...student.public_settings import FirstFeatures, PublicSide
from ...teacher.mechanisms.base import Charging, Mechanism
from ...teacher.mechanisms.ind_knn import IndKnn
from ...teacher.search.cpu import ExactIndex
from ...wall.datasets.data_config import PublicData, Task
from ...wall.features.embedder import Embedder, unit_length
from ...wall.labels import has_truth
from ...wall.matrices import MAX_DIMENSIONS, nearest_cells
from ...wall.messages import ABSTAINED, ExtractorSpec
from ...wall.progress import Progress
from ...wall.questions import CellsForm, QueryForm, Round, RowForm
from ..config.tuning import MIN_ROWS
from . import tuning
from .planner import Forecast, Goal, View
from .stand_ins import RehearsingTeacher, ScaledVoters, StandInNoise, conversations


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Public rows with labels, as ``PublicData`` has them. ``source``: for a reader;
    ``frequent``: share of the most frequent class, 0 for no classes.
    """

    inputs: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    source: str
    frequent: float = 0.0
    public: bool = False  # whether a run can learn them


@dataclass(frozen=True, eq=False)
class Seen:
    """What a round asks with, and its features of public and of labelled rows: int8 [n, d]."""

    spec: ExtractorSpec
    public: np.ndarray
    labelled: np.ndarray

    @property
    def length(self) -> float:
        """The length of a unit vector."""
        return unit_length(self.spec, self.labelled.shape[1])


def on_plain(task: Task, plain: np.ndarray, box: list[list[float]], whiten: int) -> ExtractorSpec:
    """What makes the first round's features of ``plain`` ones of PUBLIC rows, float32 [n, d]."""
    first = FirstFeatures(features="box" if box else "raw", box=box, whiten=whiten)
    spec = first_extractor(first, replace(task, input_shape=(plain.shape[1],)))
    return whitened(spec, whiten, lambda _: plain)


@dataclass(eq=False)
class Rehearsal:
    """Rehearses rounds on public rows, for as many records as the goal expects.

    ``settings``: with one name of features, which are computed once; ``public``: inputs to ask
    about, which have the columns of trees beside their own where features are trees, as the
    labelled ones have; ``scratch``: a folder for cells. Underlined: what was computed already.
    """

    settings: PublicSide
    task: Task
    public: np.ndarray = field(repr=False)
    labelled: LabelledRows
    goal: Goal
    progress: Progress
    scratch: Path
    _seen_by: dict[object, Seen] = field(default_factory=dict, init=False)
    _voting: dict[object, ScaledVoters] = field(default_factory=dict, init=False)
    _alone: dict[object, PublicLabels | None] = field(default_factory=dict, init=False)
    _scores: dict[object, tuple[float, float]] = field(default_factory=dict, init=False)

    @cached_property
    def _order(self) -> np.ndarray:
        """A random order of the labelled rows."""
        return np.random.default_rng(self.settings.seed).permutation(len(self.labelled.labels))

    def _asked(self, fold: int) -> np.ndarray:
        """Whether each labelled row is asked about, bool [n]; the others stand for records."""
        return self._order % tuning.FOLDS == fold  # type: ignore[no-any-return]

    @property
    def _box(self) -> list[list[float]]:
        return self.settings.box if self.settings.features == "box" else []

    @cached_property
    def computed(self) -> tuple[np.ndarray, np.ndarray]:
        """Features of the public and of the labelled rows, float32 [n, d], as they are."""
        public, labelled = self.public, self.labelled.inputs
        if self._box or self.settings.features == TREES:
            return public, labelled
        spec = first_extractor(self.settings, self.task, public)
        first, second = (
            plain_features(
                self.settings, spec, rows, partial(self.progress, f"features of {name} rows")
            )
            for rows, name in ((public, "public"), (labelled, "labelled"))
        )
        return first.astype(np.float32, copy=False), second.astype(np.float32, copy=False)

    @cached_property
    def plain(self) -> tuple[np.ndarray, np.ndarray]:
        """The features, reduced to their principal axes if there are many.

        No view can tell the difference.
        """
        public, labelled = self.computed
        if self._box or public.shape[1] <= tuning.MOST_AXES:
            return public, labelled
        mean, axes = principal_axes(public, tuning.MOST_AXES, 0.0)
        on_axes = [(x - mean) @ axes.astype(np.float64) for x in (public, labelled)]
        return on_axes[0].astype(np.float32), on_axes[1].astype(np.float32)

    @cached_property
    def views(self) -> tuple[View, ...]:
        """Views that fit the rows and the configuration."""
        public, whiten = self.plain[0], self.settings.whiten
        first = View(
            features=self.settings.features,
            whiten=0,
            dimensions=self.computed[0].shape[1],
            axes=0,
            rows=len(public),
            classes=self.task.num_classes,
            records=self.goal.expected_records,
            box=tuple((low, high) for low, high in self._box),
        )
        if self._box:
            return (first,)
        # Columns may be constant, or sums of others
        spread_in = principal_axes(public[:MAX_ROWS], public.shape[1])[1].shape[1]
        axes = max(1, min(spread_in, int(len(public) * axes_a_row(first.features))))
        counts = sorted({min(count, axes) for count in tuning.WHITENED})
        tried = [whiten] if whiten or stepped(first.features) else [0, *counts]
        return tuple(replace(first, whiten=count, axes=axes) for count in tried)

    @cached_property
    def labels(self) -> np.ndarray:
        """Labels of the labelled rows, int64 [n]."""
        return self.task.labels.encode("labels", self.labelled.labels)

    def score(
        self, view: View, mechanism: Mechanism, draws: range, asked: int, times: int = 1
    ) -> Forecast:
        """See ``RehearsalRows.rehearse``. Deterministic, so that no draw is repeated.

        ``times``: as many records as the goal expects, for mechanisms that ask by matrices.
        """
        folds = [self._rehearsed(view, mechanism, number, asked, times) for number in draws]
        answered, scores = np.array(folds).T
        spread = float(scores.std(ddof=1)) if len(draws) > 1 else 0.0
        accuracy = float((answered * scores).sum() / max(answered.sum(), 1e-9))
        return Forecast(answered=float(answered.mean()), accuracy=accuracy, spread=spread)

    def foreign(self, view: View) -> bool:
        """Whether no shares of the classes explain how PUBLIC rows lie among the test split's.

        They do of no drawn rows. False if that is unknown.
        """
        if self.settings.data.draws:
            return True
        classes, seen = self.task.num_classes, self._seen(view.whiten, RowForm())
        cells = min(tuning.CELLS_A_CLASS * classes, len(seen.public) // tuning.CELL_ROWS)
        if self.task.labels.kind != "class" or self.labelled.public or cells <= classes:
            return False
        centers = cluster(seen.public, cells, self.settings.seed)
        cast = np.bincount(nearest_cells(seen.public, centers, 1)[:, 0], minlength=cells)
        votes = np.zeros((cells, classes))
        np.add.at(votes, (nearest_cells(seen.labelled, centers, 1)[:, 0], self.labels), 1)
        return compared(votes, 0.0, cast)[1].foreign

    def _rehearsed(
        self, view: View, mechanism: Mechanism, number: int, queries: int, times: int
    ) -> tuple[float, float]:
        """(share of rows with a label, how good these are) of one rehearsal."""
        if (key := (view, mechanism, number, queries, times)) in self._scores:
            return self._scores[key]
        mechanism = mechanism.for_unit(self.goal.unit)
        mechanism = mechanism.noisier(math.sqrt(self.goal.custodians))  # each adds all of it
        rng, fold = np.random.default_rng([self.settings.seed, number]), number % tuning.FOLDS
        if mechanism.query_form.matrix is None:
            asked, labels = self._by_queries(view, mechanism, fold, rng, queries)
        else:
            asked, labels = self._by_matrices(view, mechanism, fold, rng, times)
        space, has = self.task.labels, labels != ABSTAINED
        score = space.score(space.decode(labels), self.labelled.labels[asked], has)
        errors = score.get("errors")  # of values
        good = float(errors["r2"] if errors else score["accuracy"] or 0.0)
        if self.settings.balanced and has.any():
            truth = self.labels[asked][has]
            good = float(np.average(labels[has] == truth, weights=1 / np.bincount(truth)[truth]))
        self._scores[key] = float(has.mean()), good
        return self._scores[key]

    def _by_matrices(
        self, view: View, mechanism: Mechanism, fold: int, rng: np.random.Generator, times: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(which labelled rows are asked about, their labels)."""
        form, asked = mechanism.query_form, self._asked(fold)
        seen = self._seen(view.whiten, form)
        teacher = RehearsingTeacher(
            mechanism=mechanism,
            features=seen.labelled[~asked],
            labels=self.labels[~asked],
            classes=self.task.num_classes,
            length=seen.length,
            records=times * self.goal.expected_records,
            rng=rng,
        )
        seed = self.settings.seed * 1000 + 1
        current = MatrixRound(
            count=teacher.count,
            planned=Round(number=1, slot=0, queries=None, once=True, form=form, seed=seed),
            extractor=seen.spec,
            features=seen.public,
            rows=seen.labelled[asked],
            labelled=self._taught(view, form, fold) if self.settings.taught else None,
            drawn=self.settings.data.draws,
            balanced=self.settings.balanced,
            folder=self._folder(view, form),
        )
        answers, _ = ask_matrices(current)
        return asked, answers.labels

    def _taught(self, view: View, form: QueryForm, fold: int) -> PublicLabels | None:
        """What the public labels of the other folds give without records."""
        key = view.whiten, form.basis, fold
        if key not in self._alone and self.labelled.public:
            seen, others = self._seen(view.whiten, form), ~self._asked(fold)
            self._alone[key] = labelled(
                seen.labelled[others], self.labels[others], seen.length, self.task.labels
            )
        return self._alone.get(key)

    def alone(self, view: View, form: QueryForm, trees: Boosted | None = None) -> float:
        """Share of the labels, or R2 of values, that learned public ones give without records.

        A run says the same of more rows. ``trees``: of these labels.
        """
        if not (self.settings.taught and self.labelled.public):
            return 0.0
        asked, (plain, rows) = self._seen(view.whiten, form), self.computed
        seen = [(asked.spec, asked.labelled)]
        if rows.shape[1] <= MAX_DIMENSIONS:
            spec = on_plain(self.task, plain, self._box, 0)
            seen.append((spec, Embedder(spec).embed(rows)[0]))
        found = [
            labels_alone(
                [(spec, each[~self._asked(fold)]) for spec, each in seen],
                self.labels[~self._asked(fold)],
                self.task.labels,
                trees,
            )
            for fold in range(tuning.FOLDS)
        ]
        return float(np.mean([best[1] if best else 0.0 for best in found]))

    def _by_queries(
        self, view: View, mechanism: Mechanism, fold: int, rng: np.random.Generator, queries: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(which labelled rows are asked about, their labels) if each is a query of its own."""
        asked = self._asked(fold) & (self._order < tuning.MAX_NEIGHBOURS)
        voters = self._voters(view.whiten, mechanism.query_form, fold)
        keys, noise = [""] * len(voters.queries), StandInNoise(rng)
        if mechanism.charging is Charging.PREPAID:
            return asked, conversations(cast(IndKnn, mechanism), voters, queries, noise)
        *screens, answers = (mechanism.draw(s, voters, keys, noise) for s in mechanism.stages)
        labels = np.array([mechanism.label(value) for value in answers.tolist()], dtype=np.int64)
        for bits in screens:
            labels[bits != 1] = ABSTAINED
        return asked, labels

    def _voters(self, whiten: int, form: QueryForm, fold: int) -> ScaledVoters:
        """The rows of the other folds, as voters on those of one."""
        key = whiten, form.basis, fold
        if key not in self._voting:
            seen, few = self._seen(whiten, form), self._order < tuning.MAX_NEIGHBOURS
            asked, others = self._asked(fold) & few, ~self._asked(fold) & few
            self._voting[key] = ScaledVoters(
                ExactIndex(seen.labelled[others], np.arange(others.sum()), threads=1),
                self.labels[others],
                self.task.num_classes,
                seen.labelled[asked],
                seen.length,
                landmarks=seen.spec.landmarks,
                records=self.goal.expected_records,
            )
        return self._voting[key]

    def _seen(self, whiten: int, form: QueryForm) -> Seen:
        """What a round of that form asks with."""
        key = whiten, form.basis
        if key not in self._seen_by:
            plain, labelled = self.plain
            start = on_plain(self.task, plain, self._box, whiten)
            spec = extractor_of_round(start, form, lambda _: plain)
            embedder = Embedder(spec)
            public, rows = (embedder.embed(each)[0] for each in (plain, labelled))
            self._seen_by[key] = Seen(spec=spec, public=public, labelled=rows)
        return self._seen_by[key]

    def _folder(self, view: View, form: QueryForm) -> Path | None:
        """The folder of a round's cells, which no noise moves; None for sums."""
        if not isinstance(form, CellsForm):
            return None
        name = f"{view.features}-{view.whiten}-{form.centroids}"
        folder = self.scratch / name.replace("/", "_")
        folder.mkdir(exist_ok=True)
        return folder


def labelled_rows(public: PublicData, most: int, seed: int) -> LabelledRows | None:
    """Labelled public rows, at most ``most``; those of the test split if they are too few.

    None if both have fewer than MIN_ROWS.
    """
    test = (
        "rows of the test split, whose labels chose the method: accuracy on this split is slightly "
        "optimistic"
    )
    for inputs, labels, text in (
        (public.inputs, public.labels, "labelled public rows"),
        (public.test_inputs, public.test_labels, test),
    ):
        if labels is None or len(rows := np.flatnonzero(has_truth(labels))) < MIN_ROWS:
            continue
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:most])
        known, classes = labels[rows], labels.dtype.kind != "f" and labels.ndim == 1
        return LabelledRows(
            inputs=inputs[rows],
            labels=known,
            source=f"{len(rows)} {text}",
            frequent=float(np.bincount(known).max() / len(known)) if classes else 0.0,
            public=inputs is public.inputs,
        )
    return None


def public_box(inputs: np.ndarray) -> list[list[float]]:
    """The range of PUBLIC vectors (float32 [n, d]) on each side, a little wider: [low, high]."""
    low, high = (inputs.min(axis=0).astype(np.float64), inputs.max(axis=0).astype(np.float64))
    room = np.maximum(0.01 * (high - low), 1e-5 * (1 + np.abs(low)))  # more than digits leave
    sides = np.stack([low - room, high + room], axis=1)
    return [[float(f"{a:.6g}"), float(f"{b:.6g}")] for a, b in sides]
