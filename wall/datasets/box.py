"""Public rows of a table that are drawn, for whoever has none: a function of public facts alone.

The facts are ``data.ranges``, ``data.categories`` and the public test rows. A column of a drawn
row has one of the cells that these name, each equally often, whatever its other columns have.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np

from ..errors import InvalidInput, require_known
from ..labels import written
from .columns import DAY, LEAST_ROWS, MOST_VALUES, encoding_of
from .data_config import BOX, DataConfig
from .folders import constant_order

Cells = Mapping[str, np.ndarray]


def box_cells(config: DataConfig, test: Cells) -> dict[str, np.ndarray]:
    """The cells of which a drawn row has one, by the column.

    ``test``: columns of the PUBLIC test rows, none without them. Raises InvalidInput.
    """
    ranges, categories = config.ranges, config.categories
    if not (test or ranges or categories):
        rule = f"given with public: {BOX} without test rows, [low, high] by the column's name"
        cure = "Categories: --data.categories '{NAME: [a, b]}'."
        raise InvalidInput("data.ranges", rule, ranges, cure)
    for name in ("ranges", "categories") if test else ():
        require_known(f"data.{name}", vars(config)[name], test, "columns of the test rows")
    if both := [*ranges.keys() & categories.keys()]:
        raise InvalidInput("data.categories", "of other columns than data.ranges", both[0])
    declared = {name: _between(name, ends, config.drawn) for name, ends in ranges.items()}
    declared |= {name: _values(name, values) for name, values in categories.items()}
    return {**test, **declared}


def drawn_rows(cells: Cells, count: int) -> dict[str, np.ndarray]:
    """The columns of ``count`` drawn rows, by the cells of each column."""
    return {
        name: own[constant_order(f"{name} of drawn row {row}" for row in range(count)) % len(own)]
        for name, own in cells.items()
    }


def _between(name: str, ends: list[str], count: int) -> np.ndarray:
    """Cells at equal steps from the low to the high end, which say how the column is written."""
    rule = "[low, high], two numbers or two dates with low < high, for each column"
    bad = InvalidInput("data.ranges", rule, f"{name}: {ends}")
    if len(ends) != 2:
        raise bad
    cells = np.array(ends, dtype=object)
    (column,) = encoding_of({name: cells}).columns
    if column.kind not in ("number", "date") or column.gaps:
        raise bad
    low, high = column.entries(cells)[:, 0]
    if not low < high:
        raise bad
    between = np.linspace(low, high, count).astype(object)
    if column.kind == "date":
        if not any(":" in str(cell) for cell in cells):
            between = between // 1  # ends without a time of day: drawn dates have none either
        days = [datetime.fromtimestamp(day * DAY, UTC) for day in between]
        between[:] = [day.strftime(column.form) if column.form else str(day) for day in days]
    between[[0, -1]] = cells
    return between


def _values(name: str, values: list[str]) -> np.ndarray:
    """The values, as often as a category needs to count."""
    if len({*map(written, values)}) != len(values) or not 2 <= len(values) <= MOST_VALUES:
        rule = f"2 to {MOST_VALUES} different values for each column"
        raise InvalidInput("data.categories", rule, f"{name}: {values}")
    return np.array(values * LEAST_ROWS, dtype=object)
