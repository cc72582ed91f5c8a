"""What each kind of mechanism tries on public rows; PLANNERS has None where that is nothing.

Features decide what fits them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ...teacher.mechanisms.ind_knn import IndKnn
from ...teacher.mechanisms.sums import (
    MAX_NEIGHBOURS,
    MAX_STEPS,
    ROWS_A_CELL,
    LinearSums,
    ReverseKnn,
)
from ...teacher.mechanisms.values import MAX_NEIGHBOURS as MAX_VALUES
from ...teacher.mechanisms.values import Regression
from ...teacher.mechanisms.votes import SampledVotes
from ...teacher.search.kernels import STEPS as THRESHOLD_STEPS
from .planner import Candidates, View

CELLS = (10, 40, 160, 640)
LEAST_CELLS = 4  # of a class: with fewer the start of k-means decides which groups of rows merge
PLAIN = 64  # dimensions beyond which neighbours want whitened features
SHAPES = ((1, 1), (2, 3))  # neighbours and row_neighbours
FACTORS = (0.5, 0.7, 1.4, 2.0)  # of the cells, around a good number
MARGINS = (1.0, 2.0, 4.0, 8.0)  # in deviations of the noise on a row's votes
AXES = (4, 8, 16, 32, 64, 128, 256)
# In half ranges; residuals of classes and attributes are clipped as their default says.
CLIPS = {"value": (0.1, 0.25, 0.5)}
LINEAR_MARGINS = (0.1, 0.2, 0.4, 0.6, 0.8)  # in probability
ONE_STEP_AXES = (16, 48)  # with a single step, for tiny budgets: many want too much noise
SAMPLING = (1.0, 0.5, 0.25, 0.1, 0.04, 0.015)
PARTS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)  # of the sampled records, that vote
MIN_VOTES, MAX_VOTES = 10, 2_000  # fewer are mostly noise; longer lists take long to search
THRESHOLDS = (0.0, 0.25, 0.5, 0.75)  # share of the votes
# On votes. The argmax curve of a new sigma takes up to 9 s of CPU in this range, minutes outside.
# Halving votes, sampling probability and noise gives nearly the same price and answers, so the
# range costs little accuracy.
MOST_NOISE, LEAST = 40.0, 3.0  # the least noise is a third of the most
SCREENING = (1.0, 2.0, 4.0)  # noise of the screening over that of the votes
STEPS = (1.4, 1.4, 1.2, 1.2, 1.1)  # around good votes
HIGHER = 50  # steps of a threshold from none to all votes
MOVES = (  # of the votes, the sampling probability, the noise of votes, and of the screening
    *((1, 1, 0, 0), (0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 1, 1, 1)),
)
SAMPLED = (0.03, 0.1, 0.3)  # of the records, for values
LEAST_K = 5  # records, that a value is from
LEVELS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7)  # of the cosine, for individual budgets
LABEL_NOISE = (0.3, 0.9, 2.7)  # in roots of the threshold, between which and 1 weights lie
BUDGET_STEPS = (1.6, 1.25)
L = TypeVar("L", bound=LinearSums)
R = TypeVar("R", bound=Regression)
S = TypeVar("S", bound=SampledVotes)


def neighbourly(view: View) -> bool:
    """Whether near rows are alike in these features: they are few, or whitened."""
    return bool(view.whiten) or view.dimensions <= PLAIN


def cells(mechanism: ReverseKnn, view: View) -> list[ReverseKnn]:
    """Every number of cells with hard and with soft votes."""
    if not neighbourly(view):
        return []
    least, most = _cells(view)
    cells = sorted({min(max(count, least), most) for count in CELLS})
    return [
        ReverseKnn(
            centroids=count, neighbours=min(neighbours, count), row_neighbours=min(near, count)
        )
        for count in cells
        for neighbours, near in SHAPES
    ]


def _cells(view: View) -> tuple[int, int]:
    """The fewest and the most cells that public rows tell apart."""
    most = max(1, view.rows // ROWS_A_CELL)
    return min(LEAST_CELLS * view.classes, most), most


def around_cells(view: View, good: ReverseKnn) -> list[ReverseKnn]:
    """Twice, half as many cells, and between; either kind of neighbours, one more and one fewer."""
    least, most = _cells(view)
    highest = min(good.centroids, MAX_NEIGHBOURS)
    near = [
        replace(good, centroids=count)
        for count in (min(round(good.centroids * factor), most) for factor in FACTORS)
        if count >= max(good.neighbours, good.row_neighbours, least)
    ]
    for name in ("neighbours", "row_neighbours"):
        values = (getattr(good, name) + step for step in (-1, 1, 3))
        near += [replace(good, **{name: value}) for value in values if 1 <= value <= highest]
    return near


def stricter_cells(view: View, good: ReverseKnn) -> list[ReverseKnn]:
    """With margins, rising."""
    noise = good.require("sigma") * math.sqrt(2 * good.row_neighbours)
    return [replace(good, margin=float(round(margin * noise))) for margin in MARGINS]


def linear(mechanism: L, view: View) -> list[L]:
    """Numbers of axes up to the view's, some of them with one step; it needs no whitening."""
    kind = type(mechanism)
    if view.whiten:
        return []
    if not view.axes:
        return [kind()]
    many, few = (
        [kind(axes=count) for count in sorted({min(count, view.axes) for count in counts})]
        for counts in (AXES, ONE_STEP_AXES)
    )
    return many + [replace(each, steps=1) for each in few]


