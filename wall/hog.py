"""The cells and blocks of histograms of oriented gradients (Dalal and Triggs 2005)."""

from .errors import InvalidInput

ORIENTATIONS = 9
BLOCK = 2  # cells of a block, each way
ENTRIES = BLOCK * BLOCK * ORIENTATIONS  # of a block
MAX_HOG_DIMENSIONS = 4000  # what exact products allow
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
    while dimensions(height // rows, width // columns) > MAX_HOG_DIMENSIONS:
        down, across = height // rows, width // columns
        # Coarsen the finer direction, or both.
        rows, columns = rows + (down >= across), columns + (across >= down)
    return rows, columns


def dimensions(cell_rows: int, cell_columns: int) -> int:
    """How many features so many cells have."""
    return (cell_rows - BLOCK + 1) * (cell_columns - BLOCK + 1) * ENTRIES
