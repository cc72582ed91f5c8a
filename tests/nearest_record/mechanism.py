"""Randomised response on the nearest record's label: an example of one more mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from labelwall.teacher.accounting.plan import Release
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.fields import less_spent, pure_epsilon
from labelwall.wall.messages import Outcome, Value

if TYPE_CHECKING:
    from labelwall.teacher.mechanisms.voters import Voters
    from labelwall.teacher.noise.entropy import Entropy

RESPONSE = "response"


@dataclass(frozen=True)
class NearestRecord(Mechanism):
    """The label of the nearest record, kept with probability e^epsilon / (e^epsilon + c - 1).

    Guarantee, for one query under add/remove of one record: epsilon-DP. A record changes which
    label is nearest, and each answer's probability by a factor of at most e^epsilon.
    """

    kind: Literal["nearest_record"] = "nearest_record"
    epsilon: float | None = pure_epsilon("of one answer")

    stages = (RESPONSE,)

    def with_noise(self, level: float, asked: int) -> NearestRecord:
        return self.with_values(epsilon=less_spent(1 / level))

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        return (Release(RESPONSE, "pure", {"epsilon": self.require("epsilon")}, asked),)

    def tally(self, voters: Voters) -> np.ndarray:
        """Labels of the nearest records, int64 [n_queries, 1]; 0 stands for an empty data set."""
        nearest = voters.index.prefix(voters.queries, 1)  # int64 [n_queries, 0 or 1]
        empty = np.zeros((len(nearest), 1), dtype=np.int64)
        return voters.labels[nearest].astype(np.int64) if nearest.shape[1] else empty

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Noisy labels, int64 [n_queries]."""
        labels = self.tally(voters) if voters.tally is None else voters.tally
        losses = (np.arange(voters.num_classes) != labels).astype(np.int64)
        rate = Fraction(self.require("epsilon"))
        return entropy.choose(losses, [rate] * len(keys), keys, stage)

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, Value]:
        return Outcome.ANSWERED, results[RESPONSE]
