"""Candidates of a search for private_linear: principal axes, steps and clipping."""

from __future__ import annotations

from dataclasses import replace

from labelwall.teacher.mechanisms.planning import View
from labelwall.teacher.mechanisms.private_linear.mechanism import PrivateLinear
from labelwall.teacher.mechanisms.rehearsed import RehearsedPlanner

AXES = (4, 8, 16, 32, 64, 128, 256)
STEPS = (1, 2)
CLIPS = (0.5, 1.0)
MARGINS = (0.1, 0.2, 0.4, 0.6, 0.8)  # in probability


def candidates(view: View, classes: int) -> list[PrivateLinear]:
    """Every number of axes up to the view's, with one step and two; it needs no whitening."""
    if view.whiten:
        return []
    if not view.axes:
        return [PrivateLinear(steps=steps) for steps in STEPS]
    axes = sorted({min(count, view.axes) for count in AXES})
    return [PrivateLinear(steps=steps, axes=count) for count in axes for steps in STEPS]


def around(view: View, found: PrivateLinear) -> list[PrivateLinear]:
    """A half more and a third fewer axes; one more step; the other clipping."""
    near = [replace(found, clip=clip) for clip in CLIPS]
    near += [replace(found, steps=found.steps + 1)]
    if found.axes is not None:
        sizes = (round(found.axes / 1.5), min(round(found.axes * 1.5), view.axes))
        near += [replace(found, axes=count) for count in sizes if count]
    return near


def stricter(found: PrivateLinear) -> list[PrivateLinear]:
    """With margins, rising."""
    return [replace(found, margin=margin) for margin in MARGINS]


PLANNER = RehearsedPlanner(candidates, around, stricter)
