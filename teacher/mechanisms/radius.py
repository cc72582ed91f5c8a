"""Radius neighbours over a batch (DMKD17 Algorithms 1 to 3), with noise by how balls overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from .batch import (
    ACCOUNTING,
    NOISE,
    BatchMechanism,
    Noise,
    noisy_winners,
    squared_radius,
    values,
)
from .fields import param, pure_epsilon
from .overlap import Accounting, clique_bounds

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Voters


@dataclass(frozen=True)
class RadiusNeighbours(BatchMechanism):
    """A noisy plurality of the records at most ``radius`` from each query of a batch.

    Guarantee, for one batch under add/remove of one record: all its answers, clique bounds and
    radii are jointly epsilon-DP. A record votes in the balls that it lies in, which are pairwise
    neighbours in the overlap graph; query i spends epsilon / size_i, and the sizes of a clique's
    members are at least its size (overlap.py). Proof: docs/privacy.md, "Batches". All fields are
    publishable and fixed without looking at private rows.
    """

    kind: Literal["radius"] = "radius"
    radius: float = param(
        0.05,
        "of a query's ball; distances are Euclidean",
        unit="sides of the domain box",
        ge=0,
        le=100,
    )
    epsilon: float | None = pure_epsilon("of a batch")
    noise: Noise = param("laplace", NOISE)
    accounting: Accounting = param("local", ACCOUNTING)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Answers of one charged batch, int64 [n_queries, 4].

        Columns: label, clique bound, whether that is exact, squared radius.
        """
        radii = np.full(len(keys), min(squared_radius(self.radius), 1 << 26), dtype=np.int64)
        bounds = clique_bounds(voters.queries, radii, self.accounting)
        votes, epsilon = voters.ball_votes(radii), Fraction(self.require("epsilon"))
        labels = noisy_winners(votes, bounds, epsilon, self.noise, keys, entropy)
        return values(labels, bounds, radii)
