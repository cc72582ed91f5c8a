"""Rounds that ask by matrices of PUBLIC rows: what they see and store, and how they ask.

*Cells*: one noisy histogram, whose labels the public rows inherit. Reverse kNN clusters the PUBLIC
rows, and each private record votes in the nearest clusters.

*Weights*: a linear model, fitted to one noisy sum of gradients after another. The fit is
student/linear's; the model labels any rows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.features.embedder import unit_length
from ...wall.files import reading, write_arrays, write_file
from ...wall.label_kinds import numbered_space
from ...wall.matrices import (
    MAX_ENTRY,
    Cells,
    Matrix,
    NoisyCounts,
    Weights,
    inherit,
    nearest_cells,
)
from ...wall.messages import ABSTAINED, Answers, ExtractorSpec, Outcome, Receipt, join_receipts
from ...wall.questions import CellsForm, Round, SumsForm
from ..linear.labelled import Labelled, PublicLabels
from ..linear.linear_model import LinearModel, Says, fit, with_neighbours
from ..linear.measure import FitSettings, unit_inputs
from ..linear.shift_of_counts import compared
from ..linear.stored import stored_fit
from ..linear.tuning import SURE_COUNT
from ..results import Estimate
from ..round_files import CLASSIFIER, PROBABILITIES
from .estimates import NOTHING_KNOWN, at_least, by_counts, by_model, few_votes, noted
from .query_selection import k_means
from .tuning import VOTES

Count = Callable[[Matrix], NoisyCounts]  # what such a round needs of a teacher
ITERATIONS = 50  # of Lloyd's algorithm; later ones move centres by less than their rounding


@dataclass(frozen=True, kw_only=True)
class MatrixRound:
    """A ``planned`` round that asks by matrices of PUBLIC rows.

    Matrices are stored before they are sent: a resumed round must send the same ones, since others
    would be charged again.

    Args:
        count: the teacher's noisy counts by a matrix.
        extractor: of the features.
        features: int8 [n, d], of the rows that matrices are made from.
        rows: int8 [m, d], of the rows to label; None: the same ones.
        labelled: rows that are learned, too.
        drawn: whether ``features`` are of drawn rows, which tell nothing of the records.
        balanced: whether a linear classifier favours each class alike.
        last: file of an earlier classifier of these features, which counts as well.
        folder: of the round; None for a rehearsal, which stores nothing and estimates nothing of a
            linear model.
    """

    count: Count
    planned: Round
    extractor: ExtractorSpec
    features: np.ndarray = field(repr=False)
    rows: np.ndarray | None = field(default=None, repr=False)
    labelled: PublicLabels | None = None
    drawn: bool = False
    balanced: bool = False
    last: Path | None = None
    folder: Path | None

    @property
    def to_label(self) -> np.ndarray:
        """Features of the rows to label, int8 [m, d]."""
        return self.features if self.rows is None else self.rows

    @property
    def length(self) -> float:
        """Length of a unit vector after quantisation."""
        return unit_length(self.extractor, self.features.shape[1])

    def stored(self, file: str, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array ``name`` of an npz file, which is made and written if it is missing."""
        if self.folder is None:
            return make()
        if not (path := self.folder / file).exists():
            write_arrays(path, **{name: make()})
        with reading(path), np.load(path, allow_pickle=False) as stored:
            return np.asarray(stored[name])

    def store(self, model: LinearModel, says: Says) -> None:
        """Leave a classifier and, for classes, what it ``says`` of the features, in their order."""
        if self.folder is None:
            return
        if model.labels == "class":
            write_arrays(self.folder / PROBABILITIES, says(self.features))
        write_file(self.folder / CLASSIFIER, model.to_bytes(self.extractor.sha256()))


def ask_matrices(current: MatrixRound) -> tuple[Answers, Estimate | None]:
    """Labels of rows by what matrices from PUBLIC features count, and their estimate.

    Raises InvalidInput if the features are too few.
    """
    form = current.planned.form
    if isinstance(form, CellsForm):
        return ask_cells(current, form)
    assert isinstance(form, SumsForm)
    return ask_sums(current, form)


