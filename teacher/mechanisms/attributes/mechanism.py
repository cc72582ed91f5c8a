"""Several labels a row by the tau-approximation (CVPR20 appendix D): clipped votes of attributes, noise on every count.

A voter (a neighbour, or one of PATE's classifiers) says of each attribute whether it is present: f in {0, 1}^c. It counts as
f min(1, tau / |f|_1), rounded down to multiples of 1 / GRID, so all votes are integers v >= 0 of one voter with

    |v|_1 <= tau GRID,   v_j <= GRID,   hence   |v|_2^2 <= tau GRID^2.

One record adds v, or replaces it by another w (it displaces the k-th neighbour; it changes one classifier), and v, w >= 0:

    |v - w|_2^2 <= |v|_2^2 + |w|_2^2 <= 2 tau GRID^2,

attained by two voters with tau attributes each and none in common. All noisy counts are released, as the curve prices them; which
attributes count as present is post-processing. "Absent" votes are not counted: they would have to be released too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from labelwall.teacher.accounting.plan import Release
from labelwall.teacher.mechanisms.base import Classifiers, Mechanism
from labelwall.wall.errors import InvalidInput
from labelwall.wall.labels.attributes import MOST_ATTRIBUTES, unpack
from labelwall.wall.messages import ABSTAINED, Outcome, Value

if TYPE_CHECKING:  # loading the search would load torch
    from labelwall.teacher.mechanisms.voters import Voters
    from labelwall.teacher.noise.entropy import Entropy
    from labelwall.teacher.statistical_audit import EmpiricalFinding

COUNTS = (
    "counts"  # the one release; a query's value under it is its noisy counts, in 1 / GRID votes
)
GRID = 1 << 12  # of a vote; rounding down loses less than 1 / GRID of it
MOST_VOTERS = 10_000


@dataclass(frozen=True)
class MultiLabel(Mechanism):
    """What both mechanisms share: noise, price, and what the noisy counts say. ``voters``: how many vote at most, public."""

    stages = (COUNTS,)
    label_space = "attributes"
    sharded = True

    tau: int = 10
    sigma_vote: float = 100.0
    threshold: float = 0.5
    margin: float = 0.0

    @property
    def voters(self) -> int:
        raise NotImplementedError

    def __post_init__(self) -> None:
        if not 1 <= self.tau <= MOST_ATTRIBUTES:
            raise InvalidInput("mechanism.tau", f"from 1 to {MOST_ATTRIBUTES}", self.tau)
        if not 0 < self.threshold < 1:
            raise InvalidInput(
                "mechanism.threshold", "a share of the voters, in (0, 1)", self.threshold
            )
        if not 1e-3 <= self.sigma_vote <= 1e5:
            raise InvalidInput("mechanism.sigma_vote", "between 1e-3 and 1e5", self.sigma_vote)
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise InvalidInput("mechanism.margin", "at least 0 and finite", self.margin)

    @property
    def crowd(self) -> tuple[int, float]:
        """(records at one place that vote at most, probability that each is sampled)."""
        raise NotImplementedError

    def audit(
        self, *, delta: float, trials: int, confidence: float, releases: tuple[str, ...] = ()
    ) -> EmpiricalFinding:
        """See ``Mechanism.audit``."""
        from labelwall.teacher.mechanisms.attributes.audit import audit_attributes

        return audit_attributes(
            self, delta=delta, trials=trials, confidence=confidence, releases=releases
        )

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, Value]:
        """(outcome, labels): for each attribute 1 (present), 0 (absent) or -1 (within the margin), of the noisy counts."""
        counts = results.get(COUNTS)
        assert isinstance(counts, list)
        cut, margin = round(self.threshold * self.voters * GRID), round(self.margin * GRID)
        labels = [
            1 if count - cut > margin else 0 if cut - count >= margin else ABSTAINED
            for count in counts
        ]
        return (Outcome.ANSWERED if max(labels) > ABSTAINED else Outcome.ABSTAINED), labels

    def _release(self, sampling_probability: float, cap: int) -> Release:
        noisy = {"sigma": self.sigma_vote * GRID, "sensitivity": GRID * math.sqrt(2 * self.tau)}
        return Release(
            COUNTS, "gaussian", {**noisy, "sampling_probability": sampling_probability}, cap
        )

    def _noisy(
        self, votes: np.ndarray, stage: str, keys: Sequence[str], entropy: Entropy
    ) -> np.ndarray:
        """int64 [n_queries, c]; a power of two times a float is exact, so the scale drawn is the one accounted."""
        return votes + entropy.discrete_gaussian(
            self.sigma_vote * GRID, keys, stage, votes.shape[1]
        )


def clipped(bits: np.ndarray, tau: int) -> np.ndarray:
    """What voters with attributes ``bits`` (int64 [n, c] of 0 and 1) count for, in 1 / GRID votes: int64 [n, c]."""
    return bits * np.minimum(GRID, GRID * tau // np.maximum(bits.sum(axis=1, keepdims=True), 1))


def ballots(labels: np.ndarray, attributes: int, tau: int) -> np.ndarray:
    """The same of records' packed labels (int64 [n])."""
    return clipped(unpack(labels, attributes), tau)


