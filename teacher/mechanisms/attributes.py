"""Several labels a row by the tau-approximation (CVPR20 appendix D): noisy clipped attribute votes.

A voter (a neighbour, or one of PATE's classifiers) states for each attribute whether it is present:
f in {0, 1}^c. Its vote is f min(1, tau / |f|_1), rounded down to multiples of 1 / GRID. In units of
1 / GRID a voter's votes are integers v >= 0 with

    |v|_1 <= tau GRID,   v_j <= GRID,   hence   |v|_2^2 <= tau GRID^2.

One record adds v, or replaces v by another voter's w (it displaces the k-th neighbour, or changes
one classifier). As v, w >= 0:

    |v - w|_2^2 <= |v|_2^2 + |w|_2^2 <= 2 tau GRID^2,

attained by two voters with tau attributes each and none in common. All noisy counts are released,
as the curve prices them; which attributes count as present is post-processing. "Absent" votes are
not counted: they would have to be released too.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...wall.label_kinds import MOST_ATTRIBUTES, unpack
from ...wall.messages import ABSTAINED, Outcome, Value
from .base import Classifiers
from .fields import count, noise_scale, param, sampling
from .sums import NoisySum

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Voters

COUNTS = "counts"  # the only release; a query's value is its noisy counts, in 1 / GRID votes
GRID = 1 << 12  # steps of a vote; rounding down loses less than 1 / GRID of it
MAX_VOTERS = 10_000


@dataclass(frozen=True)
class AttributeVotes(NoisySum):
    """Noisy counts of clipped votes on attributes, by neighbours or by classifiers.

    Guarantee, for one query under add/remove of one record: the Gaussian bound
    (``curves.gaussian_rdp``) at L2 sensitivity sqrt(2 tau) votes, alpha tau / sigma_vote^2 in Renyi
    DP (CVPR20 Theorem 13), and less where records are sampled. No query is screened. All fields are
    publishable and fixed without looking at private rows.
    """

    tau: int = count(
        10,
        "bound on the sum of one voter's votes; with more attributes its votes are scaled down",
        MOST_ATTRIBUTES,
    )
    sigma_vote: float | None = noise_scale("each attribute's count", ge=1e-3, le=1e5)
    threshold: float = param(
        0.5,
        "an attribute is present where its noisy count exceeds this share of the voters",
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
    scale = "sigma_vote"
    grid = GRID

    @property
    def sensitivity(self) -> float:
        """Two voters with tau attributes each."""
        return math.sqrt(2 * self.tau)

    @property
    @abstractmethod
    def max_voters(self) -> int:
        """The largest number of voters, public."""

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, Value]:
        """(outcome, labels); a query is answered if any attribute is."""
        labels = self.label(results[COUNTS])
        return (Outcome.ANSWERED if max(labels) > ABSTAINED else Outcome.ABSTAINED), labels

    def label(self, value: Any) -> list[int]:
        """1 (present), 0 (absent) or -1 (within the margin) by attribute."""
        cut, margin = round(self.threshold * self.max_voters * GRID), round(self.margin * GRID)
        return [
            1 if count - cut > margin else 0 if cut - count >= margin else ABSTAINED
            for count in value
        ]


def clipped(bits: np.ndarray, tau: int) -> np.ndarray:
    """Clipped votes of voters' attributes, in 1 / GRID votes: int64 [n, c].

    ``bits``: int64 [n, c] of 0 and 1.
    """
    return bits * np.minimum(GRID, GRID * tau // np.maximum(bits.sum(axis=1, keepdims=True), 1))


def ballots(labels: np.ndarray, attributes: int, tau: int) -> np.ndarray:
    """Clipped votes of records' packed labels (int64 [n]): int64 [n, attributes]."""
    return clipped(unpack(labels, attributes), tau)


@dataclass(frozen=True)
class PrivateKnnAttributes(AttributeVotes):
    """Attributes of the min(k, |sample|) nearest of a Poisson sample, votes clipped to ``tau``.

    Guarantee: that of ``AttributeVotes``, Poisson-subsampled. A sampled record adds its votes or
    displaces the k-th neighbour's.
    """

    kind: Literal["private_knn_attributes"] = "private_knn_attributes"
    k: int = param(800, "neighbours that vote", unit="records", ge=1, le=MAX_VOTERS)
    sampling_probability: float = sampling(0.05)

    @property
    def max_voters(self) -> int:
        return self.k

    @property
    def rate(self) -> float:
        return self.sampling_probability

    def sums(self, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        cast = ballots(voters.labels, voters.num_classes, self.tau)
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

    @property
    def max_voters(self) -> int:
        return self.teachers

    @property
    def needs(self) -> tuple[Classifiers, ...]:
        return (Classifiers("linear", self.teachers),)

    def sums(self, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        votes = np.zeros((len(keys), voters.num_classes), dtype=np.int64)
        for bits in voters.teacher_attributes(self.teachers):
            votes += clipped(bits, self.tau)
        return votes
