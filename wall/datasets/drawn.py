"""Public rows that are drawn, for whoever has none: a function of public facts alone.

*Of a table* the facts are ``data.ranges``, ``data.categories`` and the public test rows. A column
of a drawn row has one of the cells that these name, each equally often, whatever its other columns
have.

*Images* are of shapes that cover one another (dead leaves), a function of their number, size and
channels. Natural images have such edges at all scales (Lee, Mumford and Huang 2001), and networks
learn from them (Baradad et al. 2021).
"""

import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from ..errors import InvalidInput, require_known
from ..labels import written
from .columns import DAY, LEAST_ROWS, MOST_VALUES, encoding_of
from .data_config import BOX, DataConfig
from .folders import constant_order

SMALLEST, LARGEST = 0.06, 0.7  # radii of shapes, in sides of the image
MOST, NUMBERS = 60, 12  # shapes of an image; numbers that say how one looks
FINER = 2  # pixels along a side of which the mean is one of the image
PALE = 0.5  # share of a colour's distance from its grey that is kept
ANGLES = 2 * math.pi * np.arange(24) / 24  # of the corners of a disc

Cells = Mapping[str, np.ndarray]


def box_cells(config: DataConfig, test: Cells) -> dict[str, np.ndarray]:
    """The cells of which a drawn row has one, by the column.

    ``test``: columns of the PUBLIC test rows, none without them. Raises InvalidInput.
    """
    ranges, categories = config.ranges, config.categories
    if not (test or ranges or categories):
        why = f"without test rows `public: {BOX}` needs [low, high] by the column's name"
        cure = "Categories: --data.categories '{NAME: [a, b]}'."
        raise InvalidInput.missing("data.ranges", why, cure)
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


@lru_cache(maxsize=1)
def shapes(count: int, size: int, channels: int) -> np.ndarray:
    """Images uint8 [count, size, size, channels] of discs, rectangles and triangles.

    Radii r have a density proportional to r^-3. A shape has one colour, or goes from one to another
    along a line.
    """
    images, side = np.zeros((count, size, size, channels), dtype=np.uint8), FINER * size
    places = (np.mgrid[:side, :side].astype(np.float32) + 0.5) / side - 0.5
    everywhere = np.ones((side, side), dtype=bool)
    for number in range(count):
        image = np.zeros((side, side, channels), dtype=np.float32)
        drawn = _uniform(f"shapes {number}", (MOST + 1) * NUMBERS).reshape(-1, NUMBERS)
        image[everywhere] = _colours(drawn[0], places[:, everywhere], channels)
        for shape in drawn[1 : 1 + int(1 + drawn[0, -1] * (MOST - 1))]:
            inside = _inside(shape, side)
            image[inside] = _colours(shape, places[:, inside], channels)
        blocks = image.reshape(size, FINER, size, FINER, channels)
        images[number] = blocks.mean(axis=(1, 3))
    return images


def _uniform(name: str, count: int) -> np.ndarray:
    """Numbers from 0 to 1 by a name, float64 [count], which no library changes."""
    content = hashlib.shake_256(f"labelwall {name}".encode()).digest(4 * count)
    return np.frombuffer(content, dtype="<u4") / 2.0**32


def _inside(shape: np.ndarray, size: int) -> np.ndarray:
    """The pixels of a shape, bool [size, size]."""
    x, y, radius, turn, kind, flat = shape[:6]
    # Inverts the distribution of a density r^-3 between both ends
    low, high = SMALLEST**-2, LARGEST**-2
    radius = (low - radius * (low - high)) ** -0.5 * size
    corners = ANGLES if kind < 0.5 else ANGLES[:: 6 if kind < 0.8 else 8] + math.pi / 4
    across, down = np.cos(corners) * radius, np.sin(corners) * radius * (0.3 + 0.7 * flat)
    cos, sin = math.cos(2 * math.pi * turn), math.sin(2 * math.pi * turn)
    along = x * size + cos * across - sin * down
    points = np.column_stack([along, y * size + sin * across + cos * down])
    mask = Image.new("1", (size, size))
    ImageDraw.Draw(mask).polygon(points.ravel().tolist(), fill=1)
    return np.asarray(mask)


def _colours(shape: np.ndarray, places: np.ndarray, channels: int) -> np.ndarray:
    """The colour of a shape at n places, float [2, n] from the middle: float [n, channels]."""
    colours = shape[6:12].reshape(2, 3)
    grey = colours.mean(axis=1, keepdims=True)
    one, other = 255 * (grey + PALE * (colours - grey))[:, :channels].astype(np.float32)
    angle = 2 * math.pi * shape[4]
    part = np.clip(0.5 + math.cos(angle) * places[0] + math.sin(angle) * places[1], 0, 1)
    if shape[5] >= 0.5:
        part = np.zeros_like(part)
    return np.asarray(one + part[:, np.newaxis] * (other - one))
