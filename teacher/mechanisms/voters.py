"""The private records under one extractor, and the queries of a batch that they vote on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from labelwall.teacher.mechanisms.counts import BallCounts, BallVotes, CellVotes, GridCounts
from labelwall.teacher.mechanisms.pate.linear_ensemble import Ensemble
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.search.index import Index
from labelwall.teacher.search.kernels import Select, Similar
from labelwall.teacher.search.poisson_sampling import sampled_votes

if TYPE_CHECKING:
    from labelwall.teacher.mechanisms.pate.cnn_ensemble import CnnEnsemble


@dataclass(frozen=True)
class Voters:
    """Searchable private embeddings with their labels, and one batch of embedded queries.

    ``index``: of the records whose features are finite; ``labels``: int64 [n_records], packed where they
    are attributes, of which there are ``num_classes`` then; ``queries``: int8 [n_queries, d], or
    [n_queries, m, d] where a query is a set of m cells. ``length``: that of a unit vector after quantisation, public.
    ``ensembles``: linear ones, by their number of classifiers; ``networks``: those that vote on ``inputs``, the batch's images,
    uint8 [n_queries, h, w, c].
    """

    index: Index = field(repr=False)
    labels: np.ndarray = field(repr=False)
    num_classes: int
    queries: np.ndarray = field(repr=False)
    length: float = 1.0
    ensembles: Mapping[int, Ensemble] = field(default_factory=dict, repr=False)
    networks: Mapping[int, CnnEnsemble] = field(default_factory=dict, repr=False)
    inputs: np.ndarray | None = field(default=None, repr=False)

    def select(self, rows: Sequence[int]) -> Voters:
        """The same voters before a part of the queries, in the order of ``rows``."""
        inputs = None if self.inputs is None else self.inputs[list(rows)]
        return replace(self, queries=self.queries[list(rows)], inputs=inputs)

    def similar(self, select: Select, hashing: tuple[int, int, int] | None = None) -> list[Similar]:
        """For each query, the records that a kernel selects, as rows of ``labels``; among the candidates of ``hashing``."""
        return self.index.similar(self.queries, select, hashing)

    def votes(
        self,
        k: int,
        sampling_probability: float,
        keys: Sequence[str],
        release: str,
        entropy: Entropy,
        ballots: np.ndarray | None = None,
    ) -> np.ndarray:
        """Votes of the min(k, |sample|) nearest of a fresh Poisson sample per query: int64 [n_queries, n_classes].

        ``ballots``: int64 [n_records, n_classes], what each record adds where it votes; 1 for its label where None.
        """
        return sampled_votes(
            self.index,
            self.labels if ballots is None else ballots,
            self.queries,
            k=k,
            num_classes=self.num_classes,
            sampling_probability=sampling_probability,
            entropy=entropy,
            keys=list(keys),
            release=release,
        )

    def cell_votes(self, neighbours: int) -> np.ndarray:
        """Votes of every record for its label in its nearest cells: int64 [n_queries, m * n_classes], all entries present."""
        return self.index.total(CellVotes(self.queries, neighbours, self.num_classes), self.labels)

    def ball_votes(self, squared_radii: np.ndarray) -> np.ndarray:
        """Records of each class at most so far from each query (int64 [n_queries]): int64 [n_queries, n_classes]."""
        return self.index.total(
            BallVotes(self.queries, squared_radii, self.num_classes), self.labels
        )

    def ball_counts(self, squared_radii: np.ndarray) -> np.ndarray:
        """Records within each of some radii (int64 [m], ascending) of each query: int64 [n_queries, m]."""
        return self.index.total(BallCounts(self.queries, squared_radii), self.labels)

    def grid_counts(self, cells: int) -> np.ndarray:
        """Records in each cell of a uniform grid over the domain box, ``cells`` a side: int64 [cells^d]."""
        return self.index.total(GridCounts(cells), self.labels)

    def teacher_attributes(self, teachers: int) -> Iterator[np.ndarray]:
        """What each of so many linear classifiers says, one after the other: int64 [n_queries, n_attributes] of 0 and 1."""
        return self.ensembles[teachers].attributes(self.queries)

    def teacher_votes(self, teachers: int, classifier: str) -> np.ndarray:
        """How many of so many classifiers, each trained on a shard of its own, choose each class: int64 [n_queries, c]."""
        if classifier == "linear":
            return self.ensembles[teachers].votes(self.queries)
        assert self.inputs is not None
        return self.networks[teachers].votes(self.inputs)
