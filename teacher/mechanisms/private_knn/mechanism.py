"""Private-kNN (CVPR20 Algorithm 1): noisy screening of the plurality, then a noisy argmax.

Each is on a new Poisson sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ....wall.errors import InvalidInput
from ...noise.scales import SCREEN_RATIO
from ..noisy_argmax import ScreenedArgmax

if TYPE_CHECKING:
    from ...noise.entropy import Entropy
    from ..voters import Voters


@dataclass(frozen=True)
class PrivateKnn(ScreenedArgmax):
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
    screen_ratio: float = SCREEN_RATIO

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InvalidInput("mechanism.k", "at least 1", self.k)
        if not 0 <= self.threshold <= self.k:
            raise InvalidInput("mechanism.threshold", "between 0 and k", self.threshold)
        self.check()

    @property
    def sample(self) -> tuple[int, float]:
        """(k, sampling_probability)."""
        return self.k, self.sampling_probability

    @property
    def max_votes(self) -> int:
        """k."""
        return self.k

    def expected_votes(self, records: int) -> float:
        """See ``ScreenedArgmax.expected_votes``."""
        return min(float(self.k), self.sampling_probability * records)

    @classmethod
    def sized(
        cls, votes: int, sampling_probability: float, records: int, **fields: float
    ) -> PrivateKnn:
        """See ``ScreenedArgmax.sized``."""
        return cls(k=votes, sampling_probability=sampling_probability, **fields)  # type: ignore[arg-type]

    def votes(
        self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy
    ) -> np.ndarray:
        """See ``ScreenedArgmax.votes``."""
        return voters.votes(self.k, self.sampling_probability, keys, stage, entropy)
