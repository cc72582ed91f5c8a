"""Radius neighbours over a batch (DMKD17 Algorithms 1 to 3), with noise by how balls overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from ....wall.errors import InvalidInput
from .base import (
    BatchMechanism,
    Noise,
    check_epsilon,
    check_noise,
    noisy_winners,
    squared_radius,
    values,
)
from .overlap import Accounting, check_accounting, clique_bounds

if TYPE_CHECKING:
    from ...noise.entropy import Entropy
    from ..voters import Voters


@dataclass(frozen=True)
class RadiusNeighbours(BatchMechanism):
    """A noisy plurality of the records at most ``radius`` from each query of a batch.

    Guarantee, for one batch under add/remove of one record: all its answers, clique bounds and
    radii are jointly epsilon-DP. A record votes in the balls that it lies in, which are pairwise
    neighbours in the overlap graph; query i spends epsilon / size_i, and the sizes of a clique's
    members are at least its size (overlap.py). Proof: docs/privacy.md, "Batches". All fields are
    publishable and fixed without looking at private rows.

    Args:
        kind: the mechanism's name.
        radius: of a query's ball, in sides of the domain box (a share, up to 100); distances are
            Euclidean.
        epsilon: of a batch, pure DP; null: what the budget pays for.
        noise: laplace (discrete Laplace noise on every count), exponential (the exponential
            mechanism) or exponential_paper (the same at half the rate, as published).
        accounting: local (largest clique that the query belongs to), component (of the query's
            component: DMKD17 Algorithm 3) or queries (their number: the baselines of DMKD17 section
            3.1).
    """

    kind: Literal["radius"] = "radius"
    radius: float = 0.05
    epsilon: float | None = None
    noise: Noise = "laplace"
    accounting: Accounting = "local"

    def __post_init__(self) -> None:
        if not 0 <= self.radius <= 100:
            rule = "from 0 to 100 sides of the domain box"
            raise InvalidInput("mechanism.radius", rule, self.radius)
        check_epsilon("epsilon", self.epsilon)
        check_noise(self.noise)
        check_accounting("accounting", self.accounting)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Answers of one charged batch, int64 [n_queries, 4].

        Columns: label, clique bound, whether that is exact, squared radius.
        """
        radii = np.full(len(keys), min(squared_radius(self.radius), 1 << 26), dtype=np.int64)
        bounds = clique_bounds(voters.queries, radii, self.accounting)
        votes = voters.ball_votes(radii)
        labels = noisy_winners(
            votes, bounds, Fraction(self.number("epsilon")), self.noise, keys, entropy
        )
        return values(labels, bounds, radii)
