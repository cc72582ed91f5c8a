"""A round that asks by cells: one noisy histogram, whose labels the public rows inherit.

Reverse kNN clusters the PUBLIC rows, and each private record votes in the nearest clusters.
"""

import math
from functools import partial

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.matrices import MAX_ENTRY, Cells, inherit, nearest_cells
from ...wall.messages import ABSTAINED, Answers
from ...wall.questions import CellsForm
from ..linear.labelled import Labelled
from ..linear.measure import unit_inputs
from ..linear.shift_of_counts import compared
from ..linear.tuning import SURE_COUNT
from ..results import Estimate
from .estimates import NOTHING_KNOWN, at_least, by_counts, few_votes, noted
from .matrix_round import MatrixRound
from .query_selection import k_means
from .tuning import VOTES

ITERATIONS = 50  # of Lloyd's algorithm; later ones move centres by less than their rounding


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
