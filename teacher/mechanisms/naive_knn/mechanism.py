"""Naive kNN (UAI23 Algorithm 2), a baseline: a noisy plurality of the k nearest of all records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ....wall.errors import InvalidInput
from ...accounting.plan import Release
from ...noise.scales import check_scale, more_noise
from ..noisy_argmax import NoisyArgmax, argmax_release, noisy_winner

if TYPE_CHECKING:
    from ...noise.entropy import Entropy
    from ..voters import Voters


@dataclass(frozen=True)
class NaiveKnn(NoisyArgmax):
    """Votes of the k nearest of all records, with noise on every class.

    Ind-KNN and Private-kNN improve upon it. Guarantee, for one query under add/remove of one
    record: ``curves.argmax_rdp`` without sampling, at its worst over all records: one moves the
    votes by 0, by e_a (fewer than k records) or by e_a - e_b. Every query is answered, and charged.

    Args:
        kind: the mechanism's name.
        k: neighbours that vote, a count of records.
        sigma_vote: scale of the discrete Gaussian noise on each class's count, in votes; null: what
            the budget asks for.
    """

    sharded = True
    persons = True
    solved = ("sigma_vote",)

    kind: Literal["naive_knn"] = "naive_knn"
    k: int = 300
    sigma_vote: float | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InvalidInput("mechanism.k", "at least 1", self.k)
        check_scale("mechanism.sigma_vote", self.sigma_vote)

    def with_noise(self, level: float, asked: int) -> NaiveKnn:
        """See ``Mechanism.with_noise``. Votes move by sqrt(2)."""
        return self.filled(sigma_vote=more_noise(level * math.sqrt(2)))

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` labels."""
        return (argmax_release(self.number("sigma_vote"), asked),)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """The noisy winner of each query: int64 [n_queries]."""
        votes = voters.votes(self.k, 1.0, keys, stage, entropy)
        return noisy_winner(votes, self.number("sigma_vote"), stage, keys, entropy)
