"""Candidates of a search for private_linear: principal axes, steps and clipping."""

from __future__ import annotations

from dataclasses import replace

from labelwall.teacher.mechanisms.planning import View
from labelwall.teacher.mechanisms.private_linear.mechanism import PrivateLinear
from labelwall.teacher.mechanisms.rehearsed import RehearsedPlanner

AXES = (4, 8, 16, 32, 64, 128, 256)
STEPS = 2  # of the first candidates
CLIPS = (0.5, 1.0)
MARGINS = (0.1, 0.2, 0.4, 0.6, 0.8)  # in probability


def candidates(view: View, classes: int) -> list[PrivateLinear]:
    """Every number of axes up to the view's; it needs no whitening."""
    if view.whiten:
        return []
    if not view.axes:
        return [PrivateLinear(steps=STEPS)]
    axes = sorted({min(count, view.axes) for count in AXES})
    return [PrivateLinear(steps=STEPS, axes=count) for count in axes]


def around(view: View, found: PrivateLinear) -> list[PrivateLinear]:
    """A half more and a third fewer axes; a step more and a step less; the other clipping."""
    near = [replace(found, clip=clip) for clip in CLIPS]
    near += [replace(found, steps=found.steps + step) for step in (-1, 1) if found.steps + step]
    if found.axes is not None:
        sizes = (round(found.axes / 1.5), min(round(found.axes * 1.5), view.axes))
        near += [replace(found, axes=count) for count in sizes if count]
    return near


def stricter(found: PrivateLinear) -> list[PrivateLinear]:
    """With margins, rising."""
    return [replace(found, margin=margin) for margin in MARGINS]


PLANNER = RehearsedPlanner(candidates, around, stricter)
