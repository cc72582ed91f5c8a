"""What each kind of mechanism that is rehearsed tries on public rows: PLANNERS."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...student.asking.boosted import TREES
from ...teacher.mechanisms.ind_knn import IndKnn
from ...teacher.mechanisms.sums import MAX_NEIGHBOURS, MAX_STEPS, LinearSums, ReverseKnn
from ...teacher.mechanisms.values import MAX_NEIGHBOURS as MAX_VALUES
from ...teacher.mechanisms.values import Regression
from ...teacher.mechanisms.votes import SampledVotes
from ...teacher.search.kernels import STEPS as THRESHOLD_STEPS
from . import tuning
from .planner import Candidates, View


def neighbourly(view: View) -> bool:
    """Whether near rows are alike in these features: they are few, or whitened."""
    few = view.dimensions <= tuning.PLAIN and view.features != TREES
    return bool(view.whiten) or few


def cells(mechanism: ReverseKnn, view: View) -> list[ReverseKnn]:
    """Every number of cells with hard and with soft votes."""
    if not neighbourly(view):
        return []
    least, most = _cells(view)
    cells = sorted({min(max(count, least), most) for count in tuning.CELLS})
    return [
        ReverseKnn(
            centroids=count, neighbours=min(neighbours, count), row_neighbours=min(near, count)
        )
        for count in cells
        for neighbours, near in tuning.SHAPES
    ]


def _cells(view: View) -> tuple[int, int]:
    """The fewest and the most cells that public rows tell apart."""
    most = max(1, view.rows // tuning.ROWS_A_CELL)
    return min(tuning.LEAST_CELLS * view.classes, most), most


def around_cells(view: View, good: ReverseKnn) -> list[ReverseKnn]:
    """More and fewer cells, and more and fewer neighbours of either kind."""
    least, most = _cells(view)
    highest = min(good.centroids, MAX_NEIGHBOURS)
    near = [
        replace(good, centroids=count)
        for count in (min(round(good.centroids * factor), most) for factor in tuning.FACTORS)
        if count >= max(good.neighbours, good.row_neighbours, least)
    ]
    for name in ("neighbours", "row_neighbours"):
        values = (getattr(good, name) + step for step in (-1, 1, 3))
        near += [replace(good, **{name: value}) for value in values if 1 <= value <= highest]
    return near


def linear(mechanism: LinearSums, view: View) -> list[LinearSums]:
    """Numbers of axes up to the view's, some of them with one step; it needs no whitening."""
    kind = type(mechanism)
    if view.whiten:
        return []
    if not view.axes:  # a box, whose sides are its axes
        return [] if mechanism.axes else [kind()]
    many, few = (
        [kind(axes=count) for count in sorted({min(count, view.axes) for count in counts})]
        for counts in (tuning.AXES, tuning.ONE_STEP_AXES)
    )
    return many + [replace(each, steps=1) for each in few]


