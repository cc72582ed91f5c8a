"""The private records under one extractor, and the queries of a batch that they vote on.

Mechanisms count what adds up over disjoint sets of records, so that shards count their own. A count
is a function of public numbers, then of some records (the index of their features) and their
labels, int64 [n], by row of the index. A method of ``Voters`` with such a function's name counts
all records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...wall.label_kinds import STEPS, unpack
from ...wall.matrices import LEVELS, MAX_ENTRY, bias, nearest_cells, products, residual_unit
from ..classifiers.linear_ensemble import Ensemble
from ..noise.entropy import BITS, Entropy, inclusion_bound
from ..search import poisson_sampling
from ..search.cpu import ExactIndex
from ..search.index import ByPerson, Count, Index
from ..search.kernels import Select, Similar
from ..search.poisson_sampling import thinned
from .gradient import gradient_sums

if TYPE_CHECKING:
    from ..classifiers.cnn_ensemble import CnnEnsemble

Keys = Sequence[str]  # identities of queries, one each
EVERYWHERE = 1 << 26  # above every squared distance


@dataclass(frozen=True)
class Voters:
    """Searchable private embeddings with their labels, and one batch of embedded queries.

    Args:
        index: search over the records whose features are finite.
        labels: whole numbers [n_records], of any integer dtype: calculate in int64. Packed
            attributes if rows have those.
        num_classes: number of classes or attributes.
        queries: int8 [n_queries, d], or matrices: int8 [n_queries, m, d] where a query is a set of
            m cells, int16 [n_queries, d + 1, c] where it is weights.
        length: of a unit vector after quantisation, public.
        ensembles: linear ones, by their number of classifiers.
        networks: ensembles of networks, which vote on ``inputs``.
        inputs: the batch's images, uint8 [n_queries, h, w, c].
        landmarks: features of public rows, int8 [m, d] as bytes.
        tally: what a mechanism counted before its charge (``Mechanism.tally``), by query; None
            where it counts as it draws.
    """

    index: Index = field(repr=False)
    labels: np.ndarray = field(repr=False)
    num_classes: int
    queries: np.ndarray = field(repr=False)
    length: float = 1.0
    ensembles: Mapping[int, Ensemble] = field(default_factory=dict, repr=False)
    networks: Mapping[int, CnnEnsemble] = field(default_factory=dict, repr=False)
    inputs: np.ndarray | None = field(default=None, repr=False)
    landmarks: bytes = field(default=b"", repr=False)
    tally: np.ndarray | None = field(default=None, repr=False)

    def select(self, rows: Sequence[int]) -> Voters:
        """Voters before a part of the queries, in the order of ``rows``."""
        inputs, tally = (None if a is None else a[list(rows)] for a in (self.inputs, self.tally))
        return replace(self, queries=self.queries[list(rows)], inputs=inputs, tally=tally)

    def similar(self, select: Select, hashing: tuple[int, int, int] | None = None) -> list[Similar]:
        """Records that a kernel selects among hash candidates, by query: rows of ``labels``.

        Persons, each with its most similar row, if the unit of privacy is a person.
        """
        near, units = self.index.similar(self.queries, select, hashing), self.index.units
        if isinstance(units, ByPerson):
            return [units.strongest(rows, self.index.ids, self.labels) for rows in near]
        return near

    def rank(self, k: int, sample_rate: float) -> None:
        """Search the lists that ``votes`` draws along; the index keeps those of one batch."""
        length = min(poisson_sampling.prefix_length(k, sample_rate), len(self.index.units))
        if len(self.queries) * length <= poisson_sampling.PREFIX_ENTRIES:
            self.index.units.prefix(self.queries, length)

    def votes(
        self,
        k: int,
        sample_rate: float,
        keys: Keys,
        release: str,
        entropy: Entropy,
        ballots: np.ndarray | None = None,
    ) -> np.ndarray:
        """Votes of the min(k, |sample|) nearest of a new Poisson sample: int64 [n_queries, c].

        ``keys``, ``release``: what the draw is for. ``ballots``: int64 [n_records, c], what each
        record adds where it votes; 1 for its label where None. A record (a person, by its nearest
        row) is in a query's sample with probability floor(gamma 2^32) / 2^32 <= gamma,
        independently.

        Sensitivity, for one query, the other records' bits fixed: a record added to the sample
        moves the votes by 0, by e_a (sample smaller than k) or by e_a - e_b (it displaces the
        k-th); L2 sqrt(2), L1 2. With ballots, by one or by the difference of two.

        The bits are drawn along the records in order of distance, nearest first, only as far as k
        hits need: the law is that of sampling the whole data set first. A query without k hits
        keeps its bits and continues along a prefix twice as long, until the data set ends.
        """
        index, labels = self.index.units, self.labels if ballots is None else ballots
        length = min(poisson_sampling.prefix_length(k, sample_rate), len(index))
        votes = np.zeros((len(self.queries), self.num_classes), dtype=np.int64)
        hits = np.zeros(len(votes), dtype=np.int64)
        step = max(1, poisson_sampling.PREFIX_ENTRIES // max(1, length))
        for start in range(0, len(votes), step):
            pending, drawn, width = np.arange(start, min(start + step, len(votes))), 0, length
            while len(pending) and drawn < len(index):
                near = index.prefix(self.queries[pending], width)[:, drawn:]  # not yet drawn
                # Only a test's tape draws by id. The system's bits are fresh: rows name records as
                # well as ids do, which are in memory for a tape alone.
                ids = index.ids[near] if entropy.unsafe else near
                own = [keys[query] for query in pending.tolist()]
                bits = np.ones(near.shape, dtype=bool)
                if inclusion_bound(sample_rate) < 1 << BITS:
                    bits = entropy.inclusion(sample_rate, own, release, ids)
                listed = np.ascontiguousarray(near)
                poisson_sampling.first_hits(listed, bits, labels, k, pending, hits, votes)
                pending, drawn, width = pending[hits[pending] < k], drawn + near.shape[1], 2 * width
        return votes

    def radii(self, share: float) -> np.ndarray:
        """The squared distance of each query to its j-th nearest landmark: int64 [n_queries].

        j = ``share`` of the landmarks, at least 1. A landmark at distance 0 does not count: it may
        be the query itself. Where fewer than j are left, every record is within.
        """
        rows = np.frombuffer(self.landmarks, np.int8).reshape(-1, self.queries.shape[1]).copy()
        wanted = max(1, round(share * len(rows)))
        index = ExactIndex(rows, np.arange(len(rows)), threads=1)
        radii = np.full(len(self.queries), EVERYWHERE, dtype=np.int64)
        for query, squared in enumerate(index.distances(self.queries)):
            apart = squared[squared > 0]
            if len(apart) >= wanted:
                radii[query] = np.partition(apart, wanted - 1)[wanted - 1]
        return radii

    def sampled_ball_votes(
        self,
        squared_radii: np.ndarray,
        sample_rate: float,
        keys: Keys,
        release: str,
        entropy: Entropy,
    ) -> np.ndarray:
        """Votes of a new Poisson sample of those ``within``."""
        within = self.within(squared_radii) if self.tally is None else self.tally
        return thinned(within, sample_rate, keys, release, entropy)

    def within(self, squared_radii: np.ndarray) -> np.ndarray:
        """``ball_votes`` where a person's row is the nearest to each query."""
        return self._total(ball_votes, self.queries, squared_radii, self.num_classes)

    def cell_votes(self, neighbours: int, parts: int = 1) -> np.ndarray:
        return self._total(cell_votes, self.queries, neighbours, self.num_classes, parts)

    def right_votes(self, space: str, parts: int) -> np.ndarray:
        return self._total(right_votes, self.queries, space, self.num_classes, parts)

    def gradients(self, clip: float, space: str = "class", gain: int = 1) -> np.ndarray:
        """``gradient_sums``, int64 [n_queries, (d + 1) * c + 1], at the records' length."""
        units = tuple(residual_unit(w, clip, self.length, space) for w in self.queries)
        return self._total(gradient_sums, self.queries, units, bias(self.length), space, gain)

    def ball_votes(self, squared_radii: np.ndarray) -> np.ndarray:
        return self._count(ball_votes, self.queries, squared_radii, self.num_classes)

    def ball_counts(self, squared_radii: np.ndarray) -> np.ndarray:
        return self._count(ball_counts, self.queries, squared_radii)

    def grid_counts(self, cells: int) -> np.ndarray:
        return self._count(grid_counts, cells)

    def _total(self, count: Callable[..., np.ndarray], *public: object) -> np.ndarray:
        return self.index.total(partial(count, *public), self.labels)

    def _count(self, count: Callable[..., np.ndarray], *public: object) -> np.ndarray:
        """A count of records, each of them one point, also a person."""
        return self._total(one_row_each, partial(count, *public), self.queries)

    def teacher_votes(self, teachers: int, classifier: str) -> np.ndarray:
        """How many of PATE's classifiers choose each class: int64 [n_queries, c]."""
        if classifier == "linear":
            return self.ensembles[teachers].votes(self.queries)
        assert self.inputs is not None
        return self.networks[teachers].votes(self.inputs)


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


