"""All kinds of matrices that cross the wall."""

from __future__ import annotations

from labelwall.wall.cells import Cells
from labelwall.wall.weights import Weights

MATRICES: dict[str, type[Cells] | type[Weights]] = {made.kind: made for made in (Cells, Weights)}
