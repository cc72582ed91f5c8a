"""Votes of all records in PUBLIC cells, and what a person's rows share of its votes."""

import math
from dataclasses import dataclass

import numpy as np

from ...wall.label_kinds import STEPS, unpack
from ...wall.matrices import MAX_ENTRY, nearest_cells, products
from ..search.cpu import ExactIndex


def cell_votes(
    cells: np.ndarray,
    neighbours: int,
    num_classes: int,
    parts: int,
    index: ExactIndex,
    labels: np.ndarray,
) -> np.ndarray:
    """Votes of every record for its label in its nearest cells: int64 [n_queries, m * n_classes].

    All entries are present, in ``parts`` of a vote. A person's votes are those of its rows together
    (``shared_votes``). ``cells``: int8 [n_queries, m, d].
    """
    votes = np.zeros((len(cells), cells.shape[1] * num_classes), dtype=np.int64)
    for counts, centers in zip(votes, cells, strict=True):
        nearest = nearest_cells(index.features, centers, neighbours)
        ballots = nearest * num_classes + labels[:, None]
        np.add.at(counts, *shared_votes(ballots, index.persons, parts))
    return votes


@dataclass(frozen=True)
class ScoredOutputs:
    """The ``count`` outputs of a PUBLIC model that a record is compared with.

    A record or a person adds a vector no longer than ``parts``. ``space``: a label space's kind.
    """

    space: str
    count: int
    parts: int

    @property
    def whole(self) -> int:
        """What a record adds for a class or a value: ``parts``. For each of c attributes it is
        ``parts`` / sqrt(c), rounded down.
        """
        return math.isqrt(self.parts**2 // self.count) if self.attributes else self.parts

    @property
    def attributes(self) -> bool:
        return self.space == "attributes"


def right_votes(
    cells: np.ndarray, outputs: ScoredOutputs, index: ExactIndex, labels: np.ndarray
) -> np.ndarray:
    """Right predictions of each output, then wrong ones: int64 [n_queries, 2 * outputs].

    A class is right if the nearest cell has its number. An attribute is right if the product with
    its cell is positive just when it is present. For values the product with the only cell is from
    -1 to 1 in 63^2: ``missed`` is wrong, and the rest of the parts right. A person's parts are the
    shares of its rows, the right ones rounded down: as many in all as a record's.

    ``cells``: int8 [n_queries, outputs, d].
    """
    votes, whole = np.zeros((len(cells), 2 * outputs.count), dtype=np.int64), outputs.whole
    for counts, centers in zip(votes, cells, strict=True):
        if outputs.space == "class":
            no = nearest_cells(index.features, centers, 1) != labels[:, None]
            ballots = no * outputs.count + labels[:, None]
            np.add.at(counts, *shared_votes(ballots, index.persons, whole, roots=False))
            continue
        said = products(index.features, centers)
        if outputs.attributes:
            right = whole * ((said > 0) == unpack(labels, outputs.count))
        else:
            right = whole - missed(said, labels[:, None], whole)
        if index.persons is not None:
            order = np.argsort(index.persons)
            _, first, rows = np.unique(index.persons[order], return_index=True, return_counts=True)
            right = np.add.reduceat(right[order], first, axis=0) // rows[:, None]
        counts[:] = [*right.sum(axis=0), *(whole - right).sum(axis=0)]
    return votes


def table_votes(
    cells: np.ndarray, outputs: ScoredOutputs, index: ExactIndex, labels: np.ndarray
) -> np.ndarray:
    """Records by what they are and by the bin of their score: int64 [n_queries, scores * c * m].

    A record's bin is the nearest of the m cells of a score: of the only one of c classes, or of one
    for each attribute, which is absent or present (c = 2). A record adds the same to one bin of
    each score; a person adds the shares of its rows. ``cells``: int8 [n_queries, scores * m, d], by
    score.
    """
    scores, kinds, truth = 1, outputs.count, labels[:, None]
    if outputs.attributes:
        scores, kinds, truth = outputs.count, 2, unpack(labels, outputs.count)
    votes = np.zeros((len(cells), cells.shape[1] * kinds), dtype=np.int64)
    for counts, centers in zip(votes, cells, strict=True):
        first = 0
        for own, of in zip(np.split(centers, scores), truth.T, strict=True):
            bins = nearest_cells(index.features, own, 1)
            ballots = first + of[:, None] * len(own) + bins
            np.add.at(counts, *shared_votes(ballots, index.persons, outputs.whole, roots=False))
            first += kinds * len(own)
    return votes


def missed(predicted: np.ndarray, steps: np.ndarray, parts: int) -> np.ndarray:
    """Squared errors of values, in 0..parts, which stands for half a half range or more.

    ``predicted``: half ranges from the middle in 63^2; ``steps``: codes; int64, of one shape.
    """
    unit = MAX_ENTRY**2
    limit = unit * STEPS // 2  # half a half range, below 2^23; its square times parts is < 2^59
    apart = np.clip(predicted, -unit, unit) * STEPS - (2 * steps - STEPS) * unit
    return np.minimum(np.abs(apart), limit) ** 2 * parts // limit**2


def shared_votes(
    ballots: np.ndarray, persons: np.ndarray | None, parts: int, *, roots: bool = True
) -> tuple[np.ndarray, np.ndarray | int]:
    """The ballots that rows or persons cast, and the parts of a vote that each of these gets.

    A person's ballot gets parts times the square root of the share of its rows that cast it,
    rounded down. With m ballots a row the squares of a person add up to parts^2 m at most, as those
    of a single row do; many ballots get more together than few. Without ``roots``, for one
    ballot a row, it gets the share itself. Then the sum of the ballots up to any number is rounded
    down, and a person gives ``parts`` in all.

    ``ballots``: int64 [n, m], by row, those of a row distinct; ``persons``: int64 [n]; ``parts``:
    1..4096. Returns int64 [votes] twice; a ballot comes once for each person.
    """
    if persons is None:
        return ballots, parts
    _, person, rows = np.unique(persons, return_inverse=True, return_counts=True)
    span = int(ballots.max(initial=0)) + 1
    cast, times = np.unique(person[:, np.newaxis] * span + ballots, return_counts=True)
    owner, own = cast // span, rows[cast // span]
    if roots:  # at most parts^2 <= 2^24, so that the float64 root, rounded down, is exact
        return cast % span, np.sqrt(times * parts**2 // own).astype(np.int64)
    up_to = times.cumsum() - (rows.cumsum() - rows)[owner]
    return cast % span, parts * up_to // own - parts * (up_to - times) // own