def around_linear(view: View, good: LinearSums) -> list[LinearSums]:
    """A half more and a third fewer axes; twice and half the steps; the other clipping."""
    near = [replace(good, clip=clip) for clip in tuning.CLIPS.get(good.label_space, ())]
    steps = (good.steps // 2, min(2 * good.steps, MAX_STEPS))
    near += [replace(good, steps=count) for count in steps if count]
    if good.axes is not None:
        sizes = (round(good.axes / 1.5), min(round(good.axes * 1.5), view.axes))
        near += [replace(good, axes=count) for count in sizes if count]
    return near


def votes(mechanism: SampledVotes, view: View) -> list[SampledVotes]:
    """Every share of the records that votes, sampling probability, threshold and screening."""
    if not neighbourly(view):
        return []
    noise, ends = _most_noise(mechanism), (tuning.MIN_VOTES, tuning.MAX_VOTES)
    sized = [
        mechanism.sized(size, gamma, view.records, threshold=round(level * size), sigma_vote=noise)
        for size, gamma in _sizes(view, tuning.SAMPLING, ends)
        for level in tuning.THRESHOLDS
    ]
    screens = [ratio * noise for ratio in tuning.SCREENING]
    return [replace(each, sigma_screen=screen) for each in sized for screen in screens]


def _most_noise(mechanism: SampledVotes) -> float:
    """The most noise on votes, by how far one record moves them."""
    return tuning.MOST_NOISE / (1.0 if mechanism.swap else math.sqrt(2))


def around_votes(step: float, view: View, good: SampledVotes) -> list[SampledVotes]:
    """More and fewer votes, records to sample, and noise, each by ``step``; other thresholds."""
    near, size = [], good.expected_votes(view.records)
    screen, vote = good.require("sigma_screen"), good.require("sigma_vote")
    most = _most_noise(good)
    for factor in (step, 1 / step):
        for votes, sampled, noise, screening in tuning.MOVES:
            count, gamma = round(size * factor**votes), good.sample_rate * factor**sampled
            level = round(good.threshold * factor**votes)
            sigma = min(vote * factor**noise, most)
            drawable = gamma <= 1 and sigma * tuning.LEAST >= most
            if drawable and tuning.MIN_VOTES <= count <= tuning.MAX_VOTES:
                other = good.sized(count, gamma, view.records, threshold=level, sigma_vote=sigma)
                near.append(replace(other, sigma_screen=screen * factor**screening))
    for more in (-0.3, -0.15, 0.15, 0.3):
        level = round(good.threshold + more * (step - 1) * size)
        near.append(replace(good, threshold=min(max(level, 0), round(size))))
    return near


def values(mechanism: Regression, view: View) -> list[Regression]:
    """Every sampling probability with every share of the records that votes, unscreened."""
    if not neighbourly(view):
        return []
    return [
        replace(mechanism, k=k, sample_rate=gamma, threshold=None)
        for k, gamma in _sizes(view, tuning.SAMPLED, (tuning.LEAST_K, MAX_VALUES))
    ]


def budgets(mechanism: IndKnn, view: View) -> list[IndKnn]:
    """Every threshold with every noise on labels; the kernel stays."""
    if not neighbourly(view):
        return []
    return [
        _similar(mechanism, threshold, noise * math.sqrt(threshold))
        for threshold in sorted({threshold_at(mechanism, level) for level in tuning.LEVELS})
        for noise in tuning.LABEL_NOISE
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
    """The kernel's value at a cosine of two unit vectors, whose squared distance is 2 - 2 level."""
    if mechanism.kernel == "cosine":
        return level
    return math.exp(-max(0, 2 - 2 * level - mechanism.near**2) / mechanism.bandwidth**2)


def _sizes(view: View, sampling: Sequence[float], ends: tuple[int, int]) -> list[tuple[int, float]]:
    """(records that vote, probability to be sampled), for each part of the records."""
    low, high = ends
    return sorted(
        {
            (min(max(round(gamma * part * view.records), low), high), gamma)
            for gamma in sampling
            for part in tuning.PARTS
        }
    )


OF_CELLS: Candidates[Any] = Candidates(cells, [around_cells])
OF_SUMS: Candidates[Any] = Candidates(linear, [around_linear])
AROUND_VOTES = [partial(around_votes, step) for step in tuning.STEPS]
OF_VOTES: Candidates[Any] = Candidates(votes, AROUND_VOTES, times=4)
OF_VALUES: Candidates[Any] = Candidates(values)
AROUND_BUDGETS = [partial(around_budgets, step) for step in tuning.BUDGET_STEPS]
OF_BUDGETS: Candidates[Any] = Candidates(budgets, AROUND_BUDGETS, times=2)
PLANNERS: dict[str, Candidates[Any]] = {
    "private_knn": OF_VOTES,
    "private_radius": OF_VOTES,
    "ind_knn": OF_BUDGETS,
    "reverse_knn": OF_CELLS,
    "private_linear": OF_SUMS,
    "private_linear_attributes": OF_SUMS,
    "private_linear_value": OF_SUMS,
    "private_knn_mean": OF_VALUES,
    "private_knn_median": OF_VALUES,
}
