"""Bases of mechanisms that release one noisy winner for each query."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.messages import ABSTAINED, Outcome, Value
from ..accounting.plan import Release
from ..noise.scales import check_scale, check_screen_ratio, more_noise
from .base import Mechanism

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Voters

SCREEN, AGGREGATE = "screen", "aggregate"
LEAST_PASSING = 0.2  # share of queries that pass; with fewer the budget buys hardly a label


@dataclass(frozen=True)
class NoisyArgmax(Mechanism):
    """A frozen dataclass whose last release is the class with the most noisy votes."""

    stages: ClassVar[tuple[str, ...]] = (AGGREGATE,)

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, int]:
        """(outcome, label) of a settled query."""
        label = results.get(AGGREGATE)
        if isinstance(label, int):
            return Outcome.ANSWERED, label
        return Outcome.ABSTAINED, ABSTAINED


@dataclass(frozen=True)
class ScreenedArgmax(NoisyArgmax):
    """Votes of a fresh Poisson sample for each release: screened by their plurality, then a winner.

    The plurality counts as ``max_votes`` where it is larger, so that it lies in 0..max_votes.

    Class attributes:
        swap: whether a record moves the votes by e_a - e_b (it displaces another), or by e_a alone.
    """

    if TYPE_CHECKING:  # declared by each mechanism, which decides the order of its fields
        threshold: int
        sigma_screen: float | None
        sigma_vote: float | None
        sampling_probability: float
        screen_ratio: float

    stages = (SCREEN, AGGREGATE)
    solved = ("sigma_screen", "sigma_vote")
    sharded = True
    persons = True
    swap: ClassVar[bool] = True

    def check(self) -> None:
        """Raise InvalidInput for a noise, ratio or sampling probability out of range."""
        for name in ("sigma_screen", "sigma_vote"):
            check_scale(f"mechanism.{name}", getattr(self, name))
        if not 0 < self.sampling_probability <= 1:
            raise InvalidInput(
                "mechanism.sampling_probability", "in (0, 1]", self.sampling_probability
            )
        check_screen_ratio(self.screen_ratio)

    @property
    @abstractmethod
    def max_votes(self) -> int:
        """The largest plurality that is told from a smaller one."""

    @abstractmethod
    def votes(
        self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy
    ) -> np.ndarray:
        """Votes of a new sample: int64 [n_queries, n_classes]."""

    @abstractmethod
    def expected_votes(self, records: int) -> float:
        """Voters of a query, a mean, of so many records."""

    def spread(self, votes: int) -> float:
        """Variance of the number of voters over its square, where ``votes`` are expected."""
        return 0.0

    @classmethod
    @abstractmethod
    def sized(cls, votes: int, sampling_probability: float, records: int, **fields: float) -> Self:
        """With ``votes`` expected voters of so many records; ``fields``: threshold and noise."""

    def with_noise(self, level: float, asked: int) -> Self:
        """See ``Mechanism.with_noise``."""
        sigma = level * math.sqrt(2 if self.swap else 1)
        return self.filled(
            sigma_screen=more_noise(self.screen_ratio * sigma), sigma_vote=more_noise(sigma)
        )

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` screenings and ``answered`` aggregations."""
        gamma = self.sampling_probability
        screening = {
            "max_votes": self.max_votes,
            "threshold": self.threshold,
            "sigma": self.number("sigma_screen"),
            "sampling_probability": gamma,
        }
        argmax = {"sigma": self.number("sigma_vote"), "sampling_probability": gamma}
        return (
            Release(SCREEN, "screening", screening, asked),
            Release(AGGREGATE, "argmax", argmax | ({} if self.swap else {"swap": False}), answered),
        )

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Screening bits, or winning classes, of all queries: int64 [n_queries].

        ``keys``: the queries' identities, charged for this stage already.
        """
        votes = self.votes(stage, voters, keys, entropy)
        if stage == SCREEN:
            plurality = np.minimum(votes.max(axis=1), self.max_votes)
            noise = entropy.discrete_gaussian(self.number("sigma_screen"), keys, stage, 1)
            return (plurality + noise[:, 0] > self.threshold).astype(np.int64)
        return noisy_winner(votes, self.number("sigma_vote"), stage, keys, entropy)

    def next_stage(self, results: Mapping[str, Value]) -> str | None:
        """The release a query still needs, given what it has; None when it is settled."""
        if SCREEN not in results:
            return SCREEN
        return AGGREGATE if results[SCREEN] == 1 and AGGREGATE not in results else None


def argmax_release(sigma: float, cap: int) -> Release:
    """``cap`` noisy winners, unsampled, of votes that one record moves by e_a or e_a - e_b."""
    return Release(AGGREGATE, "argmax", {"sigma": sigma, "sampling_probability": 1.0}, cap)


def noisy_winner(
    votes: np.ndarray, sigma: float, stage: str, keys: Sequence[str], entropy: Entropy
) -> np.ndarray:
    """argmax of the noisy votes, ties to the lowest class: int64 [n_queries].

    ``votes``: int64 [n_queries, n_classes]; ``sigma``: of discrete Gaussian noise, in votes.
    """
    return (votes + entropy.discrete_gaussian(sigma, keys, stage, votes.shape[1])).argmax(axis=1)
