"""Several labels a row by the tau-approximation (CVPR20 appendix D): noisy clipped attribute votes.

A voter (a neighbour, or one of PATE's classifiers) states for each attribute whether it is present:
f in {0, 1}^c. Its vote is f min(1, tau / |f|_1), rounded down to multiples of 1 / GRID. The entries
add up to tau at most, and two voters' votes are sqrt(2 tau) apart at most (docs/privacy.md, section
16). "Absent" votes are not counted: they would have to be released too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...wall.label_kinds import MOST_ATTRIBUTES, unpack
from ...wall.messages import ABSTAINED, Outcome, Value
from .fields import count, nearest, noise_scale, param, sampling
from .sums import NoisySum

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Keys, Voters

COUNTS = "counts"  # the only release; a query's value is its noisy counts, in 1 / GRID votes
GRID = 1 << 12  # steps of a vote; rounding down loses less than 1 / GRID of it
MAX_VOTERS = 10_000


@dataclass(frozen=True)
class AttributeVotes(NoisySum):
    """Noisy counts of clipped votes on attributes, by neighbours or by classifiers.

    Guarantee, for one query under add/remove of one record: the Gaussian bound at L2 sensitivity
    sqrt(2 tau) votes, alpha tau / sigma_vote^2 in Renyi DP (CVPR20 Theorem 13), and less where
    records are sampled. No query is screened.
    """

    tau: int = count(
        10,
        "bound on the sum of one voter's votes; with more attributes its votes are scaled down",
        MOST_ATTRIBUTES,
    )
    sigma_vote: float | None = noise_scale("each attribute's count", ge=1e-3, le=1e5)
    threshold: float = param(
        0.5,
        "an attribute is present if its noisy count exceeds this share of the voters",
        gt=0,
        lt=1,
    )
    margin: float = param(
        0.0,
        "attributes whose noisy count is nearer to the threshold get no label; free",
        unit="votes",
        ge=0,
    )

    stages = (COUNTS,)
    label_space = "attributes"
    noise_field = "sigma_vote"
    grid = GRID
    limit = "k"

    @property
    def sensitivity(self) -> float:
        """Two voters with tau attributes each."""
        return math.sqrt(2 * self.tau)

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, Value]:
        """(outcome, labels); a query is answered if any attribute is."""
        labels = self.label(results[COUNTS])
        return (Outcome.ANSWERED if max(labels) > ABSTAINED else Outcome.ABSTAINED), labels

    def label(self, value: Any) -> list[int]:
        """1 (present), 0 (absent) or -1 (within the margin) by attribute."""
        cut, margin = round(self.threshold * self.max_votes * GRID), round(self.margin * GRID)
        return [
            1 if count - cut > margin else 0 if cut - count >= margin else ABSTAINED
            for count in value
        ]


def clipped(bits: np.ndarray, tau: int) -> np.ndarray:
    """Clipped votes of voters' attributes, in 1 / GRID votes: int64 [n, c].

    ``bits``: int64 [n, c] of 0 and 1.
    """
    return bits * np.minimum(GRID, GRID * tau // np.maximum(bits.sum(axis=1, keepdims=True), 1))


@dataclass(frozen=True)
class PrivateKnnAttributes(AttributeVotes):
    """Attributes of the min(k, |sample|) nearest of a Poisson sample, votes clipped to ``tau``.

    Guarantee: that of ``AttributeVotes``, Poisson-subsampled. A sampled record adds its votes or
    displaces the k-th neighbour's.
    """

    kind: Literal["private_knn_attributes"] = "private_knn_attributes"
    k: int = nearest(800, MAX_VOTERS)
    sample_rate: float = sampling(0.05)

    def tally(self, voters: Voters) -> None:
        voters.rank(self.k, self.rate)

    def sums(self, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        cast = clipped(unpack(voters.labels, voters.num_classes), self.tau)
        return voters.votes(self.k, self.rate, keys, COUNTS, entropy, cast)


@dataclass(frozen=True)
class GnmaxAttributes(AttributeVotes):
    """Attributes by PATE's classifiers on disjoint shards, each one's votes clipped to ``tau``.

    Guarantee: that of ``AttributeVotes`` without sampling: one classifier's votes change.
    """

    kind: Literal["gnmax_attributes"] = "gnmax_attributes"
    teachers: int = count(
        300,
        "disjoint shards of the private records; each is one linear classifier on the round's "
        "features",
        MAX_VOTERS,
    )

    limit = "teachers"

    @property
    def needs(self) -> tuple[tuple[Literal["linear"], int]]:
        return (("linear", self.teachers),)

    def tally(self, voters: Voters) -> np.ndarray:
        votes = np.zeros((len(voters.queries), voters.num_classes), dtype=np.int64)
        for bits in voters.ensembles[self.teachers].attributes(voters.queries):
            votes += clipped(bits, self.tau)
        return votes
