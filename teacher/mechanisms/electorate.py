"""The private records under one extractor, and the queries of a batch that they vote on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from teacher.ensemble import Ensemble
from teacher.kernels import Select, Similar
from teacher.mechanisms.radii import cell_numbers
from teacher.neighbors import ExactIndex, sampled_votes
from teacher.privacy.noise import Entropy
from wall.cells import nearest_cells

if TYPE_CHECKING:
    from teacher.cnn_ensemble import CnnEnsemble


@dataclass(frozen=True)
class Electorate:
    """Searchable private embeddings with their labels, and one batch of embedded queries.

    ``index``: of the records whose features are finite; ``labels``: int64 [n_records], packed where they
    are attributes, of which there are ``num_classes`` then; ``queries``: int8 [n_queries, d], or
    [n_queries, m, d] where a query is a set of m cells. ``length``: that of a unit vector after quantisation, public.
    ``ensembles``: linear ones, by their number of classifiers; ``networks``: those that vote on ``inputs``, the batch's images,
    uint8 [n_queries, h, w, c].
    """

    index: ExactIndex = field(repr=False)
    labels: np.ndarray = field(repr=False)
    num_classes: int
    queries: np.ndarray = field(repr=False)
    length: float = 1.0
    ensembles: Mapping[int, Ensemble] = field(default_factory=dict, repr=False)
    networks: Mapping[int, CnnEnsemble] = field(default_factory=dict, repr=False)
    inputs: np.ndarray | None = field(default=None, repr=False)

    def select(self, rows: Sequence[int]) -> Electorate:
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
        features, shape = self.index.features, (self.queries.shape[1], self.num_classes)
        votes = np.zeros((len(self.queries), *shape), dtype=np.int64)
        for counts, centers in zip(votes, self.queries, strict=True):
            np.add.at(counts, (nearest_cells(features, centers, neighbours), self.labels[:, None]), 1)
        return votes.reshape(len(votes), -1)  # [n_queries, m, n_classes] -> [n_queries, m * n_classes]

    def ball_votes(self, squared_radii: np.ndarray) -> np.ndarray:
        """Records of each class at most so far from each query (int64 [n_queries]): int64 [n_queries, n_classes]."""
        votes = np.zeros((len(self.queries), self.num_classes), dtype=np.int64)
        for counts, squared, reach in zip(votes, self.index.distances(self.queries), squared_radii.tolist(), strict=True):
            counts += np.bincount(self.labels[squared <= reach], minlength=self.num_classes)
        return votes

    def ball_counts(self, squared_radii: np.ndarray) -> np.ndarray:
        """Records within each of some radii (int64 [m], ascending) of each query: int64 [n_queries, m]."""
        counts = np.zeros((len(self.queries), len(squared_radii)), dtype=np.int64)
        for row, squared in zip(counts, self.index.distances(self.queries), strict=True):
            nearest = np.searchsorted(squared_radii, squared)  # the first radius that reaches the record
            row += np.bincount(nearest, minlength=len(row) + 1)[: len(row)].cumsum()
        return counts

    def grid_counts(self, cells: int) -> np.ndarray:
        """Records in each cell of a uniform grid over the domain box, ``cells`` a side: int64 [cells^d]."""
        features = self.index.features
        return np.bincount(cell_numbers(features, cells), minlength=cells ** features.shape[1])

    def teacher_attributes(self, teachers: int) -> Iterator[np.ndarray]:
        """What each of so many linear classifiers says, one after the other: int64 [n_queries, n_attributes] of 0 and 1."""
        return self.ensembles[teachers].attributes(self.queries)

    def teacher_votes(self, teachers: int, classifier: str) -> np.ndarray:
        """How many of so many classifiers, each trained on a shard of its own, choose each class: int64 [n_queries, c]."""
        if classifier == "linear":
            return self.ensembles[teachers].votes(self.queries)
        assert self.inputs is not None
        return self.networks[teachers].votes(self.inputs)
