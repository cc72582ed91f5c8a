"""A round on the public side that asks by matrices: fit to noisy sums, then label any rows.

Reverse kNN clusters the PUBLIC rows and asks for one histogram, whose labels the rows inherit.
A linear model asks for one noisy gradient after another (student/linear).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.features.embedder import unit_length
from ...wall.files import reading, write_arrays, write_file
from ...wall.label_kinds import numbered_space
from ...wall.matrices import (
    COUNT,
    MAX_ENTRY,
    SENSITIVITY,
    Cells,
    Matrix,
    NoisyCounts,
    Weights,
    inherit,
    nearest_cells,
)
from ...wall.messages import ABSTAINED, Answers, ExtractorSpec, Outcome, Receipt
from ...wall.questions import QueryForm, Round
from ..linear.labelled import Labelled
from ..linear.measure import MAX_ROWS, FitSettings, carried_axes, unit_inputs
from ..linear.model import LinearModel, fit
from ..linear.neighbours import Says, with_neighbours
from ..linear.shift_of_counts import compared
from ..linear.stored import stored_fit
from ..linear.tuning import AXES_BY_ROWS, MANY_STEPS, SURE_COUNT
from ..round_files import CLASSIFIER, PROBABILITIES
from .estimates import (
    FOREIGN,
    HIDDEN,
    MOST_ERROR,
    NOTHING_KNOWN,
    RARE_CLASS,
    Estimate,
    by_counts,
    by_moments,
    by_probabilities,
)
from .query_selection import k_means

SIMILAR = 1.5  # numbers of axes are as good that differ by less
OFF = 2.0  # a guess of the records is wrong where it is so many times too large or too small
# Of votes' logarithms beside those of probabilities by public labels: chosen on KEEL's penbased,
# phoneme, satimage and vowel, checked on segment, optdigits and magic.
VOTES = 0.5
FEW = 20.0  # deviations of the noise: a class with fewer records is hardly known
# Public rows may have more of a class with fewer than so many times FEW, and than this part of its
# equal share, unseen. Chosen on docstrings at epsilon 0.25 to 1.
UNSEEN, RARE = 2.0, 0.3
LEAST_VOTES = 3.0  # on a row, in deviations of their noise: with fewer, most labels are chance
ITERATIONS = 50  # of Lloyd's algorithm; later ones move centres by less than their rounding
Count = Callable[[Matrix], NoisyCounts]  # what such a round needs of a teacher


def ask_matrices(
    count: Count,
    asked: Round,
    extractor: ExtractorSpec,
    folder: Path | None,
    features: np.ndarray,
    rows: np.ndarray | None = None,
    known: Labelled | None = None,
    last: Path | None = None,
) -> tuple[Answers, Estimate | None]:
    """Labels of ``rows`` by what matrices from PUBLIC ``features`` count.

    Both are features of the ``extractor``, int8 [n, d]; the rows are those of the matrices where
    ``rows`` is None; labels that are ``known`` are learned, too; ``last``: the file of an earlier
    classifier of these features, which counts as well. The estimate is of the labels of
    ``features``. Matrices are written to the ``folder`` before they are sent: a resumed round must
    send the same ones, since others would be charged again. Without a folder it is a rehearsal,
    which keeps and estimates nothing of a linear model. Raises InvalidInput where there are too few
    features.
    """
    rows = features if rows is None else rows
    if asked.form.matrix == "cells":
        return _by_cells(count, asked, extractor, folder, features, rows, known)
    return _by_weights(count, asked, extractor, folder, features, rows, known, last)


def _stored(
    folder: Path | None, file: str, name: str, make: Callable[[], np.ndarray]
) -> np.ndarray:
    """The array ``name`` of an npz file, computed and written where it is missing."""
    if folder is None:
        return make()
    if not (path := folder / file).exists():
        write_arrays(path, **{name: make()})
    with reading(path), np.load(path, allow_pickle=False) as stored:
        return np.asarray(stored[name])


def axes_by_count(
    count: Count, asked: Round, extractor: ExtractorSpec, guess: int, plain: np.ndarray
) -> int | None:
    """How many axes the records carry, by a round's first sum, which counts them; None where that
    does not speak against a ``guess`` of their number.

    ``extractor``: on the axes that the guess led to; ``plain``: features of PUBLIC rows that have
    them, [n, d]. Only many steps for classes can spare a sum: where axes change, one is left out
    of the fit. Otherwise the fit asks the same sum again, which is charged once.
    """
    form, classes, axes = asked.form, extractor.num_classes, extractor.projection()
    steps = form.steps or 0
    if form.axes is None or form.labels != "class" or form.gain != 1 or steps < MANY_STEPS:
        return None
    assert form.noise is not None
    assert axes is not None
    kept = axes.shape[1]
    zeros = np.zeros((kept + 1, classes), dtype=np.int16)
    counts = count(Weights(zeros, asked.slot)).counts
    if counts is None:  # a cap refuses it
        return None
    noise = form.noise * SENSITIVITY / COUNT
    records = max(float(counts[0, -1]) / COUNT, noise / 2)
    if abs(records - guess) < noise or guess / OFF < records < guess * OFF:
        return None
    strength = records * math.sqrt(steps) / (form.noise * classes)
    most = max(1, min(int(len(plain) * AXES_BY_ROWS), plain.shape[1]))
    carried = carried_axes(strength, classes, most)
    return None if kept / SIMILAR < carried < kept * SIMILAR else carried


def _by_cells(
    count: Count,
    asked: Round,
    extractor: ExtractorSpec,
    folder: Path | None,
    features: np.ndarray,
    rows: np.ndarray,
    known: Labelled | None,
) -> tuple[Answers, Estimate | None]:
    """``ask_matrices`` by one noisy histogram over clusters of the features.

    Where public labels of all classes are known, their classifier and the votes choose together.
    """
    form = asked.form
    cells, noise, near = form.centroids, form.noise, form.row_neighbours
    assert cells is not None
    assert noise is not None
    made = partial(cluster, features, cells, asked.seed)
    centers = _stored(folder, "cells.npz", "centers", made)
    histogram = count(Cells(centers, asked.slot))
    own = nearest_cells(features, centers, near)
    estimate, votes = None, histogram.counts
    if votes is not None:
        votes, estimate = votes / form.parts, NOTHING_KNOWN
        if float(votes.sum()) > SURE_COUNT * noise * votes.size**0.5:
            ballots = nearest_cells(features, centers, form.neighbours)
            cast = np.bincount(ballots.ravel(), minlength=cells)
            times, shares = compared(votes, noise, cast)
            votes, few = votes * times, _few(votes, form)
            estimate = by_counts(votes, own, form.margin, noise * times)
            estimate = replace(estimate, why=HIDDEN if estimate.error > MOST_ERROR else "")
            estimate = _at_least(estimate, known.right if known and known.complete else 0.0)
            estimate = replace(estimate, few=few, why=FOREIGN if shares.foreign else estimate.why)
    nearest = own if rows is features else nearest_cells(rows, centers, near)
    labels, outcomes = inherit(votes, nearest, form.margin)
    if votes is not None and known is not None and known.complete:
        inputs = unit_inputs(rows, unit_length(extractor, rows.shape[1]))
        above = np.maximum(votes[nearest].sum(axis=1), noise * math.sqrt(near))
        both = (inputs @ known.weights + VOTES * np.log(above)).argmax(axis=1)
        labels = np.where(labels == ABSTAINED, labels, both)
    return Answers(labels, outcomes, histogram.receipt), estimate


def _at_least(estimate: Estimate, right: float) -> Estimate:
    """The estimate, or ``right`` where that is more: the share of right labels by public labels
    alone, which the answers hardly fall below. 0: that share is unknown.
    """
    if right and (estimate.why or right > estimate.right):
        return replace(estimate, right=right, why="")
    return estimate


def _few(votes: np.ndarray, form: QueryForm) -> dict[str, int]:
    """Classes whose votes on a row would not be above their noise: about how many records vote for
    each. ``votes``: float64 [m, c], of which an equal part of the cells is taken for each class's.
    """
    assert form.noise is not None
    total = votes.sum(axis=0)
    on_row = total * votes.shape[1] / len(votes) * math.sqrt(form.row_neighbours)
    records = total.clip(0) / form.neighbours
    return {str(k): round(records[k]) for k in np.flatnonzero(on_row < LEAST_VOTES * form.noise)}


def cluster(features: np.ndarray, cells: int, seed: int) -> np.ndarray:
    """k-means centres of PUBLIC features (int8 [n, d]), rounded to integers: int8 [cells, d].

    Features with few distinct values give equal centres; all but the first of those stay empty.
    """
    if cells > len(features):
        rule = f"at most {len(features)}, the public rows of a round"
        raise InvalidInput("mechanism.centroids", rule, cells)
    centers, _ = k_means(features.astype(np.float32), cells, seed=seed, iterations=ITERATIONS)
    # Where rows repeat, scikit-learn moves empty clusters' centres beyond all rows
    return np.clip(np.rint(centers), -MAX_ENTRY, MAX_ENTRY).astype(np.int8)


def _by_weights(
    count: Count,
    asked: Round,
    extractor: ExtractorSpec,
    folder: Path | None,
    features: np.ndarray,
    rows: np.ndarray,
    known: Labelled | None,
    last: Path | None,
) -> tuple[Answers, Estimate | None]:
    """``ask_matrices`` by a linear model from the noisy sums of a few steps.

    Where a cap ends the steps early, by those that were answered. Leaves linear.safetensors in the
    folder and, for classes, probabilities.npy (float32 [n, c], of the ``features`` in their order).
    """
    form, receipts, classes = asked.form, list[Receipt](), extractor.num_classes
    assert form.steps is not None
    assert form.noise is not None

    def ask(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        sent = _stored(folder, f"weights_{step}.npz", "weights", lambda: weights)
        noisy = count(Weights(sent, asked.slot))
        receipts.append(noisy.receipt)
        return sent, None if noisy.counts is None else noisy.counts[0]

    length = unit_length(extractor, features.shape[1])
    again = last is not None and asked.periods == 1  # the first sum is known, and charged once
    noise, steps, gain, alike = form.noise, form.steps + again, form.gain, folder is None
    how = FitSettings(form.labels, classes, length, noise, form.clip, steps, gain, alike)
    earlier = None if last is None else stored_fit(last, extractor.sha256())
    model = fit(ask, features, how, known, earlier, again)
    if model is None:
        labels = numbered_space(form.labels, classes).no_labels(len(rows))
        refused = np.full(len(rows), Outcome.CAP_REACHED, dtype=np.uint8)
        return Answers(labels, refused, together(receipts)), None
    says: Says = model.says
    estimate = None if folder is None else _estimate(model, form, features)
    if form.labels == "class":
        says = with_neighbours(says, features)
    if folder is not None:
        if form.labels == "class":
            write_arrays(folder / PROBABILITIES, says(features))
        write_file(folder / CLASSIFIER, model.to_bytes(extractor.sha256()))
    return Answers(*model.to_labels(says(rows), form.margin), together(receipts)), estimate


def _estimate(model: LinearModel, form: QueryForm, features: np.ndarray) -> Estimate:
    if not model.some_records:
        return NOTHING_KNOWN
    if model.explained is not None:
        return by_moments(*model.explained, min(len(features), MAX_ROWS))
    predicted, doubt = model.says(features), model.doubt
    sure = [model.certainty(predicted, factor) for factor in doubt or (1.0,)]
    span = (0.0, 1.0) if doubt is None else (float(sure[1].mean()), float(sure[2].mean()))
    estimate = by_probabilities(sure[0], span)
    estimate = _at_least(estimate, model.known)
    if model.shares is None:
        return estimate
    # Less than FEW deviations of the noise that one step with the whole budget would have.
    assert form.noise is not None
    private, fewest = model.shares.private, FEW * form.noise / math.sqrt(form.steps or 1)
    records = private * model.records[0]
    few = {str(k): round(records[k]) for k in np.flatnonzero(records < fewest)}
    unseen = (records < UNSEEN * fewest) & (private * len(private) < RARE)
    why = RARE_CLASS if unseen.any() else estimate.why
    return replace(estimate, few=few, why=FOREIGN if model.shares.foreign else why)


def together(receipts: Sequence[Receipt]) -> Receipt:
    """The receipt of consecutive queries; where the ledger stands is the last one's."""
    return replace(
        receipts[-1],
        asked=sum(receipt.asked for receipt in receipts),
        served=sum(receipt.served for receipt in receipts),
        charged={
            release: sum(receipt.charged[release] for receipt in receipts)
            for release in receipts[0].charged
        },
    )
