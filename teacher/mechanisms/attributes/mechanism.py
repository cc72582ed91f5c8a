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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from ....wall.errors import InvalidInput
from ....wall.labels.attributes import MOST_ATTRIBUTES, unpack
from ....wall.messages import ABSTAINED, Outcome, Value
from ...accounting.plan import Release
from ...noise.scales import more_noise
from ..base import Classifiers, Mechanism

if TYPE_CHECKING:
    from ...noise.entropy import Entropy
    from ..voters import Voters

COUNTS = "counts"  # the only release; a query's value is its noisy counts, in 1 / GRID votes
GRID = 1 << 12  # steps of a vote; rounding down loses less than 1 / GRID of it
MAX_VOTERS = 10_000


@dataclass(frozen=True)
class MultiLabel(Mechanism):
    """Base of both mechanisms: noise, price, and the labels that noisy counts give."""

    stages = (COUNTS,)
    label_space = "attributes"
    solved = ("sigma_vote",)
    sharded = True
    persons = True

    tau: int = 10
    sigma_vote: float | None = None
    threshold: float = 0.5
    margin: float = 0.0

    @property
    def max_voters(self) -> int:
        """The largest number of voters, public."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        if not 1 <= self.tau <= MOST_ATTRIBUTES:
            raise InvalidInput("mechanism.tau", f"from 1 to {MOST_ATTRIBUTES}", self.tau)
        if not 0 < self.threshold < 1:
            raise InvalidInput(
                "mechanism.threshold", "a share of the voters, in (0, 1)", self.threshold
            )
        if self.sigma_vote is not None and not 1e-3 <= self.sigma_vote <= 1e5:
            raise InvalidInput("mechanism.sigma_vote", "between 1e-3 and 1e5", self.sigma_vote)
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise InvalidInput("mechanism.margin", "at least 0 and finite", self.margin)

    def with_noise(self, level: float, asked: int) -> Self:
        """See ``Mechanism.with_noise``. Votes move by sqrt(2 tau)."""
        return self.filled(sigma_vote=more_noise(level * math.sqrt(2 * self.tau)))

    @property
    def voting_records(self) -> tuple[int, float]:
        """(most records at one point that vote, probability that each is sampled)."""
        raise NotImplementedError

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, Value]:
        """(outcome, labels): 1 (present), 0 (absent) or -1 (within the margin) by attribute."""
        counts = results.get(COUNTS)
        assert isinstance(counts, list)
        cut, margin = round(self.threshold * self.max_voters * GRID), round(self.margin * GRID)
        labels = [
            1 if count - cut > margin else 0 if cut - count >= margin else ABSTAINED
            for count in counts
        ]
        return (Outcome.ANSWERED if max(labels) > ABSTAINED else Outcome.ABSTAINED), labels

    def _release(self, sampling_probability: float, cap: int) -> Release:
        priced = {
            "sigma": self.number("sigma_vote") * GRID,
            "sensitivity": GRID * math.sqrt(2 * self.tau),
            "sampling_probability": sampling_probability,
        }
        return Release(COUNTS, "gaussian", priced, cap)

    def _add_noise(
        self, votes: np.ndarray, stage: str, keys: Sequence[str], entropy: Entropy
    ) -> np.ndarray:
        """``votes`` plus noise: int64 [n_queries, c].

        A power of two times a float is exact, so the scale drawn is the accounted one.
        """
        scale = self.number("sigma_vote") * GRID
        return votes + entropy.discrete_gaussian(scale, keys, stage, votes.shape[1])


def clipped(bits: np.ndarray, tau: int) -> np.ndarray:
    """Clipped votes of voters' attributes, in 1 / GRID votes: int64 [n, c].

    ``bits``: int64 [n, c] of 0 and 1.
    """
    return bits * np.minimum(GRID, GRID * tau // np.maximum(bits.sum(axis=1, keepdims=True), 1))


def ballots(labels: np.ndarray, attributes: int, tau: int) -> np.ndarray:
    """Clipped votes of records' packed labels (int64 [n]): int64 [n, attributes]."""
    return clipped(unpack(labels, attributes), tau)