def around_linear(view: View, good: L) -> list[L]:
    """A half more and a third fewer axes; twice and half the steps; the other clipping."""
    near = [replace(good, clip=clip) for clip in CLIPS.get(good.label_space, ())]
    steps = (good.steps // 2, min(2 * good.steps, MAX_STEPS))
    near += [replace(good, steps=count) for count in steps if count]
    if good.axes is not None:
        sizes = (round(good.axes / 1.5), min(round(good.axes * 1.5), view.axes))
        near += [replace(good, axes=count) for count in sizes if count]
    return near


def stricter_linear(view: View, good: L) -> list[L]:
    """With margins, rising, where its labels have any."""
    margins = LINEAR_MARGINS if good.label_space != "value" else ()
    return [replace(good, **dict[str, Any](margin=margin)) for margin in margins]


def votes(mechanism: S, view: View) -> list[S]:
    """Every share of the records that votes, sampling probability, threshold and screening."""
    if not neighbourly(view):
        return []
    noise = MOST_NOISE / (1.0 if mechanism.swap else math.sqrt(2))
    sized = [
        mechanism.sized(size, gamma, view.records, threshold=round(level * size), sigma_vote=noise)
        for size, gamma in _sizes(view, PARTS, SAMPLING, (MIN_VOTES, MAX_VOTES))
        for level in THRESHOLDS
    ]
    return [replace(each, sigma_screen=ratio * noise) for each in sized for ratio in SCREENING]


def around_votes(step: float, view: View, good: S) -> list[S]:
    """More and fewer votes, records to sample, and noise, each by ``step``; other thresholds."""
    near, size = [], good.expected_votes(view.records)
    screen, vote = good.require("sigma_screen"), good.require("sigma_vote")
    most = MOST_NOISE / (1.0 if good.swap else math.sqrt(2))
    for factor in (step, 1 / step):
        for votes, sampled, noise, screening in MOVES:
            count, gamma = round(size * factor**votes), good.sample_rate * factor**sampled
            level = round(good.threshold * factor**votes)
            sigma = min(vote * factor**noise, most)
            if MIN_VOTES <= count <= MAX_VOTES and gamma <= 1 and sigma * LEAST >= most:
                other = good.sized(count, gamma, view.records, threshold=level, sigma_vote=sigma)
                near.append(replace(other, sigma_screen=screen * factor**screening))
    for more in (-0.3, -0.15, 0.15, 0.3):
        level = round(good.threshold + more * (step - 1) * size)
        near.append(replace(good, threshold=min(max(level, 0), round(size))))
    return near


def stricter_votes(view: View, good: S) -> list[S]:
    """With thresholds, rising."""
    size = good.expected_votes(view.records)
    levels = range(good.threshold, int(size), math.ceil(size / HIGHER))
    return [replace(good, threshold=level) for level in levels[1:]]


def values(mechanism: R, view: View) -> list[R]:
    """Every sampling probability with every share of the records that votes, unscreened."""
    if not neighbourly(view):
        return []
    return [
        replace(mechanism, k=k, sample_rate=gamma, threshold=None)
        for k, gamma in _sizes(view, PARTS, SAMPLED, (LEAST_K, MAX_VALUES))
    ]


def budgets(mechanism: IndKnn, view: View) -> list[IndKnn]:
    """Every threshold with every noise on labels; the kernel stays."""
    if not neighbourly(view):
        return []
    return [
        _similar(mechanism, threshold, noise * math.sqrt(threshold))
        for threshold in sorted({threshold_at(mechanism, level) for level in LEVELS})
        for noise in LABEL_NOISE
    ]


def around_budgets(step: float, view: View, good: IndKnn) -> list[IndKnn]:
    """A higher and a lower threshold, more and less noise on labels, each by ``step``, and both."""
    return [
        _similar(good, good.threshold * step**near, good.sigma_label * step**noise)
        for near, noise in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1))
    ]


