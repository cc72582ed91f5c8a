"""Public integer matrices that a teacher counts all its records by: one noisy release each.

*Cells*: centres go in, noisy counts come out. Each private record votes once, and public rows
inherit the counts nearby. *Weights* of a linear classifier: they go in, one noisy sum comes out.
Each record adds its own part of the gradient to it, once. The units of a sum are public functions
of the weights, the extractor and the mechanism. Whatever is computed from counts and sums is
post-processing.
"""

import hashlib
import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from .errors import InvalidInput
from .messages import ABSTAINED, Outcome, Receipt, canonical_json

MAX_DIMENSIONS = 4000
MAX_ENTRY = 63  # quantised features are integers in -63..63
MAX_CELLS = 4096
BATCH_ROWS = 4096  # compared with the centres at once, if these are few
BATCH_DISTANCES = 1 << 21  # which stay in a processor's cache
GROUP = 32  # entries of which only the smallest is looked at first

FRACTION = 16  # bits: a logit is an integer times 2^-16
MAX_WEIGHT = 32_767
MAX_CLASSES = 4096
LEVELS = 2 * MAX_ENTRY + 1  # values of a feature
GRID = 128  # steps of a neighbour's weight: GRID^2 (q.x)^2 < 2^62 fits int64
MAX_ENTRIES = 1 << 20  # of one matrix
MAX_BIAS = 63  # the last input of every record is a public constant
CLIP = 1 << 20  # largest length of a record's part of the gradient, in units of the sum
COUNT = CLIP >> 3  # what a record adds to the last entry, by which records are counted
MAX_GAIN = 64  # of a record's gradient before it is clipped
MAX_UNIT = 1 << 18  # of residuals, so that products of squares fit int64
# Length of a record's whole part, rounded up: the L2 sensitivity of a sum.
SENSITIVITY = math.isqrt(CLIP**2 + COUNT**2 - 1) + 1


@dataclass(frozen=True)
class Matrix:
    """Integers, ``entries`` [rows, columns]. ``slot``: the entry of the plan that pays.

    Raises InvalidInput for any other dtype, shape or entry.
    """

    entries: np.ndarray
    slot: int = 0

    kind: ClassVar[str]  # its name, in identities, configurations and routes of a service
    array: ClassVar[str]  # the name of its entries on the wire
    dtype: ClassVar[type]
    rows: ClassVar[range]  # how many there may be
    columns: ClassVar[range]
    most: ClassVar[int]  # entries in all
    largest: ClassVar[int]  # absolute value

    def __post_init__(self) -> None:
        name, entries, shape = f"{self.kind}.{self.array}", self.entries, self.entries.shape
        fits = entries.ndim == 2 and shape[0] in self.rows and shape[1] in self.columns
        if entries.dtype != self.dtype or not fits or entries.size > self.most:
            sides = (f"{side.start} to {side.stop - 1}" for side in (self.rows, self.columns))
            rule = f"{np.dtype(self.dtype)} [{', '.join(sides)}], at most {self.most} entries"
            raise InvalidInput(name, rule, f"{entries.dtype} {list(shape)}")
        for extreme in (int(entries.min()), int(entries.max())):
            if abs(extreme) > self.largest:
                raise InvalidInput(name, f"integers in -{self.largest}..{self.largest}", extreme)
        if self.slot < 0:
            raise InvalidInput(f"{self.kind}.slot", "at least 0", self.slot)

    def identity(self, extractor: str, mechanism: dict[str, object]) -> str:
        """SHA-256 (hex) of the entries in order, the slot, the extractor's hash, and the mechanism.

        Another slot may count other records: it pays for the same matrix again.
        """
        entries, named = self.entries, {"extractor": extractor, "mechanism": mechanism}
        prefix = canonical_json({**named, "slot": self.slot, self.kind: list(entries.shape)})
        little = np.ascontiguousarray(entries).astype(entries.dtype.newbyteorder("<"), copy=False)
        return hashlib.sha256(prefix + b"\0" + little.tobytes()).hexdigest()

    def identities(self, extractor: str, mechanism: dict[str, object]) -> list[str]:
        return [self.identity(extractor, mechanism)]


class Cells(Matrix):
    """A partition of feature space from PUBLIC rows, by centres in the extractor's integers.

    Each point belongs to its nearest centre, the first of equal ones.
    """

    kind, array, dtype = "cells", "centers", np.int8
    rows, columns = range(1, MAX_CELLS + 1), range(1, MAX_DIMENSIONS + 1)
    most, largest = MAX_CELLS * MAX_DIMENSIONS, MAX_ENTRY


class Weights(Matrix):
    """Weights [d + 1, c] of a linear model of features, whose last row belongs to the bias.

    The logits of a record with features x, or its value between -1 and 1, are
    2^-16 (x, bias)^T weights.
    """

    kind, array, dtype = "weights", "weights", np.int16
    rows, columns = range(2, MAX_DIMENSIONS + 2), range(1, MAX_CLASSES + 1)
    most, largest = MAX_ENTRIES, MAX_WEIGHT


MATRICES: dict[str, type[Matrix]] = {kind.kind: kind for kind in (Cells, Weights)}


@dataclass(frozen=True)
class NoisyCounts:
    """Noisy ``counts``, int64; None if the cap was reached.

    By cells: [m, n_classes] votes, some negative. By weights: [1, (d + 1) * n_classes + 1] sums.
    """

    counts: np.ndarray | None = field(repr=False)
    receipt: Receipt


