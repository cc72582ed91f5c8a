"""A round on the public side that asks by matrices: fit to noisy sums, then label any rows.

Reverse kNN clusters the PUBLIC rows and asks for one histogram, whose labels the rows inherit.
A linear model asks for one noisy gradient after another (experiment/linear).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from ...teacher.features.embedder import unit_length
from ...teacher.mechanisms.base import QueryForm
from ...wall.errors import InvalidInput
from ...wall.label_kinds import numbered_space
from ...wall.matrices import (
    COUNT,
    SENSITIVITY,
    Cells,
    Matrix,
    NoisyCounts,
    Weights,
    inherit,
    nearest_cells,
)
from ...wall.messages import Answers, ExtractorSpec, Outcome, Receipt
from ..config.groups import Round
from ..linear.labelled import Rows
from ..linear.measure import AXES_BY_ROWS, MANY_STEPS, MAX_ROWS, FitSettings, carried_axes
from ..linear.model import SURE, LinearModel, Says, fit, with_neighbours
from .quality import FOREIGN, NOTHING_KNOWN, Estimate, by_counts, by_moments, by_probabilities
from .query_selection import k_means
from .run_folder import CLASSIFIER, PROBABILITIES, npy, npz, write_file

SIMILAR = 1.5  # numbers of axes are as good that differ by less
OFF = 2.0  # a guess of the records is wrong where it is so many times too large or too small
FEW = 20.0  # deviations of the noise: a class with fewer records is hardly known
ITERATIONS = 50  # of Lloyd's algorithm; later ones move centres by less than their rounding


class Counting(Protocol):
    """What such a round needs of a teacher, wherever it runs."""

    def count(self, matrix: Matrix) -> NoisyCounts: ...


@dataclass(frozen=True)
class MatrixRound:
    """A round's question.

    Its matrices are written to the ``folder`` before they are sent. A resumed round must send the
    same ones, since others would be charged again.
    """

    query_form: QueryForm  # what the mechanism says of its matrices, with the noise
    slot: int  # the entry of the plan that pays
    seed: int  # of public randomness
    classes: int
    length: float  # of a unit vector after quantisation
    extractor: str  # hash of the extractor of the features
    folder: Path
    known: Rows | None = None  # public rows whose labels are learned, too

    def stored(self, file: str, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array ``name`` of an npz ``file`` of the folder, computed and written if missing."""
        path = self.folder / file
        if not path.exists():
            write_file(path, npz(**{name: make()}))
        with np.load(path, allow_pickle=False) as stored:
            return np.asarray(stored[name])


def question_of(
    current: Round, classes: int, extractor: ExtractorSpec, dimensions: int, folder: Path
) -> MatrixRound:
    """A round's question about features of so many ``dimensions``."""
    length, digest = unit_length(extractor, dimensions), extractor.sha256()
    return MatrixRound(current.form, current.slot, current.seed, classes, length, digest, folder)


def known_rows(labels: np.ndarray | None, features: np.ndarray) -> Rows | None:
    """Of all public rows those whose labels are learned; ``labels``: int64 [n], -1 for others."""
    return None if labels is None else (features[labels >= 0], labels[labels >= 0])


def ask_matrices(
    teacher: Counting,
    asked: MatrixRound,
    features: np.ndarray,
    rows: np.ndarray | None = None,
) -> tuple[Answers, Estimate | None]:
    """Labels of ``rows`` by what matrices from PUBLIC ``features`` count.

    Both are features of one extractor, int8 [n, d]; the rows are those of the matrices where
    ``rows`` is None. The estimate is of the labels of ``features``. Raises InvalidInput where there
    are too few of them.
    """
    solve = fit_cells if asked.query_form.matrix == "cells" else fit_weights
    return solve(teacher, asked, features, features if rows is None else rows)


def axes_by_count(
    teacher: Counting, asked: MatrixRound, kept: int, guess: int, plain: np.ndarray
) -> int | None:
    """How many axes the records carry, by a round's first sum, which counts them; None where that
    does not speak against a ``guess`` of their number.

    ``kept``: axes that the guess led to, which the sum is asked with; ``plain``: features of PUBLIC
    rows that have them, [n, d].
    Only many steps for classes can spare one: where axes change, one is left out of the fit.
    Otherwise the fit asks the same sum again, which is charged once.
    """
    form, steps = asked.query_form, asked.query_form.steps or 0
    if form.axes is None or form.labels != "class" or form.gain != 1 or steps < MANY_STEPS:
        return None
    assert form.noise is not None
    zeros = np.zeros((kept + 1, asked.classes), dtype=np.int16)
    counts = teacher.count(Weights(zeros, asked.slot)).counts
    if counts is None:  # a cap refuses it
        return None
    noise = form.noise * SENSITIVITY / COUNT
    records = max(float(counts[0, -1]) / COUNT, noise / 2)
    if abs(records - guess) < noise or guess / OFF < records < guess * OFF:
        return None
    strength = records * math.sqrt(steps) / (form.noise * asked.classes)
    most = max(1, min(int(len(plain) * AXES_BY_ROWS), plain.shape[1]))
    axes = carried_axes(strength, asked.classes, most)
    return None if kept / SIMILAR < axes < kept * SIMILAR else axes


