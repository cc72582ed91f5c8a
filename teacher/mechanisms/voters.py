"""The private records under one extractor, and the queries of a batch that they vote on.

Mechanisms count what adds up over disjoint sets of records, so that shards count their own. A count
is a function of public numbers, then of some records (the index of their features) and their
labels, int64 [n], by row of the index. A method of ``Voters`` with such a function's name counts
all records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...wall.matrices import bias, residual_unit
from ..classifiers.linear_ensemble import Ensemble
from ..noise.entropy import BITS, Entropy, inclusion_bound
from ..search import poisson_sampling
from ..search.index import ByPerson, Index
from ..search.kernels import Select, Similar
from ..search.poisson_sampling import thinned
from .counts_in_balls import ball_counts, ball_votes, grid_counts, landmark_radii, one_row_each
from .gradient import gradient_sums
from .votes_in_cells import ScoredOutputs, cell_votes, right_votes, table_votes

if TYPE_CHECKING:
    from ..classifiers.cnn_ensemble import CnnEnsemble

Keys = Sequence[str]  # identities of queries, one each


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
        similar, units = self.index.similar(self.queries, select, hashing), self.index.units
        if isinstance(units, ByPerson):
            return [units.strongest(rows, self.index.ids, self.labels) for rows in similar]
        return similar

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
                nearest = index.prefix(self.queries[pending], width)[:, drawn:]  # not yet drawn
                # Only a test's tape draws by id. The system's bits are fresh: rows name records as
                # well as ids do, which are in memory for a tape alone.
                ids = index.ids[nearest] if entropy.unsafe else nearest
                own = [keys[query] for query in pending.tolist()]
                bits = np.ones(nearest.shape, dtype=bool)
                if inclusion_bound(sample_rate) < 1 << BITS:
                    bits = entropy.inclusion(sample_rate, own, release, ids)
                listed = np.ascontiguousarray(nearest)
                poisson_sampling.first_hits(listed, bits, labels, k, pending, hits, votes)
                pending, drawn = pending[hits[pending] < k], drawn + nearest.shape[1]
                width = 2 * width
        return votes

    def radii(self, share: float) -> np.ndarray:
        """The squared radii of the queries' balls: int64 [n_queries]."""
        return landmark_radii(self.queries, self.landmarks, share)

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
        return self._total(right_votes, self.queries, ScoredOutputs(space, self.num_classes, parts))

    def table_votes(self, space: str, parts: int) -> np.ndarray:
        return self._total(table_votes, self.queries, ScoredOutputs(space, self.num_classes, parts))

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
