"""Histograms of oriented gradients (Dalal and Triggs 2005), scikit-image's to the last bit.

The size of the cells follows from the image's size. numba compiles the loops over the pixels.
"""

import math
from functools import lru_cache

import numpy as np
from numba.extending import register_jitable

from ...wall.errors import InvalidInput
from ..search.loops import compiled

ORIENTATIONS = 9
BLOCK = 2  # cells of a block, each way
ENTRIES = BLOCK * BLOCK * ORIENTATIONS  # of a block
LANES = 8  # partial sums of numpy's pairwise summation
MAX_HOG_DIMENSIONS = 4000  # what exact products allow
# Quantised entries are round(HOG_UNIT sqrt(d) x) for L2-normalised x, whose root mean square is
# 1 / sqrt(d). The factor is a constant, so it does not depend on private rows. With 7,000 records
# the votes' plurality agrees with float's on 99.9% of queries on MNIST (288 x; 0.006% of entries
# clip) and 95% on CIFAR-10 (336 x; none clips), at the same accuracy within 0.1 points.
HOG_UNIT = 8.0
# Of the norms L2-Hys: what is added under the root, and where the first norm's entries clip.
EPSILON, CLIP = 1e-5**2, 0.2


def cell_size(height: int, width: int) -> tuple[int, int]:
    """Pixels per cell (rows, columns): 4, more for a large image, half the size of a small one.

    Larger cells keep the features within 4,000 dimensions. 28 x 28: 4 x 4, 1,296 dimensions;
    32 x 32: 4 x 4, 1,764. Raises InvalidInput for images below 4 x 4.
    """
    if min(height, width) < 4:
        rule = "at least 4 x 4 pixels for hog"
        raise InvalidInput("extractor.input_shape", rule, (height, width))
    rows, columns = min(4, height // 2), min(4, width // 2)
    while _dimensions(height // rows, width // columns) > MAX_HOG_DIMENSIONS:
        down, across = height // rows, width // columns
        # Coarsen the finer direction, or both.
        rows, columns = rows + (down >= across), columns + (across >= down)
    return rows, columns


def hog_scale(dimensions: int) -> float:
    """The fixed quantisation scale for L2-normalised vectors of ``dimensions`` entries."""
    return HOG_UNIT * math.sqrt(dimensions)


def hog_features(images: np.ndarray) -> np.ndarray:
    """float64 [n, d] of uint8 [n, height, width, channels] images, each computed by itself.

    In colour images each pixel's strongest gradient counts.
    """
    rows, columns = cell_size(*(shape := images.shape[1:3]))
    features = np.empty((len(images), _dimensions(shape[0] // rows, shape[1] // columns)))
    _hog(np.ascontiguousarray(images), rows, columns, *_gradients(), features)
    return features


def _dimensions(cell_rows: int, cell_columns: int) -> int:
    return (cell_rows - BLOCK + 1) * (cell_columns - BLOCK + 1) * ENTRIES


@lru_cache(maxsize=1)
def _gradients() -> tuple[np.ndarray, np.ndarray]:
    """Of the gradient (down, across), at [down + 255, across + 255]: length and orientation's bin.

    float64 and uint8 [511, 511]: differences of two pixels have no other values.
    """
    down, across = np.mgrid[-255.0:256.0, -255.0:256.0]
    degrees = np.arctan2(down, across) * (180 / np.pi) % 180
    return np.hypot(across, down), (degrees // (180 / ORIENTATIONS)).astype(np.uint8)


@compiled
def _hog(
    images: np.ndarray,
    rows: int,
    columns: int,
    magnitudes: np.ndarray,
    bins: np.ndarray,
    features: np.ndarray,
) -> None:
    """``rows``, ``columns``: pixels per cell. ``magnitudes``, ``bins``: of ``_gradients``."""
    _, height, width, _ = images.shape
    cells = np.empty((height // rows, width // columns, ORIENTATIONS), dtype=np.float32)
    for number in range(len(images)):
        _add_up(images[number], rows, columns, magnitudes, bins, cells)
        _normalise(cells, np.float32(rows * columns), features[number])


@register_jitable
def _add_up(
    image: np.ndarray,
    rows: int,
    columns: int,
    magnitudes: np.ndarray,
    bins: np.ndarray,
    cells: np.ndarray,
) -> None:
    """Sums of the gradients' lengths by cell and bin, each sum rounded to float32.

    Pixels that fill no cell count in none, and at the image's edge there is no gradient across it.
    """
    height, width, channels = image.shape
    down, across, _ = cells.shape
    for y in range(down):
        for x in range(across):
            for orientation in range(ORIENTATIONS):
                cells[y, x, orientation] = 0
    for y in range(down * rows):
        for x in range(across * columns):
            magnitude, orientation = 0.0, 0
            for channel in range(channels):
                high = wide = 255
                if 0 < y < height - 1:
                    high += int(image[y + 1, x, channel]) - int(image[y - 1, x, channel])
                if 0 < x < width - 1:
                    wide += int(image[y, x + 1, channel]) - int(image[y, x - 1, channel])
                if magnitudes[high, wide] > magnitude:
                    magnitude, orientation = magnitudes[high, wide], bins[high, wide]
            cells[y // rows, x // columns, orientation] += magnitude


@register_jitable
def _normalise(cells: np.ndarray, area: np.float32, features: np.ndarray) -> None:
    """The blocks of the means ``cells`` / ``area``, each by the norm L2-Hys: divided by its length,
    clipped, and divided by its length again.
    """
    down, across, _ = cells.shape
    block, place = np.empty(ENTRIES), 0
    for top in range(down - BLOCK + 1):
        for left in range(across - BLOCK + 1):
            entry = 0
            for row in range(top, top + BLOCK):
                for column in range(left, left + BLOCK):
                    for orientation in range(ORIENTATIONS):
                        block[entry] = cells[row, column, orientation] / area
                        entry += 1
            length = _length(block)
            for entry in range(ENTRIES):
                block[entry] = min(block[entry] / length, CLIP)
            length = _length(block)
            for entry in range(ENTRIES):
                features[place] = block[entry] / length
                place += 1


@register_jitable
def _length(block: np.ndarray) -> float:
    """sqrt(|block|^2 + EPSILON), added up in the order of numpy's pairwise summation."""
    whole = ENTRIES // LANES * LANES
    lanes = np.zeros(LANES)
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += block[start + lane] * block[start + lane]
    total = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    total += (lanes[4] + lanes[5]) + (lanes[6] + lanes[7])
    for entry in range(whole, ENTRIES):
        total += block[entry] * block[entry]
    return math.sqrt(total + EPSILON)