def one_step_fewer(asked: Round) -> Round:
    """A round after its first sum was spent on other axes."""
    return replace(asked, form=replace(asked.form, steps=(asked.form.steps or 1) - 1))


def fit_cells(
    teacher: Counting, asked: MatrixRound, features: np.ndarray, rows: np.ndarray
) -> tuple[Answers, Estimate | None]:
    """``ask_matrices`` by one noisy histogram over clusters of the features."""
    asks = asked.query_form
    cells, noise = asks.centroids, asks.noise
    assert cells is not None
    assert noise is not None
    centers = asked.stored("cells.npz", "centers", lambda: cluster(features, cells, asked.seed))
    histogram = teacher.count(Cells(centers, asked.slot))

    own = nearest_cells(features, centers, asks.row_neighbours)
    estimate, votes = None, histogram.counts
    if votes is not None:
        votes = votes if asks.parts == 1 else votes / asks.parts
        some_records = float(votes.sum()) > SURE * noise * votes.size**0.5
        estimate = by_counts(votes, own, asks.margin, noise) if some_records else NOTHING_KNOWN
    nearest = own if rows is features else nearest_cells(rows, centers, asks.row_neighbours)
    return Answers(*inherit(votes, nearest, asks.margin), histogram.receipt), estimate


def cluster(features: np.ndarray, cells: int, seed: int) -> np.ndarray:
    """k-means centres of PUBLIC features (int8 [n, d]), rounded to integers: int8 [cells, d].

    Features with few distinct values give equal centres; all but the first of those stay empty.
    """
    if cells > len(features):
        rule = f"at most {len(features)}, the public rows of a round"
        raise InvalidInput("mechanism.centroids", rule, cells)
    centers, _ = k_means(features.astype(np.float32), cells, seed=seed, iterations=ITERATIONS)
    return np.rint(centers).astype(np.int8)


def fit_weights(
    teacher: Counting, asked: MatrixRound, features: np.ndarray, rows: np.ndarray
) -> tuple[Answers, Estimate | None]:
    """``ask_matrices`` by a linear model from the noisy sums of a few steps.

    Where a cap ends the steps early, by those that were answered. Leaves linear.safetensors in the
    folder and, for classes, probabilities.npy (float32 [n, c], of the ``features`` in their order).
    """
    asks, receipts = asked.query_form, list[Receipt]()
    assert asks.steps is not None
    assert asks.noise is not None

    def ask(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        sent = asked.stored(f"weights_{step}.npz", "weights", lambda: weights)
        noisy = teacher.count(Weights(sent, asked.slot))
        receipts.append(noisy.receipt)
        return sent, None if noisy.counts is None else noisy.counts[0]

    how = FitSettings(
        asks.labels, asked.classes, asked.length, asks.noise, asks.clip, asks.steps, asks.gain
    )
    model = fit(ask, features, how, asked.known)
    if model is None:
        labels = numbered_space(asks.labels, asked.classes).no_labels(len(rows))
        refused = np.full(len(rows), Outcome.CAP_REACHED, dtype=np.uint8)
        return Answers(labels, refused, together(receipts)), None
    says: Says = model.says
    if not model.some_records:
        estimate = NOTHING_KNOWN
    elif model.explained is not None:
        estimate = by_moments(*model.explained, min(len(features), MAX_ROWS))
    else:
        predicted, doubt = says(features), model.doubt
        sure = [model.certainty(predicted, factor) for factor in doubt or (1.0,)]
        span = (0.0, 1.0) if doubt is None else (float(sure[1].mean()), float(sure[2].mean()))
        few = few_records(model, asks) if model.shares else {}
        estimate = replace(by_probabilities(sure[0], span), few=few)
        if model.shares and model.shares.foreign:
            estimate = replace(estimate, why=FOREIGN)
    if asks.labels == "class":
        says = with_neighbours(says, features)
        write_file(asked.folder / PROBABILITIES, npy(says(features)))
    write_file(asked.folder / CLASSIFIER, model.to_bytes(asked.extractor))
    return Answers(*model.to_labels(says(rows), asks.margin), together(receipts)), estimate


def few_records(model: LinearModel, form: QueryForm) -> dict[str, int]:
    """Numbers of the classes with less than FEW deviations of the noise that one step with the
    whole budget would have, and about how many records each has.
    """
    assert model.shares is not None
    assert form.noise is not None
    records = model.shares.private * model.records[0]
    fewest = FEW * form.noise / math.sqrt(form.steps or 1)
    return {str(k): round(each) for k, each in enumerate(records) if each < fewest}


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