def _similar(mechanism: IndKnn, threshold: float, noise: float) -> IndKnn:
    threshold = min(max(1, round(threshold * THRESHOLD_STEPS)) / THRESHOLD_STEPS, 1.0)
    return replace(mechanism, threshold=threshold, sigma_label=float(f"{max(noise, 0.001):.3g}"))


def threshold_at(mechanism: IndKnn, level: float) -> float:
    """The kernel's value where the cosine of two unit vectors is ``level``.

    Their squared distance is 2 - 2 level.
    """
    if mechanism.kernel == "cosine":
        return level
    return math.exp(-max(0, 2 - 2 * level - mechanism.near**2) / mechanism.bandwidth**2)


def _sizes(
    view: View, parts: Sequence[float], sampling: Sequence[float], ends: tuple[int, int]
) -> list[tuple[int, float]]:
    """(records that vote, probability to be sampled), for each part of the records."""
    low, high = ends
    return sorted(
        {
            (min(max(round(gamma * part * view.records), low), high), gamma)
            for gamma in sampling
            for part in parts
        }
    )


OF_CELLS: Candidates[Any] = Candidates(cells, [around_cells], stricter_cells)
OF_SUMS: Candidates[Any] = Candidates(linear, [around_linear], stricter_linear)
AROUND_VOTES = [partial(around_votes, step) for step in STEPS]
OF_VOTES: Candidates[Any] = Candidates(votes, AROUND_VOTES, stricter_votes, times=4)
OF_VALUES: Candidates[Any] = Candidates(values)
AROUND_BUDGETS = [partial(around_budgets, step) for step in BUDGET_STEPS]
OF_BUDGETS: Candidates[Any] = Candidates(budgets, AROUND_BUDGETS, times=2)
PLANNERS: dict[str, Candidates[Any] | None] = {
    "private_knn": OF_VOTES,
    "private_radius": OF_VOTES,
    "ind_knn": OF_BUDGETS,
    "reverse_knn": OF_CELLS,
    "private_linear": OF_SUMS,
    "private_linear_attributes": OF_SUMS,
    "private_linear_value": OF_SUMS,
    "private_knn_mean": OF_VALUES,
    "private_knn_median": OF_VALUES,
    "naive_knn": None,
    "lnmax": None,
    "gnmax": None,
    "confident_gnmax": None,
    "radius": None,
    "batch_knn": None,
    "private_knn_attributes": None,
    "gnmax_attributes": None,
    "score": None,
    "score_attributes": None,
    "score_value": None,
}
