"""Naive kNN (UAI23 Algorithm 2), a baseline: a noisy plurality of the k nearest of all records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .fields import noise_scale, param
from .votes import Votes

if TYPE_CHECKING:
    import numpy as np

    from ..noise.entropy import Entropy
    from .voters import Voters


@dataclass(frozen=True)
class NaiveKnn(Votes):
    """Votes of the k nearest of all records, with noise on every class.

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
