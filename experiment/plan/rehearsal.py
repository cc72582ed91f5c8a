"""Rehearsals: a round of a run with public rows alone, before anything private is read.

A part of the labelled public rows stands for the records, the others tell how many labels are
right. The mechanism counts the part as it would count records; its sums are multiplied up to the
expected number of records and get noise of the mechanism's scale; the code of a run
(experiment/run/matrices.py) fits and labels.

Multiplied sums of few rows vary more than sums of many records do. That variance is estimated from
GROUPS parts, and so much less noise is added, but at least MIN_VARIANCE of it. With little noise
and few labelled rows a rehearsal is therefore pessimistic.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from ...teacher.features.embedder import Embedder, unit_length
from ...teacher.mechanisms.base import Mechanism, QueryForm
from ...teacher.mechanisms.voters import Voters
from ...teacher.search.cpu import ExactIndex
from ...wall.datasets.config import PublicData, Task
from ...wall.matrices import Matrix, NoisyCounts
from ...wall.messages import ABSTAINED, ExtractorSpec, Receipt
from ...wall.progress import Progress
from ..config.config import Config
from ..config.groups import CapsConfig, FirstFeatures, RoundConfig
from ..linear.measure import AXES_BY_ROWS
from ..run.features import (
    MAX_ROWS,
    embedder_of,
    extractor_of_round,
    first_extractor,
    principal_axes,
    quantised,
    starting_extractor,
)
from ..run.matrices import ask_matrices, question_of
from .goal import Score, View

MAX_PUBLIC = 2_000  # public rows that a rehearsed round asks about
MAX_LABELLED = 4_000
MAX_NEIGHBOURS = 1_000  # labelled rows that are queries and neighbours of all others
MAX_NETWORK = 1_500  # rows of each kind, where a network computes features
FOLDS = 4  # a quarter of the labelled rows is asked about
GROUPS = 8  # parts of the rows that stand for records
MIN_VARIANCE = 0.1  # share of the noise's variance that is added in any case
MOST_AXES = 256  # principal axes that rehearsals look at
WHITENED = (16, 64, 128)
PLAIN = 64  # dimensions, and axes, up to which neighbours are near ones


@dataclass(frozen=True, eq=False)
class Labelled:
    """Public rows with labels, as ``PublicData`` has them. ``source``: for a reader."""

    inputs: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    source: str


@dataclass
class ZeroNoise:
    """Entropy that draws zeros and notes the scale of the noise that it was asked for."""

    scale: float = 0.0
    unsafe = True  # a ledger would refuse it

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """Zeros, int64 [q, width]."""
        self.scale = sigma
        return np.zeros((len(keys), width), dtype=np.int64)

    def inclusion(self, *_: object) -> np.ndarray:
        """Not for mechanisms that ask by matrices, like the two others."""
        raise NotImplementedError

    discrete_laplace = choose = inclusion


@dataclass(frozen=True)
class RehearsingTeacher:
    """Counts PUBLIC rows in place of ``records`` many records.

    ``features``: int8 [n, d]; ``labels``: int64 [n]; ``length``: of a unit vector.
    """

    mechanism: Mechanism
    features: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    classes: int
    length: float
    records: int
    rng: np.random.Generator = field(repr=False)

    def count(self, matrix: Matrix) -> NoisyCounts:
        """See ``Teacher.count``; nothing is charged."""
        silent, (stage,) = ZeroNoise(), self.mechanism.stages
        parts = np.array_split(np.arange(len(self.labels)), min(GROUPS, len(self.labels)))
        sums = np.stack([self._sums(matrix, part, stage, silent) for part in parts])
        factor = self.records / len(self.labels)
        spread = len(parts) * sums.var(axis=0, ddof=min(1, len(parts) - 1))
        left = np.maximum(silent.scale**2 - (factor**2 - factor) * spread, 0.0)
        deviation = np.sqrt(np.maximum(left, MIN_VARIANCE * silent.scale**2))
        noisy = np.rint(self.rng.normal(factor * sums.sum(axis=0), deviation)).astype(np.int64)
        rows = self.mechanism.query_form.centroids or 1
        return NoisyCounts(noisy.reshape(rows, -1), Receipt(1, 0, {stage: 1}, {stage: 0}, 0, ""))

    def _sums(self, matrix: Matrix, part: np.ndarray, stage: str, silent: ZeroNoise) -> np.ndarray:
        index = ExactIndex(self.features[part], np.arange(len(part)))
        one = matrix.entries[np.newaxis]
        voters = Voters(index, self.labels[part], self.classes, one, self.length)
        drawn: np.ndarray = self.mechanism.draw(stage, voters, ["rehearsal"], silent)[0]
        return drawn.astype(np.float64)


@dataclass(eq=False)
class Features:
    """One kind of features of the public and of the labelled rows, computed once.

    ``plain``: float32 [n, d] of the public rows and of the labelled ones, before they are centred;
    on their principal axes where these are many, which no view tells apart.
    """

    config: Config
    task: Task
    box: list[list[float]]
    plain: tuple[np.ndarray, np.ndarray]
    dimensions: int

    def spec(self, whiten: int) -> ExtractorSpec:
        """Of ``plain``, as a run's first round has it."""
        shape = (self.plain[0].shape[1],)
        first = FirstFeatures(features="box" if self.box else "raw", box=self.box, whiten=whiten)
        task = replace(self.task, input_shape=shape)
        return starting_extractor(first, task, lambda _: self.plain[0])

    @cached_property
    def directions(self) -> int:
        """In which the public rows spread: columns may be constant, or sums of others."""
        return principal_axes(self.plain[0][:MAX_ROWS], self.plain[0].shape[1])[1].shape[1]

    def views(self) -> tuple[View, ...]:
        """Those that fit the rows and the configuration."""
        rows, width = len(self.plain[0]), self.plain[0].shape[1]
        name = "box" if self.box else self.config.features
        box = tuple((low, high) for low, high in self.box)
        if self.box:
            return (View(name, 0, width, 0, rows, box),)
        axes = max(1, min(self.directions, int(rows * AXES_BY_ROWS)))
        if self.config.whiten:
            return (View(name, self.config.whiten, width, axes, rows),)
        counts = sorted({min(count, axes) for count in WHITENED})
        return tuple(View(name, count, self.dimensions, axes, rows) for count in (0, *counts))


