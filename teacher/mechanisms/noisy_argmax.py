"""What mechanisms of one noisy winner a query share: the last release, and its price without sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from labelwall.teacher.accounting.plan import Release
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.wall.messages import ABSTAINED, Outcome, Value

if TYPE_CHECKING:
    from labelwall.teacher.mechanisms.vote_audit import EmpiricalFinding
    from labelwall.teacher.noise.entropy import Entropy

AGGREGATE = "aggregate"


@dataclass(frozen=True)
class NoisyArgmax(Mechanism):
    """A frozen dataclass whose last release is the class with the most noisy votes."""

    stages = (AGGREGATE,)

    def probes(self) -> tuple[tuple[Mechanism, tuple[str, ...]], ...]:
        """See ``Mechanism.probes``."""
        from labelwall.teacher.mechanisms import vote_audit

        return ((vote_audit.probe(self), ()),)

    def audit(
        self, *, delta: float, trials: int, confidence: float, releases: tuple[str, ...] = ()
    ) -> EmpiricalFinding:
        """See ``Mechanism.audit``."""
        from labelwall.teacher.mechanisms import vote_audit

        return vote_audit.audit_mechanism(self, delta=delta, trials=trials, confidence=confidence)

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, int]:
        """(outcome, label) of a settled query."""
        label = results.get(AGGREGATE)
        return (
            (Outcome.ANSWERED, label) if isinstance(label, int) else (Outcome.ABSTAINED, ABSTAINED)
        )


def argmax_release(sigma: float, cap: int) -> Release:
    """So many noisy winners of votes that one record moves by e_a or e_a - e_b, always there: nothing is sampled."""
    return Release(AGGREGATE, "argmax", {"sigma": sigma, "sampling_probability": 1.0}, cap)


def noisy_winner(
    votes: np.ndarray, sigma: float, stage: str, keys: Sequence[str], entropy: Entropy
) -> np.ndarray:
    """argmax of int64 [n_queries, n_classes] plus noise, ties to the lowest class: int64 [n_queries]."""
    return (votes + entropy.discrete_gaussian(sigma, keys, stage, votes.shape[1])).argmax(axis=1)
