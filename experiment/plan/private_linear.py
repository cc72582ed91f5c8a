"""Candidates of a search for linear models: principal axes, steps and clipping."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ...teacher.mechanisms.private_linear import MAX_STEPS, LinearSums
from .goal import View
from .rehearsed import RehearsedPlanner

AXES = (4, 8, 16, 32, 64, 128, 256)
# In half ranges; residuals of classes and attributes are clipped as their default says.
CLIPS = {"value": (0.1, 0.25, 0.5)}
MARGINS = (0.1, 0.2, 0.4, 0.6, 0.8)  # in probability
ONE_STEP_AXES = (16, 48)  # with a single step, for tiny budgets: many want too much noise

L = TypeVar("L", bound=LinearSums)


def planner(made: type[L]) -> RehearsedPlanner[L]:
    """The search for one of the linear models."""
    return RehearsedPlanner(partial(candidates, made), around, stricter)


def candidates(made: type[L], view: View, classes: int) -> list[L]:
    """Numbers of axes up to the view's, some of them with one step; it needs no whitening."""
    if view.whiten:
        return []
    if not view.axes:
        return [made()]
    many, few = (
        [made(axes=count) for count in sorted({min(count, view.axes) for count in counts})]
        for counts in (AXES, ONE_STEP_AXES)
    )
    return many + [replace(each, steps=1) for each in few]


def around(view: View, found: L) -> list[L]:
    """A half more and a third fewer axes; twice and half the steps; the other clipping."""
    near = [replace(found, clip=clip) for clip in CLIPS.get(found.label_space, ())]
    steps = (found.steps // 2, min(2 * found.steps, MAX_STEPS))
    near += [replace(found, steps=count) for count in steps if count]
    if found.axes is not None:
        sizes = (round(found.axes / 1.5), min(round(found.axes * 1.5), view.axes))
        near += [replace(found, axes=count) for count in sizes if count]
    return near


def stricter(found: L) -> list[L]:
    """With margins, rising, where its labels have any."""
    margins = MARGINS if found.label_space != "value" else ()
    fields: list[dict[str, Any]] = [{"margin": margin} for margin in margins]
    return [replace(found, **more) for more in fields]
