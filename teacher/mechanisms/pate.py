"""PATE (Papernot et al. 2017, 2018): a noisy plurality of classifiers trained on disjoint shards.

One record changes one classifier (teacher/classifiers), so the votes move by e_a - e_b: L1 2, L2
sqrt(2), each count and the maximum by 1. Nothing is sampled, hence no amplification. Only
data-independent certificates are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from ...wall.errors import InvalidInput
from ..accounting.plan import Release
from ..classifiers.linear_ensemble import MAX_TEACHERS
from ..noise.scales import more_noise
from .base import Classifiers
from .fields import count, noise_scale, param, ratio
from .votes import AGGREGATE, Votes, vote_threshold

if TYPE_CHECKING:
    import numpy as np

    from ..noise.entropy import Entropy
    from .voters import Voters


@dataclass(frozen=True)
class Pate(Votes):
    """Base of the three kinds: classifiers of one form on disjoint shards of the records."""

    teachers: int = count(
        250,
        "disjoint shards of the private records; each is one classifier and one vote",
        MAX_TEACHERS,
    )
    classifier: Literal["linear", "cnn"] = param(
        "linear",
        "what is trained on a shard: linear (ridge regression on the round's features, anew each "
        "round) or cnn (a small network on the images themselves, once)",
    )

    limit = "teachers"

    @property
    def needs(self) -> tuple[Classifiers, ...]:
        return (Classifiers(self.classifier, self.teachers),)

    def require_sharded(self) -> None:
        """Raise InvalidInput for networks: no process has the images of all shards."""
        if self.classifier != "linear":
            rule = "0 for PATE's networks (mechanism.classifier: cnn)"
            raise InvalidInput("scale.shards", rule, self.kind)

    def votes(
        self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy
    ) -> np.ndarray:
        return voters.teacher_votes(self.teachers, self.classifier)


@dataclass(frozen=True)
class Lnmax(Pate):
    """LNMAX (Papernot et al. 2017, section 2.1): argmax of counts with Laplace noise.

    Guarantee, for one query: releasing all noisy counts is (2 / scale)-DP by their L1 sensitivity
    2, and the argmax post-processes them: ``curves.laplace_rdp``, min(epsilon, alpha epsilon^2 / 2)
    with epsilon = 2 / scale. The noise is the discrete Laplace distribution; the tighter Renyi
    curve of continuous Laplace noise does not hold for it. Every query is answered.
    """

    kind: Literal["lnmax"] = "lnmax"
    scale: float | None = noise_scale("every class's count, discrete Laplace (1 / gamma)")

    def with_noise(self, level: float, asked: int) -> Self:
        """Votes move by 2 in L1."""
        return self.with_values(scale=more_noise(2 * level))

    def answer_release(self, cap: int) -> Release:
        priced = {"scale": self.require("scale"), "sensitivity": 2.0}
        return Release(AGGREGATE, "laplace", priced, cap)

    def noise(self, keys: Sequence[str], width: int, entropy: Entropy) -> np.ndarray:
        """Discrete Laplace noise: int64 [n_queries, width]."""
        return entropy.discrete_laplace(self.require("scale"), keys, AGGREGATE, width)


@dataclass(frozen=True)
class Gnmax(Pate):
    """GNMAX (Papernot et al. 2018, Definition 6): argmax of counts with Gaussian noise.

    Guarantee: that of ``Votes`` without sampling. Every query is answered.
    """

    kind: Literal["gnmax"] = "gnmax"
    sigma_vote: float | None = noise_scale("every class's count")


@dataclass(frozen=True)
class ConfidentGnmax(Pate):
    """Confident-GNMAX (Papernot et al. 2018, Algorithm 1): noisy screening, then GNMAX.

    Guarantee: that of ``Votes`` without sampling. Each release draws its own noise.
    """

    kind: Literal["confident_gnmax"] = "confident_gnmax"
    threshold: int = vote_threshold(200)
    sigma_screen: float | None = noise_scale("the plurality")
    sigma_vote: float | None = noise_scale("every class's count")
    screen_ratio: float = ratio()