class Rehearsal:
    """Rehearses rounds of ``config`` on public rows, for ``records`` many records.

    ``config``: with one name of features, which are computed once.
    """

    def __init__(
        self,
        config: Config,
        task: Task,
        public: np.ndarray,
        labelled: Labelled,
        records: int,
        progress: Progress,
        scratch: Path,
    ) -> None:
        self.config, self._task, self._progress = config, task, progress
        self._inputs = public, labelled.inputs
        self.labelled, self._records, self._scratch = labelled, records, scratch
        self._known: dict[tuple[int, int | None], tuple[ExtractorSpec, np.ndarray, np.ndarray]] = {}
        self._folds = np.random.default_rng(config.seed).permutation(len(labelled.labels)) % FOLDS

    @cached_property
    def computed(self) -> tuple[np.ndarray, np.ndarray]:
        """Features of the public and of the labelled rows, float32 [n, d], as they are."""
        config, (public, labelled) = self.config, self._inputs
        if config.features == "box":
            return self._inputs
        embedder = embedder_of(config, first_extractor(config, self._task), public)
        first, second = (
            embedder.features(rows, partial(self._progress, f"features of {name} rows"))
            for rows, name in ((public, "public"), (labelled, "labelled"))
        )
        return first.astype(np.float32, copy=False), second.astype(np.float32, copy=False)

    @cached_property
    def features(self) -> Features:
        """Computed once."""
        config, (public, labelled) = self.config, self.computed
        dimensions, box = public.shape[1], config.box if config.features == "box" else []
        if not box and dimensions > MOST_AXES:
            mean, axes = principal_axes(public, MOST_AXES, 0.0)
            public, labelled = (
                ((x - mean) @ axes.astype(np.float64)).astype(np.float32)
                for x in (public, labelled)
            )
        return Features(config, self._task, box, (public, labelled), dimensions)

    @cached_property
    def labels(self) -> np.ndarray:
        """Of the labelled rows, int64 [n]."""
        return self._task.labels.encode("labels", self.labelled.labels)

    @cached_property
    def embedded(self) -> tuple[np.ndarray, np.ndarray, float]:
        """See ``PublicRows.embed``: as a run's first round embeds them, distances included."""
        order = np.random.default_rng(self.config.seed).permutation(len(self.labels))
        rows = order[:MAX_NEIGHBOURS]
        config, (public, labelled) = self.config, self.computed
        first = replace(config, whiten=self.default_view.whiten)
        spec = starting_extractor(first, self._task, lambda _: public)
        features, finite = quantised(spec, labelled[rows])
        return features[finite], self.labels[rows][finite], unit_length(spec, features.shape[1])

    @property
    def default_view(self) -> View:
        """What mechanisms look at that have no view of their own.

        Whitened features where there are many dimensions, unless the configuration fixes them.
        """
        views = self.features.views()
        many = self.config.open and not self.config.whiten and views[0].dimensions > PLAIN
        fitting = [view for view in views if view.whiten <= PLAIN]
        return fitting[-1] if many else views[0]

    def score(self, view: View, mechanism: Mechanism, times: int) -> Score:
        """See ``PublicRows.rehearse``. Deterministic."""
        folds = [self._fold(view, mechanism, number) for number in range(times)]
        answered, scores = np.array(folds).T
        spread = float(scores.std(ddof=1)) if times > 1 else 0.0
        accuracy = float((answered * scores).sum() / max(answered.sum(), 1e-9))
        return Score(float(answered.mean()), accuracy, spread)

    def _fold(self, view: View, mechanism: Mechanism, number: int) -> tuple[float, float]:
        """(share of rows with a label, how good these are) of one rehearsal."""
        mechanism = mechanism.for_unit(self.config.privacy.unit)
        labels, asks = self.labels, mechanism.query_form
        asked = self._folds == number % FOLDS
        spec, public, rows = self._seen(view.whiten, asks.axes)
        classes, length = self._task.num_classes, unit_length(spec, rows.shape[1])
        teacher = RehearsingTeacher(
            mechanism,
            rows[~asked],
            labels[~asked],
            classes,
            length,
            self._records,
            np.random.default_rng([self.config.seed, number]),
        )
        round_1 = replace(
            self.config, mechanism=mechanism, rounds=[RoundConfig()], caps=CapsConfig()
        )
        current = round_1.public_side().rounds[0]
        with self._folder(view, asks.centroids) as folder:
            asked_of = question_of(current, classes, spec, public.shape[1], folder)
            answers, _ = ask_matrices(teacher, asked_of, public, rows[asked])
        space, has = self._task.labels, answers.labels != ABSTAINED
        score = space.score(space.decode(answers.labels), self.labelled.labels[asked], has)
        errors = score.get("errors")  # of values
        return float(has.mean()), float(errors["r2"] if errors else score["accuracy"] or 0.0)

    def _seen(self, whiten: int, axes: int | None) -> tuple[ExtractorSpec, np.ndarray, np.ndarray]:
        """What a round asks with, and its features of public and labelled rows, int8 [n, d]."""
        if (whiten, axes) not in self._known:
            plain, start = self.features.plain, self.features.spec(whiten)
            spec = extractor_of_round(start, QueryForm(axes=axes), lambda _: plain[0])
            embedder = Embedder(spec, probe=None)
            public, rows = (embedder.embed(x)[0] for x in plain)
            self._known[whiten, axes] = spec, public, rows
        return self._known[whiten, axes]

    @contextmanager
    def _folder(self, view: View, cells: int | None) -> Iterator[Path]:
        """Where a round keeps its matrices. Cells do not depend on the noise: they are kept."""
        if cells is None:
            with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
                yield Path(folder)
        else:
            name = f"{view.features}-{view.whiten}-{cells}".replace("/", "_")
            (self._scratch / name).mkdir(exist_ok=True)
            yield self._scratch / name


