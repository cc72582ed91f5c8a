"""All kinds of matrices that cross the wall."""

from __future__ import annotations

from .cells import Cells
from .weights import Weights

MATRICES: dict[str, type[Cells] | type[Weights]] = {made.kind: made for made in (Cells, Weights)}
