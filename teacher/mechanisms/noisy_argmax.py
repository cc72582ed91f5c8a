"""Base of mechanisms that release one noisy winner for each query."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from labelwall.teacher.accounting.plan import Release
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.wall.messages import ABSTAINED, Outcome, Value

if TYPE_CHECKING:
    from labelwall.teacher.mechanisms.vote_laws import Poll
    from labelwall.teacher.noise.entropy import Entropy
    from labelwall.teacher.statistical_audit import EmpiricalFinding

SCREEN, AGGREGATE = "screen", "aggregate"


@dataclass(frozen=True)
class NoisyArgmax(Mechanism):
    """A frozen dataclass whose last release is the class with the most noisy votes."""

    stages: ClassVar[tuple[str, ...]] = (AGGREGATE,)

    @abstractmethod
    def poll(self) -> Poll:
        """The vote as the statistical audit sees it (audit.py beside the mechanism)."""

    def audit(
        self, *, delta: float, trials: int, confidence: float, releases: tuple[str, ...] = ()
    ) -> EmpiricalFinding:
        """See ``Mechanism.audit``."""
        from labelwall.teacher.mechanisms.vote_audit import audit_votes

        return audit_votes(
            self, delta=delta, trials=trials, confidence=confidence, releases=releases
        )

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, int]:
        """(outcome, label) of a settled query."""
        label = results.get(AGGREGATE)
        if isinstance(label, int):
            return Outcome.ANSWERED, label
        return Outcome.ABSTAINED, ABSTAINED


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
