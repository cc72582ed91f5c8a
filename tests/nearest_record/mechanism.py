"""Randomised response on the nearest record's label: an example of one more mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from labelwall.teacher.accounting.plan import Release
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.noise.scales import less_spent
from labelwall.wall.errors import InvalidInput
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

    Args:
        kind: the mechanism's name.
        epsilon: of one answer, pure DP (dimensionless); null: what the budget pays for.
    """

    kind: Literal["nearest_record"] = "nearest_record"
    epsilon: float | None = None

    stages = (RESPONSE,)
    solved = ("epsilon",)
    sharded = True

    def __post_init__(self) -> None:
        if self.epsilon is not None and not 1e-6 <= self.epsilon <= 1e3:
            raise InvalidInput("mechanism.epsilon", "between 1e-6 and 1000", self.epsilon)

    def with_noise(self, level: float, asked: int) -> NearestRecord:
        """See ``Mechanism.with_noise``."""
        return self.filled(epsilon=less_spent(1 / level))

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """Each query asked is answered."""
        return (Release(RESPONSE, "pure", {"epsilon": self.number("epsilon")}, asked),)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Noisy labels, int64 [n_queries]; label 0 stands for an empty data set."""
        nearest = voters.index.prefix(voters.queries, 1)  # int64 [n_queries, 0 or 1]
        empty = np.zeros(len(keys), dtype=np.int64)
        labels = voters.labels[nearest[:, 0]] if nearest.shape[1] else empty
        losses = (np.arange(voters.num_classes) != labels[:, None]).astype(np.int64)
        rate = Fraction(self.number("epsilon"))
        return entropy.choose(losses, [rate] * len(keys), keys, stage)

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, Value]:
        """(outcome, label) of a settled query."""
        return Outcome.ANSWERED, results[RESPONSE]
