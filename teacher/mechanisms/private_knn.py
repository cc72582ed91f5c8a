"""Noisy votes of the k nearest: of a Poisson sample (Private-kNN), or of all (naive kNN)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .fields import noise_scale, param, ratio, sampling
from .votes import SampledVotes, Votes, vote_threshold

if TYPE_CHECKING:
    import numpy as np

    from ..noise.entropy import Entropy
    from .voters import Voters


@dataclass(frozen=True)
class PrivateKnn(SampledVotes):
    """Votes of the k nearest of a new Poisson sample, screened (CVPR20 Algorithm 1).

    Guarantee: that of ``Votes``, Poisson-subsampled. A sampled record joins the k nearest (e_a) or
    displaces one of them (e_a - e_b).
    """

    kind: Literal["private_knn"] = "private_knn"
    k: int = param(300, "neighbours that vote", unit="records", ge=1)
    threshold: int = vote_threshold(180)
    sigma_screen: float | None = noise_scale("the plurality")
    sigma_vote: float | None = noise_scale("each class's count")
    sampling_probability: float = sampling(0.15)
    screen_ratio: float = ratio()

    @property
    def sample(self) -> tuple[int, float]:
        """(k, sampling_probability)."""
        return self.k, self.sampling_probability

    def expected_votes(self, records: int) -> float:
        """See ``SampledVotes.expected_votes``."""
        return min(float(self.k), self.sampling_probability * records)

    @classmethod
    def sized(
        cls, votes: int, sampling_probability: float, records: int, **fields: Any
    ) -> PrivateKnn:
        """See ``SampledVotes.sized``."""
        return cls(k=votes, sampling_probability=sampling_probability, **fields)

    def votes(
        self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy
    ) -> np.ndarray:
        """See ``Votes.votes``."""
        return voters.votes(self.k, self.sampling_probability, keys, stage, entropy)


@dataclass(frozen=True)
class NaiveKnn(Votes):
    """Votes of the k nearest of all records (UAI23 Algorithm 2), a baseline.

    Ind-KNN and Private-kNN improve upon it. Guarantee: that of ``Votes`` without sampling; every
    query is answered, and charged. A record joins the k nearest (e_a) or displaces one (e_a - e_b).
    """

    kind: Literal["naive_knn"] = "naive_knn"
    k: int = param(300, "neighbours that vote", unit="records", ge=1)
    sigma_vote: float | None = noise_scale("each class's count")

    def votes(
        self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy
    ) -> np.ndarray:
        """See ``Votes.votes``."""
        return voters.votes(self.k, 1.0, keys, stage, entropy)
