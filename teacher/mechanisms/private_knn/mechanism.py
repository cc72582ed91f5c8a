"""Private-kNN (CVPR20 Algorithm 1): noisy screening of the plurality, then a noisy argmax.

Each is on a new Poisson sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from labelwall.teacher.accounting.plan import Release
from labelwall.teacher.mechanisms.base import Mechanism, added
from labelwall.teacher.mechanisms.noisy_argmax import AGGREGATE, SCREEN, NoisyArgmax, noisy_winner
from labelwall.teacher.noise.scales import (
    SCREEN_RATIO,
    check_scale,
    check_screen_ratio,
    more_noise,
)
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import Value

if TYPE_CHECKING:  # loading the search would load torch
    from labelwall.teacher.mechanisms.private_knn.planning import PrivateKnnPlanner
    from labelwall.teacher.mechanisms.vote_laws import Poll
    from labelwall.teacher.mechanisms.voters import Voters
    from labelwall.teacher.noise.entropy import Entropy

LEAST_PASSING = 0.2  # share of queries that pass; with fewer the budget buys hardly a label


@dataclass(frozen=True)
class PrivateKnn(NoisyArgmax):
    """Votes of the k nearest of a new Poisson sample, screened by their plurality.

    Guarantee, for one query under add/remove of one record: the screening bit max_j n_j + Z >
    threshold costs ``curves.screening_rdp``, the argmax of n_j + Z_j costs ``curves.argmax_rdp``; a
    record moves the votes by 0, by e_a (sample smaller than k) or by e_a - e_b. The two releases
    never share a sample, so they compose as ordinary adaptive mechanisms. All fields are
    publishable and fixed without looking at private rows.

    Args:
        kind: the mechanism's name.
        k: neighbours that vote, a count of records.
        threshold: the noisy plurality must exceed it for a query to be answered, in votes.
        sigma_screen: scale of the discrete Gaussian noise on the plurality, in votes; null: what
            the budget asks for.
        sigma_vote: scale of the discrete Gaussian noise on each class's count, in votes; null: what
            the budget asks for.
        sampling_probability: each record takes part in a release with this probability,
            independently; in (0, 1].
        screen_ratio: sigma_screen / sigma_vote where the budget asks for both.
    """

    kind: Literal["private_knn"] = "private_knn"
    k: int = 300
    threshold: int = 180
    sigma_screen: float | None = None
    sigma_vote: float | None = None
    sampling_probability: float = 0.15
    screen_ratio: float = added(SCREEN_RATIO)

    stages = (SCREEN, AGGREGATE)
    solved = ("sigma_screen", "sigma_vote")
    sharded = True
    persons = True

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InvalidInput("mechanism.k", "at least 1", self.k)
        if not 0 <= self.threshold <= self.k:
            raise InvalidInput("mechanism.threshold", "between 0 and k", self.threshold)
        for name in ("sigma_screen", "sigma_vote"):
            check_scale(f"mechanism.{name}", getattr(self, name))
        if not 0 < self.sampling_probability <= 1:
            raise InvalidInput(
                "mechanism.sampling_probability", "in (0, 1]", self.sampling_probability
            )
        check_screen_ratio(self.screen_ratio)

    @property
    def sample(self) -> tuple[int, float]:
        """(k, sampling_probability)."""
        return self.k, self.sampling_probability

    def with_noise(self, level: float, asked: int) -> PrivateKnn:
        """See ``Mechanism.with_noise``. Votes move by sqrt(2)."""
        sigma = level * math.sqrt(2)
        return self.filled(
            sigma_screen=more_noise(self.screen_ratio * sigma), sigma_vote=more_noise(sigma)
        )

    def poll(self) -> Poll:
        """See ``NoisyArgmax.poll``."""
        from labelwall.teacher.mechanisms.private_knn import audit

        return audit.poll(self)

    def probes(self) -> tuple[tuple[Mechanism, tuple[str, ...]], ...]:
        """See ``Mechanism.probes``."""
        from labelwall.teacher.mechanisms.private_knn import audit

        return ((audit.probe(self), ()),)

    def foresee(self, records: int, share: Callable[[float], float]) -> str | None:
        """See ``Mechanism.foresee``: the plurality that is expected, against the threshold."""
        sample = records * self.sampling_probability
        voters = min(self.k, sample)
        votes = voters * share(voters / max(sample, 1.0))
        deviation = math.sqrt(2) * self.number("sigma_screen")
        passing = 0.5 * math.erfc((self.threshold - votes) / deviation)
        if passing >= LEAST_PASSING:
            return None
        return (
            f"a sample of about {sample:.0f} of {records} records gives the best class "
            f"{votes:.0f} votes, and {100 * passing:.1f}% of queries pass a threshold of "
            f"{self.threshold}. Set mechanism.threshold to {votes:.0f} or less, or use better "
            "features."
        )

    def planner(self) -> PrivateKnnPlanner:
        """See ``Mechanism.planner``."""
        from labelwall.teacher.mechanisms.private_knn.planning import PrivateKnnPlanner

        return PrivateKnnPlanner()

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` screenings and ``answered`` aggregations."""
        gamma = self.sampling_probability
        screening = {
            "max_votes": self.k,
            "threshold": self.threshold,
            "sigma": self.number("sigma_screen"),
            "sampling_probability": gamma,
        }
        argmax = {"sigma": self.number("sigma_vote"), "sampling_probability": gamma}
        return (
            Release(SCREEN, "screening", screening, asked),
            Release(AGGREGATE, "argmax", argmax, answered),
        )

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Screening bits, or winning classes, of all queries: int64 [n_queries].

        ``keys``: the queries' identities, charged for this stage already.
        """
        # int64 [n_queries, n_classes]
        votes = voters.votes(self.k, self.sampling_probability, keys, stage, entropy)
        if stage == SCREEN:
            noise = entropy.discrete_gaussian(self.number("sigma_screen"), keys, stage, 1)
            return (votes.max(axis=1) + noise[:, 0] > self.threshold).astype(np.int64)
        return noisy_winner(votes, self.number("sigma_vote"), stage, keys, entropy)

    def next_stage(self, results: Mapping[str, Value]) -> str | None:
        """The release a query still needs, given what it has; None when it is settled."""
        if SCREEN not in results:
            return SCREEN
        return AGGREGATE if results[SCREEN] == 1 and AGGREGATE not in results else None