@dataclass(frozen=True)
class PrivateKnnAttributes(MultiLabel):
    """Attributes of the min(k, |sample|) nearest of a Poisson sample, votes clipped to ``tau``.

    Guarantee, for one query under add/remove of one record: the Poisson-subsampled Gaussian bound
    (``curves.gaussian_rdp``) at L2 sensitivity sqrt(2 tau) votes. A sampled record adds its votes
    or displaces the k-th neighbour's. This is CVPR20 Theorem 13 with subsampling; like there, no
    query is screened. All fields are publishable and fixed without looking at private rows.

    Args:
        kind: the mechanism's name.
        tau: bound on the sum of one neighbour's votes, a count; with more attributes its votes
            are scaled down to this sum.
        sigma_vote: scale of the discrete Gaussian noise on each attribute's count, in votes; null:
            what the budget asks for.
        threshold: an attribute is present where its noisy count exceeds this share of k, in (0, 1).
        margin: attributes whose noisy count is nearer to the threshold get no label, in votes;
            free.
        k: neighbours that vote, a count of records.
        sampling_probability: each record takes part in a release with this probability,
            independently; in (0, 1].
    """

    kind: Literal["private_knn_attributes"] = "private_knn_attributes"
    k: int = 800
    sampling_probability: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.k <= MAX_VOTERS:
            raise InvalidInput("mechanism.k", f"from 1 to {MAX_VOTERS}", self.k)
        if not 0 < self.sampling_probability <= 1:
            raise InvalidInput(
                "mechanism.sampling_probability", "in (0, 1]", self.sampling_probability
            )

    @property
    def max_voters(self) -> int:
        """See ``MultiLabel.max_voters``."""
        return self.k

    @property
    def voting_records(self) -> tuple[int, float]:
        """(k, sampling_probability)."""
        return self.k, self.sampling_probability

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` queries; each of them is answered."""
        return (self._release(self.sampling_probability, asked),)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Noisy counts of every attribute, in 1 / GRID votes: int64 [n_queries, c]."""
        clipped_votes = ballots(voters.labels, voters.num_classes, self.tau)
        gamma = self.sampling_probability
        votes = voters.votes(self.k, gamma, keys, stage, entropy, clipped_votes)
        return self._add_noise(votes, stage, keys, entropy)


@dataclass(frozen=True)
class GnmaxAttributes(MultiLabel):
    """Attributes by PATE's classifiers on disjoint shards, each one's votes clipped to ``tau``.

    Guarantee, for one query under add/remove of one record: alpha tau / sigma_vote^2 in Renyi DP
    (CVPR20 Theorem 13), the Gaussian bound at L2 sensitivity sqrt(2 tau) votes: one classifier's
    votes change. Nothing is sampled, nothing screened. All fields are publishable and fixed without
    looking at private rows.

    Args:
        kind: the mechanism's name.
        tau: bound on the sum of one classifier's votes, a count; with more attributes its votes
            are scaled down to this sum.
        sigma_vote: scale of the discrete Gaussian noise on each attribute's count, in votes; null:
            what the budget asks for.
        threshold: an attribute is present where its noisy count exceeds this share of the
            classifiers, in (0, 1).
        margin: attributes whose noisy count is nearer to the threshold get no label, in votes;
            free.
        teachers: disjoint shards of the private records, a count; each is one linear classifier on
            the round's features.
    """

    kind: Literal["gnmax_attributes"] = "gnmax_attributes"
    teachers: int = 300

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.teachers <= MAX_VOTERS:
            raise InvalidInput("mechanism.teachers", f"from 1 to {MAX_VOTERS}", self.teachers)

    @property
    def max_voters(self) -> int:
        """See ``MultiLabel.max_voters``."""
        return self.teachers

    @property
    def voting_records(self) -> tuple[int, float]:
        """The one classifier that is trained on a record, always."""
        return 1, 1.0

    @property
    def needs(self) -> tuple[Classifiers, ...]:
        """The classifiers that vote."""
        return (Classifiers("linear", self.teachers),)

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` queries; each of them is answered."""
        return (self._release(1.0, asked),)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Noisy counts of every attribute, in 1 / GRID votes: int64 [n_queries, c]."""
        votes = np.zeros((len(keys), voters.num_classes), dtype=np.int64)
        for bits in voters.teacher_attributes(self.teachers):
            votes += clipped(bits, self.tau)
        return self._add_noise(votes, stage, keys, entropy)
