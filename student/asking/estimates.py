"""Estimates by released values alone: how many labels are right.

Neither private rows nor test labels enter, so they cost nothing.
"""

import math
from dataclasses import replace

import numpy as np

from ...wall.matrices import inherit
from ...wall.messages import ABSTAINED
from ...wall.questions import CellsForm, SumsForm
from ..held_out import Cleaned
from ..linear.linear_model import LinearModel
from ..linear.measure import MAX_ROWS
from ..results import AGREEMENT, COUNTS, MOMENTS, PROBABILITIES, UNKNOWN, Estimate
from .tuning import FEW, LEAST_VOTES, MOST_ERROR, PROBABILITY_ERROR, RARE, UNSEEN

DRAWS = 20  # of the split of noisy counts into two independent ones
HIDDEN = "the noise hides how sure labels may be"
RARE_CLASS = "public rows may have more of a class with few records than is seen"
FOREIGN = "private and public rows seem to differ in more than how often each class occurs"
DRAWN = "public rows are drawn, so that none has a right label"

# The estimate by counts that are not above their noise: there may be no records at all
NOTHING_KNOWN = Estimate(right=0.0, error=1.0, by=UNKNOWN)


def by_counts(
    counts: np.ndarray, cells: np.ndarray, margin: float, noise: float | np.ndarray
) -> Estimate:
    """The share of votes that fall on the label of their cell.

    ``counts``: noisy votes [m, c], with ``noise`` their deviation, or each class's; ``cells``:
    int64 [n, row_neighbours], each public row's cells. Labels of counts plus a Gaussian draw are
    scored by the counts minus that draw, whose noise is independent of it (data thinning, Neufeld
    et al. 2024): no class is counted right because its noise made it win. Pessimistic: the labels
    scored have twice the noise's variance, and rows with different labels share the votes of
    their cell (CIFAR-10's features, 86 centroids, row_neighbours 3: 50% for 61%).
    """
    rng, total = np.random.default_rng(0), float(counts.sum())
    common = math.sqrt(float(np.mean(np.square(noise))))
    spread = common * math.sqrt(counts.size)  # of the total
    votes, scores = max(total, spread, 1.0), list[float]()
    for _ in range(DRAWS):
        draw = rng.normal(0.0, np.maximum(noise, 1e-9), counts.shape)
        labels, _outcomes = inherit(counts + draw, cells, margin)
        shares = np.zeros(counts.shape)  # of the labels of each cell's rows
        answered = labels != ABSTAINED
        np.add.at(shares, (cells[answered, 0], labels[answered]), 1.0)
        rows = shares.sum(axis=1, keepdims=True)
        shares /= np.maximum(rows, 1.0)
        seen = (counts - draw)[rows[:, 0] > 0].sum()
        scores.append(float((shares * (counts - draw)).sum()) / max(float(seen), spread, 1.0))
    share = min(1.0, max(0.0, float(np.mean(scores))))
    error = math.hypot(common * math.sqrt(2 * len(counts)) / votes, _chance(share, votes))
    why = HIDDEN if error > MOST_ERROR else ""
    return Estimate(right=share, error=error, by=COUNTS, why=why)


def _chance(share: float, rows: float) -> float:
    return math.sqrt(max(share * (1 - share), 1e-4) / rows)


def by_probabilities(sure: np.ndarray, range_: tuple[float, float]) -> Estimate:
    """The mean probability of labels by a fitted classifier: float [n], of each row.

    ``range_``: the mean with a deviation of the noise taken off, and added. An estimate that noise
    moves by more than MOST_ERROR is none.
    """
    share, (low, high) = float(sure.mean()), range_
    error = math.hypot(_chance(share, len(sure)), max(PROBABILITY_ERROR, (high - low) / 2))
    why = HIDDEN if high - low > 2 * MOST_ERROR else ""
    return Estimate(right=share, error=error, by=PROBABILITIES, why=why)


def by_model(model: LinearModel, form: SumsForm, features: np.ndarray) -> Estimate:
    """The estimate of a linear model's labels of these PUBLIC ``features``, int8 [n, d]."""
    if not model.some_records:
        return NOTHING_KNOWN
    if model.explained is not None:
        explained, deviation = model.explained  # deviation of the noise on it
        chance = explained * math.sqrt(2 / min(len(features), MAX_ROWS))
        return Estimate(right=explained, error=math.hypot(deviation, chance), by=MOMENTS)
    predicted, doubt = model.says(features), model.doubt
    sure = [model.certainty(predicted, factor) for factor in doubt or (1.0,)]
    span = (0.0, 1.0) if doubt is None else (float(sure[1].mean()), float(sure[2].mean()))
    estimate = at_least(by_probabilities(sure[0], span), model.labels_given)
    if model.shares is None:
        return estimate
    # Less than FEW deviations of the noise that one step with the whole budget would have
    private, fewest = model.shares.private, FEW * form.deviation / math.sqrt(form.steps)
    records = private * model.records[0]
    few = {str(k): round(records[k]) for k in np.flatnonzero(records < fewest)}
    unseen = (records < UNSEEN * fewest) & (private * len(private) < RARE)
    if unseen.any():
        estimate = replace(estimate, why=RARE_CLASS)
    return noted(estimate, few=few, foreign=model.shares.foreign)


def at_least(estimate: Estimate, right: float) -> Estimate:
    """The estimate, but at least ``right``: the cross-validated accuracy of public labels alone.

    Answers hardly fall below it. 0: that accuracy is unknown.
    """
    if right and (estimate.why or right > estimate.right):
        return replace(estimate, right=right, why="")
    return estimate


def noted(estimate: Estimate, *, few: dict[str, int], foreign: bool) -> Estimate:
    """The estimate with classes of ``few`` records, and whether public rows are ``foreign``."""
    return replace(estimate, few=few, why=FOREIGN if foreign else estimate.why)


def few_votes(votes: np.ndarray, form: CellsForm) -> dict[str, int]:
    """Classes whose votes on a row would not be above their noise: about how many records vote.

    ``votes``: float64 [m, c], of which an equal part of the cells is taken for each class's.
    """
    total = votes.sum(axis=0)
    on_row = total * votes.shape[1] / len(votes) * math.sqrt(form.row_neighbours)
    records = total.clip(0) / form.neighbours
    few = np.flatnonzero(on_row < LEAST_VOTES * form.deviation)
    return {str(k): round(records[k]) for k in few}


def by_agreement(cleaned: Cleaned) -> Estimate | None:
    """How many held-out labels a student of the others gives; None if none was held out."""
    share = cleaned.agreement
    if share is None:
        return None
    return Estimate(right=share, error=_chance(share, cleaned.judged), by=AGREEMENT)