def nearest_cells(features: np.ndarray, centers: np.ndarray, neighbours: int) -> np.ndarray:
    """Each row's nearest cells, nearest first, ties by cell number: int64 [n, neighbours].

    ``features``: int8 [n, d]; ``centers``: int8 [m, d], entries in -63..63, d <= 4000. Products are
    at most 63^2 * 4000 < 2^24, so they are exact in float32 in any order of summation: no row's
    cells depend on batch, threads or other rows.
    """
    wide = centers.astype(np.float32)
    nearest = np.empty((len(features), neighbours), dtype=np.int64)
    squares = (wide * wide).sum(axis=1).astype(np.int32)  # [m]
    size = max(1, min(BATCH_ROWS, BATCH_DISTANCES // len(centers)))
    for start in range(0, len(features), size):
        batch = slice(start, start + size)
        # |x - c|^2 without |x|^2, which is the same for all centres
        products = features[batch].astype(np.float32) @ wide.T
        nearest[batch] = smallest(squares - 2 * products.astype(np.int32), neighbours)
    return nearest


def smallest(entries: np.ndarray, count: int) -> np.ndarray:
    """Columns of each row's ``count`` smallest entries, in their order, ties by column: int64."""
    rows, groups = len(entries), entries.shape[1] // GROUP
    if count == 1:
        return entries.argmin(axis=1)[:, np.newaxis]  # the first minimum
    if groups < count:
        return np.argsort(entries, axis=1, kind="stable")[:, :count]
    # As many entries as groups have a minimum up to the bound are no larger than it
    minima = entries[:, : GROUP * groups].reshape(rows, GROUP, groups).min(axis=1)
    bounds = np.partition(minima, count - 1, axis=1)[:, count - 1]
    row, column = np.nonzero(entries <= bounds[:, np.newaxis])
    order = np.lexsort((entries[row, column], row))
    firsts = np.searchsorted(row, np.arange(rows))
    return np.asarray(column[order][firsts[:, np.newaxis] + np.arange(count)])


def products(features: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Products of rows, int8 [n, d], with centres, int8 [m, d]: int64 [n, m], exact as above."""
    wide, found = centers.T.astype(np.float32), np.empty((len(features), len(centers)), np.int64)
    for start in range(0, len(features), BATCH_ROWS):
        batch = slice(start, start + BATCH_ROWS)
        found[batch] = features[batch].astype(np.float32) @ wide
    return found


def inherit(
    counts: np.ndarray | None, cells_of_row: np.ndarray, margin: float
) -> tuple[np.ndarray, np.ndarray]:
    """Labels int64 [n] and outcomes uint8 [n] of public rows from noisy counts [m, c], for free.

    Each row sums the votes of its cells (``cells_of_row``: int64 [n, neighbours]). It gets the
    class with the most votes if these exceed the second most by more than ``margin`` votes, and
    abstains otherwise.
    """
    labels = np.full(len(cells_of_row), ABSTAINED, dtype=np.int64)
    if counts is None:
        return labels, np.full(len(labels), Outcome.CAP_REACHED, dtype=np.uint8)
    votes = counts[cells_of_row].sum(axis=1)  # [n, n_classes]
    ordered = np.sort(votes, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > margin
    labels[clear] = votes[clear].argmax(axis=1)
    return labels, np.where(clear, Outcome.ANSWERED, Outcome.ABSTAINED).astype(np.uint8)


def bias(length: float) -> int:
    """The constant last input of all records: about a quarter of a unit vector's length, 1..63.

    ``length``: of a unit vector after quantisation, public (``Embedder.length``).
    """
    return max(1, min(MAX_BIAS, round(length / 4)))


def residual_unit(weights: np.ndarray, clip: float, length: float, labels: str = "class") -> int:
    """Integer that stands for a residual of 1 in the sums of ``weights`` (int16 [d + 1, c]).

    Residuals as long as ``longest_residual`` reach the limit CLIP at an input of length
    |(``length``, bias)|. ``labels``: a label space's kind.
    """
    first = int(np.abs(weights.astype(np.int64)).sum()) <= 1  # 0, or 0 that is asked anew
    longest = longest_residual(labels, weights.shape[1], clip, first=first)
    most = max_unit(labels, weights.shape[1])
    return max(1, min(most, int(CLIP / (longest * math.hypot(length, bias(length))))))


def max_unit(labels: str, outputs: int) -> int:
    """The largest unit: residuals of attributes, each at most 1, add up to a square."""
    alike = math.isqrt(outputs - 1) + 1 if labels == "attributes" else 1
    return MAX_UNIT // alike


def longest_residual(labels: str, outputs: int, clip: float, *, first: bool) -> float:
    """Length of a record's residuals, prediction minus truth, above which they are shrunk.

    ``clip``: of a class's residuals; of each attribute's, in the root mean square; of a value's, in
    half ranges. ``first``: whether all weights are 0, or one is 1. The residuals of a class or of
    attributes all have one length there, so that the unit is larger and noise is smaller if clip
    allows more. Those of a value are the values, and the range limits them.
    """
    if labels == "value":
        return 1.0 if first else clip
    alike = math.sqrt(outputs) / 2 if labels == "attributes" else math.sqrt(1 - 1 / outputs)
    longest = clip * math.sqrt(outputs) if labels == "attributes" else clip
    return min(longest, alike) if first else longest
