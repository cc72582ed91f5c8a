"""The private records under one extractor, and the queries of a batch that they vote on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from ...wall.matrices import bias, residual_unit
from ..classifiers.linear_ensemble import Ensemble
from ..noise.entropy import Entropy
from ..search.by_person import ByPerson
from ..search.cpu import ExactIndex
from ..search.index import Count, Index
from ..search.kernels import Select, Similar
from ..search.poisson_sampling import sampled_votes, thinned
from .counts import BallCounts, BallVotes, CellVotes, GridCounts, OneRowEach
from .gradient import GradientSum

if TYPE_CHECKING:
    from ..classifiers.cnn_ensemble import CnnEnsemble

EVERYWHERE = 1 << 26  # above every squared distance


@dataclass(frozen=True)
class Voters:
    """Searchable private embeddings with their labels, and one batch of embedded queries.

    Args:
        index: search over the records whose features are finite.
        labels: whole numbers [n_records], of any integer dtype: calculate in int64. Packed
            attributes where rows have those.
        num_classes: number of classes or attributes.
        queries: int8 [n_queries, d], or matrices: int8 [n_queries, m, d] where a query is a set of
            m cells, int16 [n_queries, d + 1, c] where it is weights.
        length: of a unit vector after quantisation, public.
        ensembles: linear ones, by their number of classifiers.
        networks: ensembles of networks, which vote on ``inputs``.
        inputs: the batch's images, uint8 [n_queries, h, w, c].
        landmarks: features of public rows, int8 [m, d] as bytes.
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

    def select(self, rows: Sequence[int]) -> Voters:
        """The same voters before a part of the queries, in the order of ``rows``."""
        inputs = None if self.inputs is None else self.inputs[list(rows)]
        return replace(self, queries=self.queries[list(rows)], inputs=inputs)

    def similar(self, select: Select, hashing: tuple[int, int, int] | None = None) -> list[Similar]:
        """For each query, the rows of ``labels`` that a kernel selects, among hash candidates.

        Persons, each with its most similar row, where the unit of privacy is a person.
        """
        near = self.index.similar(self.queries, select, hashing)
        persons = self.index.units
        if not isinstance(persons, ByPerson):
            return near
        return [persons.strongest(rows, self.index.ids, self.labels) for rows in near]

    def votes(
        self,
        k: int,
        sampling_probability: float,
        keys: Sequence[str],
        release: str,
        entropy: Entropy,
        ballots: np.ndarray | None = None,
    ) -> np.ndarray:
        """Votes of the min(k, |sample|) nearest of a new Poisson sample: int64 [n_queries, c].

        ``ballots``: int64 [n_records, c], what each record adds where it votes; 1 for its label
        where None.
        """
        return sampled_votes(
            self.index.units,
            self.labels if ballots is None else ballots,
            self.queries,
            k=k,
            num_classes=self.num_classes,
            sampling_probability=sampling_probability,
            entropy=entropy,
            keys=list(keys),
            release=release,
        )

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
        sampling_probability: float,
        keys: Sequence[str],
        release: str,
        entropy: Entropy,
    ) -> np.ndarray:
        """Votes of a new Poisson sample within radii (int64 [n_queries]): int64 [n_queries, c].

        A person votes with its row that is nearest to the query.
        """
        count = BallVotes(self.queries, squared_radii, self.num_classes)
        within = self.index.total(count, self.labels)
        return thinned(within, sampling_probability, keys, release, entropy)

    def cell_votes(self, neighbours: int, parts: int = 1) -> np.ndarray:
        """Votes of every record for its label in its nearest cells: int64 [n_queries, m * c].

        ``parts``: of a vote, the unit of the result.
        """
        counted = CellVotes(self.queries, neighbours, self.num_classes, parts)
        return self.index.total(counted, self.labels)

    def gradients(self, clip: float, space: str = "class", gain: int = 1) -> np.ndarray:
        """Sums of the records' gradients: int64 [n_queries, (d + 1) * c + 1] (``GradientSum``)."""
        units = tuple(residual_unit(w, clip, self.length, space) for w in self.queries)
        summed = GradientSum(self.queries, units, bias(self.length), space, gain)
        return self.index.total(summed, self.labels)

    def ball_votes(self, squared_radii: np.ndarray) -> np.ndarray:
        """Records of each class within a radius (int64 [n_queries]): int64 [n_queries, c]."""
        return self._count(BallVotes(self.queries, squared_radii, self.num_classes))

    def ball_counts(self, squared_radii: np.ndarray) -> np.ndarray:
        """Records within each of some radii (int64 [m], ascending): int64 [n_queries, m]."""
        return self._count(BallCounts(self.queries, squared_radii))

    def grid_counts(self, cells: int) -> np.ndarray:
        """Records by cell of a uniform grid over the box, ``cells`` a side: int64 [cells^d]."""
        return self._count(GridCounts(cells))

    def _count(self, count: Count) -> np.ndarray:
        """A count of records, each of them one point."""
        counted = count if self.index.persons is None else OneRowEach(count, self.queries)
        return self.index.total(counted, self.labels)

    def teacher_attributes(self, teachers: int) -> Iterator[np.ndarray]:
        """Each linear classifier's attributes in turn: int64 [n_queries, n_attributes], 0 or 1."""
        return self.ensembles[teachers].attributes(self.queries)

    def teacher_votes(self, teachers: int, classifier: str) -> np.ndarray:
        """How many of PATE's classifiers choose each class: int64 [n_queries, c]."""
        if classifier == "linear":
            return self.ensembles[teachers].votes(self.queries)
        assert self.inputs is not None
        return self.networks[teachers].votes(self.inputs)
