"""Radius votes: as Private-kNN, by every sampled record within a radius.

A record adds one vote and displaces none, so that less noise hides it than one of the k nearest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..search.cpu import ExactIndex
from .base import QueryForm
from .fields import noise_scale, param, ratio, sampling
from .votes import SampledVotes, vote_threshold

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Voters

LANDMARKS = 2_000  # public rows that radii are measured by, at most
# Deviations of the noise above the threshold at which a plurality is cut off: it passes but once in
# 10^9 queries, whether it is cut or not.
CUT = 6
MOST_VOTES = 10**6  # of the curve
EVERYWHERE = 1 << 26  # above every squared distance


@dataclass(frozen=True)
class PrivateRadius(SampledVotes):
    """Votes of all of a new Poisson sample within a public radius, screened by their plurality.

    A query's radius is its distance to its j-th nearest landmark (a public row), with j = share x
    landmarks. Dense regions get a small one, so that about as many records vote everywhere.

    Guarantee: that of ``Votes`` without a swap, Poisson-subsampled: a record moves the votes by 0
    or e_a, whatever the radius. Proof: docs/privacy.md, section 5.
    """

    kind: Literal["private_radius"] = "private_radius"
    share: float = param(
        0.03,
        "part of the public rows that a query's radius has within; about share x "
        "sampling_probability of the private records vote",
        gt=0,
        le=1,
    )
    threshold: int = vote_threshold(150, MOST_VOTES)
    sigma_screen: float | None = noise_scale("the plurality")
    sigma_vote: float | None = noise_scale("each class's count")
    sampling_probability: float = sampling(0.15)
    screen_ratio: float = ratio()

    swap = False
    limit = ""

    @property
    def query_form(self) -> QueryForm:
        """Rows, with landmarks in the extractor."""
        return QueryForm(landmarks=LANDMARKS)

    @property
    def max_votes(self) -> int:
        """CUT deviations above the threshold."""
        return min(self.threshold + math.ceil(CUT * self.require("sigma_screen")), MOST_VOTES)

    def expected_votes(self, records: int) -> float:
        """See ``SampledVotes.expected_votes``."""
        return self.share * self.sampling_probability * records

    def spread(self, votes: int) -> float:
        """Poisson, and the radius varies with the landmarks."""
        return 1 / max(votes, 1) + 1 / max(self.share * LANDMARKS, 1)

    @classmethod
    def sized(
        cls, votes: int, sampling_probability: float, records: int, **fields: Any
    ) -> PrivateRadius:
        """See ``SampledVotes.sized``."""
        share = min(1.0, float(f"{votes / (sampling_probability * records):.4g}"))
        return cls(share=share, sampling_probability=sampling_probability, **fields)

    def votes(
        self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy
    ) -> np.ndarray:
        """See ``Votes.votes``."""
        radii = squared_radii(voters.queries, voters.landmarks, self.share)
        return voters.sampled_ball_votes(radii, self.sampling_probability, keys, stage, entropy)


def squared_radii(queries: np.ndarray, landmarks: bytes, share: float) -> np.ndarray:
    """The squared distance of each query to its j-th nearest landmark: int64 [q].

    j = ``share`` of the landmarks, at least 1. A landmark at distance 0 does not count: it may be
    the query itself. Where fewer than j are left, every record is within.

    ``queries``: int8 [q, d]; ``landmarks``: int8 [m, d] as bytes.
    """
    rows = np.frombuffer(landmarks, dtype=np.int8).reshape(-1, queries.shape[1]).copy()
    wanted = max(1, round(share * len(rows)))
    index = ExactIndex(rows, np.arange(len(rows)), threads=1)
    radii = np.full(len(queries), EVERYWHERE, dtype=np.int64)
    for query, squared in enumerate(index.distances(queries)):
        apart = squared[squared > 0]
        if len(apart) >= wanted:
            radii[query] = np.partition(apart, wanted - 1)[wanted - 1]
    return radii