def right_votes(
    cells: np.ndarray,
    space: str,
    outputs: int,
    parts: int,
    index: ExactIndex,
    labels: np.ndarray,
) -> np.ndarray:
    """Right predictions of each output, then wrong ones: int64 [n_queries, 2 * outputs].

    A record or a person adds a vector no longer than ``parts``. A class is right if the nearest
    cell has its number. An attribute is right if the product with its cell is positive just when it
    is present. For values the product with the only cell is from -1 to 1 in 63^2: ``missed`` is
    wrong, and the rest of ``parts`` right. A person's parts are the shares of its rows, the right
    ones rounded down: as many in all as a record's.

    ``space``: a label space's kind; ``cells``: int8 [n_queries, outputs, d].
    """
    votes = np.zeros((len(cells), 2 * outputs), dtype=np.int64)
    for counts, centers in zip(votes, cells, strict=True):
        if space == "class":
            no = nearest_cells(index.features, centers, 1) != labels[:, None]
            ballots = no * outputs + labels[:, None]
            np.add.at(counts, *shared_votes(ballots, index.persons, parts, roots=False))
            continue
        said, whole = products(index.features, centers), parts
        if space == "attributes":
            whole = math.isqrt(parts**2 // outputs)
            right = whole * ((said > 0) == unpack(labels, outputs))
        else:
            right = parts - missed(said, labels[:, None], parts)
        if index.persons is not None:
            order = np.argsort(index.persons)
            _, first, rows = np.unique(index.persons[order], return_index=True, return_counts=True)
            right = np.add.reduceat(right[order], first, axis=0) // rows[:, None]
        counts[:] = [*right.sum(axis=0), *(whole - right).sum(axis=0)]
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


def one_row_each(
    count: Count, queries: np.ndarray, index: ExactIndex, labels: np.ndarray
) -> np.ndarray:
    """A count over one row of each person: the nearest to any of a batch's queries, ties by id.

    The row is a function of the person's rows and of ``queries``, int8 [n_queries, d], so that a
    person is one point in all balls (docs/privacy.md, section 22).
    """
    if index.persons is None:  # rows, or a shard without any
        return count(index, labels)
    nearest = np.full(len(index), np.iinfo(np.int32).max, dtype=np.int32)
    for squared in index.distances(queries):
        np.minimum(nearest, squared, out=nearest)
    rows = np.sort(_nearest_of_each(nearest, index.persons))
    return count(ExactIndex(index.features[rows], index.ids[rows]), labels[rows])


def _nearest_of_each(squared: np.ndarray, persons: np.ndarray) -> np.ndarray:
    """The nearest row of each person, ties by place, which is by id: int64 [n_persons]."""
    order = np.lexsort((squared, persons))
    return order[np.unique(persons[order], return_index=True)[1]]


def ball_votes(
    queries: np.ndarray,
    squared_radii: np.ndarray,
    num_classes: int,
    index: ExactIndex,
    labels: np.ndarray,
) -> np.ndarray:
    """Records of each class within each query's radius: int64 [n_queries, n_classes].

    Of a person the row that is nearest to the query, ties by id, is the one that counts.

    ``queries``: int8 [n_queries, d]; ``squared_radii``: int64 [n_queries].
    """
    votes = np.zeros((len(queries), num_classes), dtype=np.int64)
    distances = index.distances(queries)
    for counts, squared, radius in zip(votes, distances, squared_radii.tolist(), strict=True):
        inside = np.flatnonzero(squared <= radius)
        if index.persons is not None:
            inside = inside[_nearest_of_each(squared[inside], index.persons[inside])]
        counts += np.bincount(labels[inside], minlength=num_classes)
    return votes


def ball_counts(
    queries: np.ndarray, squared_radii: np.ndarray, index: ExactIndex, labels: np.ndarray
) -> np.ndarray:
    """Records within each of some radii (int64 [m], ascending) of each query: int64 [q, m]."""
    counts = np.zeros((len(queries), len(squared_radii)), dtype=np.int64)
    for row, squared in zip(counts, index.distances(queries), strict=True):
        smallest = np.searchsorted(squared_radii, squared)  # radius that reaches a record
        row += np.bincount(smallest, minlength=len(row) + 1)[: len(row)].cumsum()
    return counts


def grid_counts(cells: int, index: ExactIndex, labels: np.ndarray) -> np.ndarray:
    """Records by cell of a uniform grid, ``cells`` a side, over the domain box: int64 [cells^d]."""
    along = (index.features.astype(np.int64) + LEVELS // 2) * cells // LEVELS  # 0..cells - 1
    numbers = along @ cells ** np.arange(index.dimensions, dtype=np.int64)
    return np.bincount(numbers, minlength=cells**index.dimensions)