def ask_cells(current: MatrixRound, form: CellsForm) -> tuple[Answers, Estimate | None]:
    """Labels by one noisy histogram over clusters of the features, and their estimate.

    If public labels of all classes are known, their classifier and the votes choose together.
    Raises InvalidInput if there are fewer features than cells.
    """
    made = partial(cluster, current.features, form.centroids, current.planned.seed)
    centers = current.stored("cells.npz", "centers", made)
    histogram = current.count(Cells(centers, current.planned.slot))
    own = nearest_cells(current.features, centers, form.row_neighbours)
    nearest = own
    if current.rows is not None:
        nearest = nearest_cells(current.rows, centers, form.row_neighbours)
    votes, estimate = None, None
    if histogram.counts is not None:
        votes, estimate = _judged(histogram.counts / form.parts, current, form, centers, own)
    labels, outcomes = inherit(votes, nearest, form.margin)
    labelled = current.labelled
    if votes is not None and isinstance(labelled, Labelled) and labelled.complete:
        inputs = unit_inputs(current.to_label, current.length)
        least = form.deviation * math.sqrt(form.row_neighbours)
        above = np.maximum(votes[nearest].sum(axis=1), least)
        both = (inputs @ labelled.weights + VOTES * np.log(above)).argmax(axis=1)
        labels = np.where(labels == ABSTAINED, labels, both)
    return Answers(labels, outcomes, histogram.receipt), estimate


def _judged(
    votes: np.ndarray, current: MatrixRound, form: CellsForm, centers: np.ndarray, own: np.ndarray
) -> tuple[np.ndarray, Estimate]:
    """Votes that public rows would cast, float64 [m, c], by the records' noisy ones; an estimate.

    ``own``: cells of each of the round's features.
    """
    noise = form.deviation
    if float(votes.sum()) <= SURE_COUNT * noise * votes.size**0.5:
        return votes, NOTHING_KNOWN
    ballots = nearest_cells(current.features, centers, form.neighbours)
    cast = np.bincount(ballots.ravel(), minlength=form.centroids)
    times, shares = compared(votes, noise, cast)
    few, votes = few_votes(votes, form), votes * times
    estimate = by_counts(votes, own, form.margin, noise * times)
    labelled = current.labelled
    complete = isinstance(labelled, Labelled) and labelled.complete
    estimate = at_least(estimate, labelled.right if labelled and complete else 0.0)
    return votes, noted(estimate, few=few, foreign=shares.foreign)


def cluster(features: np.ndarray, cells: int, seed: int) -> np.ndarray:
    """k-means centres of PUBLIC features (int8 [n, d]), rounded to integers: int8 [cells, d].

    Features with few distinct values give equal centres; all but the first of those stay empty.
    """
    if cells > len(features):
        rule = f"at most {len(features)}, the public rows of a round"
        raise InvalidInput("mechanism.centroids", rule, cells)
    centers, _ = k_means(features.astype(np.float32), cells, seed=seed, iterations=ITERATIONS)
    # If rows repeat, scikit-learn moves empty clusters' centres beyond all rows
    return np.clip(np.rint(centers), -MAX_ENTRY, MAX_ENTRY).astype(np.int8)


def ask_sums(current: MatrixRound, form: SumsForm) -> tuple[Answers, Estimate | None]:
    """Labels by a linear model from the noisy sums of a few steps, and their estimate.

    If a cap ends the steps early, the model is by those that were answered.
    """
    planned = current.planned
    features = current.features
    receipts = list[Receipt]()

    def ask(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        sent = current.stored(f"weights_{step}.npz", "weights", lambda: weights)
        noisy = current.count(Weights(sent, planned.slot))
        receipts.append(noisy.receipt)
        return sent, None if noisy.counts is None else noisy.counts[0]

    # Sums of a repeated round that are asked again are known, and charged once: of classes the
    # first, of values those of all rounds before
    again = current.last is not None and planned.periods == 1
    steps = form.steps
    if again:
        steps = planned.number * steps if form.labels == "value" else steps + 1
    how = FitSettings(
        labels=form.labels,
        outputs=current.extractor.num_classes,
        length=current.length,
        noise_multiplier=form.deviation,
        clip=form.clip,
        steps=steps,
        gain=form.gain,
        alike=current.folder is None or current.drawn,
        balanced=current.balanced,
    )
    earlier = None if current.last is None else stored_fit(current.last, current.extractor.sha256())
    model = fit(ask, features, how, current.labelled, earlier, again)
    if model is None:
        rows = len(current.to_label)
        labels = numbered_space(form.labels, how.outputs).no_labels(rows)
        refused = np.full(rows, Outcome.CAP_REACHED, dtype=np.uint8)
        return Answers(labels, refused, join_receipts(receipts)), None
    says: Says = model.says
    estimate = None if current.folder is None else by_model(model, form, features)
    if form.labels == "class" and not current.drawn:
        says = with_neighbours(says, features)
    current.store(model, says)
    labels, outcomes = model.to_labels(says(current.to_label), form.margin)
    return Answers(labels, outcomes, join_receipts(receipts)), estimate
