"""Candidates of a search for reverse_knn: cells, neighbours, reach, and whitened features."""

from __future__ import annotations

import math
from dataclasses import replace

from ...teacher.mechanisms.reverse_knn import MAX_NEIGHBOURS, ReverseKnn
from .goal import View
from .rehearsed import RehearsedPlanner

CELLS = (10, 40, 160, 640)
ROWS_A_CELL = 3  # public rows, at least: fewer do not tell where cells are
PLAIN = 64  # dimensions beyond which neighbours want whitened features
SHAPES = ((1, 1), (2, 3))  # neighbours and reach
FACTORS = (0.5, 0.7, 1.4, 2.0)  # of the cells, around a good number
MARGINS = (1.0, 2.0, 4.0, 8.0)  # in deviations of the noise on a row's votes


def candidates(view: View, classes: int) -> list[ReverseKnn]:
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


def around(view: View, found: ReverseKnn) -> list[ReverseKnn]:
    """Twice and half as many cells, and between; neighbours and reach one more and one fewer."""
    most = max(1, view.rows // ROWS_A_CELL)
    highest = min(found.cells, MAX_NEIGHBOURS)
    near = [
        replace(found, cells=count)
        for count in (min(round(found.cells * factor), most) for factor in FACTORS)
        if count >= max(found.neighbours, found.reach)
    ]
    for name in ("neighbours", "reach"):
        values = (getattr(found, name) + step for step in (-1, 1, 3))
        near += [replace(found, **{name: value}) for value in values if 1 <= value <= highest]
    return near


def stricter(found: ReverseKnn) -> list[ReverseKnn]:
    """With margins, rising."""
    noise = found.require("sigma") * math.sqrt(2 * found.reach)
    return [replace(found, margin=float(round(margin * noise))) for margin in MARGINS]


PLANNER = RehearsedPlanner(candidates, around, stricter)