@dataclass(frozen=True)
class PrivateKnnAttributes(MultiLabel):
    """Attributes of the min(k, |sample|) nearest of a Poisson sample, each neighbour's votes clipped to ``tau``.

    Guarantee, for one query under add/remove of one record: the Poisson-subsampled Gaussian bound (``curves.gaussian_rdp``) at L2
    sensitivity sqrt(2 tau) votes. A record of the sample adds its votes or displaces the k-th neighbour's. CVPR20 Theorem 13 with
    subsampling; no screening, as there. All fields are publishable and fixed without looking at private rows.

    Args:
        kind: the mechanism's name.
        tau: a neighbour with more attributes has votes that add up to this many, a count.
        sigma_vote: scale of the discrete Gaussian noise on each attribute's count, in votes.
        threshold: an attribute is present where its noisy count exceeds this share of k, in (0, 1).
        margin: attributes whose noisy count is nearer to the threshold stay unsaid, in votes; free.
        k: neighbours that vote, a count of records.
        sampling_probability: each record takes part in a release with this probability, independently; in (0, 1].
    """

    kind: Literal["private_knn_attributes"] = "private_knn_attributes"
    k: int = 800
    sampling_probability: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.k <= MOST_VOTERS:
            raise InvalidInput("mechanism.k", f"from 1 to {MOST_VOTERS}", self.k)
        if not 0 < self.sampling_probability <= 1:
            raise InvalidInput(
                "mechanism.sampling_probability", "in (0, 1]", self.sampling_probability
            )

    @property
    def voters(self) -> int:
        return self.k

    @property
    def crowd(self) -> tuple[int, float]:
        """(k, sampling_probability)."""
        return self.k, self.sampling_probability

    def probes(self) -> tuple[tuple[Mechanism, tuple[str, ...]], ...]:
        """See ``Mechanism.probes``."""
        return ((replace(self, tau=1, sigma_vote=1.5, k=1, sampling_probability=0.5), ()),)

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """What ``asked`` queries are, for the accountant; each of them is answered."""
        return (self._release(self.sampling_probability, asked),)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Noisy counts of every attribute: int64 [n_queries, c], in 1 / GRID votes; ``keys``: charged identities."""
        cast = ballots(voters.labels, voters.num_classes, self.tau)
        votes = voters.votes(self.k, self.sampling_probability, keys, stage, entropy, cast)
        return self._noisy(votes, stage, keys, entropy)


@dataclass(frozen=True)
class GnmaxAttributes(MultiLabel):
    """PATE's classifiers on disjoint shards, each saying of every attribute whether it is present; votes clipped to ``tau``.

    Guarantee, for one query under add/remove of one record: alpha tau / sigma_vote^2 in Renyi DP (CVPR20 Theorem 13), the
    Gaussian bound at L2 sensitivity sqrt(2 tau) votes: one classifier's votes change. Nothing is sampled, nothing screened.
    All fields are publishable and fixed without looking at private rows.

    Args:
        kind: the mechanism's name.
        tau: a classifier that says more attributes has votes that add up to this many, a count.
        sigma_vote: scale of the discrete Gaussian noise on each attribute's count, in votes.
        threshold: an attribute is present where its noisy count exceeds this share of the classifiers, in (0, 1).
        margin: attributes whose noisy count is nearer to the threshold stay unsaid, in votes; free.
        teachers: disjoint shards of the private records, a count; each is one linear classifier on the round's features.
    """

    kind: Literal["gnmax_attributes"] = "gnmax_attributes"
    teachers: int = 300

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.teachers <= MOST_VOTERS:
            raise InvalidInput("mechanism.teachers", f"from 1 to {MOST_VOTERS}", self.teachers)

    @property
    def voters(self) -> int:
        return self.teachers

    @property
    def crowd(self) -> tuple[int, float]:
        """The one classifier that is trained on a record, always."""
        return 1, 1.0

    def probes(self) -> tuple[tuple[Mechanism, tuple[str, ...]], ...]:
        """See ``Mechanism.probes``."""
        return ((replace(self, tau=1, sigma_vote=1.5, teachers=2), ()),)

    @property
    def needs(self) -> tuple[Classifiers, ...]:
        """The classifiers that vote."""
        return (Classifiers("linear", self.teachers),)

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """What ``asked`` queries are, for the accountant; each of them is answered."""
        return (self._release(1.0, asked),)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Noisy counts of every attribute: int64 [n_queries, c], in 1 / GRID votes; ``keys``: charged identities."""
        votes = np.zeros((len(keys), voters.num_classes), dtype=np.int64)
        for bits in voters.teacher_attributes(self.teachers):
            votes += clipped(bits, self.tau)
        return self._noisy(votes, stage, keys, entropy)