def labelled_rows(public: PublicData, least: int, most: int, seed: int) -> Labelled | None:
    """Labelled public rows, at most ``most``; those of the test split where they are too few.

    None where both have fewer than ``least``.
    """
    rng = np.random.default_rng(seed)
    if public.labels is not None:
        known = np.flatnonzero(has_value(public.labels).reshape(len(public.labels), -1).all(axis=1))
        if len(known) >= least:
            rows = np.sort(rng.permutation(known)[:most])
            text = f"{len(rows)} labelled public rows"
            return Labelled(public.inputs[rows], public.labels[rows], text)
    if len(public.test_labels) < least:
        return None
    rows = np.sort(rng.permutation(len(public.test_labels))[:most])
    text = (
        f"{len(rows)} rows of the test split, whose labels chose the method: accuracy on this "
        "split is slightly optimistic"
    )
    return Labelled(public.test_inputs[rows], public.test_labels[rows], text)


def has_value(labels: np.ndarray) -> np.ndarray:
    """Which public labels are known: classes and attributes from 0, finite values."""
    return np.isfinite(labels) if labels.dtype.kind == "f" else labels >= 0


def public_box(inputs: np.ndarray) -> list[list[float]]:
    """The range of PUBLIC vectors (float32 [n, d]) on each side, a little wider: [low, high]."""
    low, high = (inputs.min(axis=0).astype(np.float64), inputs.max(axis=0).astype(np.float64))
    room = np.maximum(0.01 * (high - low), 1e-6)
    sides = np.stack([low - room, high + room], axis=1)
    return [[float(f"{a:.6g}"), float(f"{b:.6g}")] for a, b in sides]
