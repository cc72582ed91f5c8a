"""The search for the parameters of each kind of mechanism, and what it tries; None where none is.

Votes and individual budgets are simulated (votes.py, values.py, ind_knn.py), as the noise of a
sampled vote takes seconds to price; mechanisms that ask once a round are rehearsed (search.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ...teacher.mechanisms.base import Mechanism
from ...teacher.mechanisms.private_linear import (
    MAX_STEPS,
    LinearSums,
    PrivateLinear,
    PrivateLinearAttributes,
    PrivateLinearValue,
)
from ...teacher.mechanisms.reverse_knn import MAX_NEIGHBOURS, ReverseKnn
from ...wall.errors import InvalidInput
from . import ind_knn, values, votes
from .goal import Planner, View
from .search import Candidates

CELLS = (10, 40, 160, 640)
ROWS_A_CELL = 3  # public rows, at least: fewer do not tell where cells are
PLAIN = 64  # dimensions beyond which neighbours want whitened features
SHAPES = ((1, 1), (2, 3))  # neighbours and reach
FACTORS = (0.5, 0.7, 1.4, 2.0)  # of the cells, around a good number
MARGINS = (1.0, 2.0, 4.0, 8.0)  # in deviations of the noise on a row's votes
AXES = (4, 8, 16, 32, 64, 128, 256)
# In half ranges; residuals of classes and attributes are clipped as their default says.
CLIPS = {"value": (0.1, 0.25, 0.5)}
LINEAR_MARGINS = (0.1, 0.2, 0.4, 0.6, 0.8)  # in probability
ONE_STEP_AXES = (16, 48)  # with a single step, for tiny budgets: many want too much noise
L = TypeVar("L", bound=LinearSums)


def cells(view: View, classes: int) -> list[ReverseKnn]:
    """Every number of cells with hard and with soft votes."""
    if not view.whiten and view.dimensions > PLAIN:
        return []
    most = max(1, view.rows // ROWS_A_CELL)
    cells = sorted({min(count, most) for count in (classes, *CELLS) if count >= classes} or {most})
    return [
        ReverseKnn(cells=count, neighbours=min(neighbours, count), reach=min(reach, count))
        for count in cells
        for neighbours, reach in SHAPES
    ]


def around_cells(view: View, good: ReverseKnn) -> list[ReverseKnn]:
    """Twice and half as many cells, and between; neighbours and reach one more and one fewer."""
    most = max(1, view.rows // ROWS_A_CELL)
    highest = min(good.cells, MAX_NEIGHBOURS)
    near = [
        replace(good, cells=count)
        for count in (min(round(good.cells * factor), most) for factor in FACTORS)
        if count >= max(good.neighbours, good.reach)
    ]
    for name in ("neighbours", "reach"):
        values = (getattr(good, name) + step for step in (-1, 1, 3))
        near += [replace(good, **{name: value}) for value in values if 1 <= value <= highest]
    return near


def stricter_cells(good: ReverseKnn) -> list[ReverseKnn]:
    """With margins, rising."""
    noise = good.require("sigma") * math.sqrt(2 * good.reach)
    return [replace(good, margin=float(round(margin * noise))) for margin in MARGINS]


def linear(kind: type[L], view: View, classes: int) -> list[L]:
    """Numbers of axes up to the view's, some of them with one step; it needs no whitening."""
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


def stricter_linear(good: L) -> list[L]:
    """With margins, rising, where its labels have any."""
    margins = LINEAR_MARGINS if good.label_space != "value" else ()
    fields: list[dict[str, Any]] = [{"margin": margin} for margin in margins]
    return [replace(good, **more) for more in fields]


def _of_linear(kind: type[L]) -> Candidates[L]:
    return Candidates(partial(linear, kind), around_linear, stricter_linear)


REHEARSED: dict[str, Candidates[Any]] = {
    "reverse_knn": Candidates(cells, around_cells, stricter_cells),
    "private_linear": _of_linear(PrivateLinear),
    "private_linear_attributes": _of_linear(PrivateLinearAttributes),
    "private_linear_value": _of_linear(PrivateLinearValue),
}
PLANNERS: dict[str, Planner | None] = {
    "private_knn": votes.plan,
    "private_radius": votes.plan,
    "ind_knn": ind_knn.plan,
    **{kind: candidates.plan for kind, candidates in REHEARSED.items()},
    "private_knn_mean": values.plan,
    "private_knn_median": values.plan,
    "naive_knn": None,
    "lnmax": None,
    "gnmax": None,
    "confident_gnmax": None,
    "radius": None,
    "batch_knn": None,
    "private_knn_attributes": None,
    "gnmax_attributes": None,
}


def check_rounds(mechanism: Mechanism, own: Sequence[Mechanism]) -> None:
    """Raise InvalidInput for rounds with ``own`` mechanisms: the choice would replace them."""
    for other in own:
        if other != mechanism:
            rule = f"left out, or {mechanism.kind}: all rounds share what is searched for"
            raise InvalidInput("rounds.mechanism", rule, other.kind)
