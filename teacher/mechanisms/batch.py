"""Batches of queries under pure DP (DMKD17): one charge pays for all answers of a batch.

Radius neighbours are the records in a ball (Algorithms 1 to 3); batch_knn.py finds radii first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.messages import ABSTAINED, Outcome, Value
from ..accounting.conversion import float_above
from ..accounting.plan import Release
from ..noise.scales import less_spent
from .base import Charging, Mechanism
from .fields import param, pure_epsilon
from .overlap import MAX_QUERIES, Accounting, Bounds, clique_bounds

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Voters

# The only release; a query's value is [label, clique bound, whether that is exact, squared radius].
BATCH = "batch"
LABEL_NOISE = "label"  # purpose of a draw
SIDE = 126  # of the domain box: features are integers in -63..63 in each dimension

Noise = Literal["laplace", "exponential", "exponential_paper"]
NOISE = (
    "of the labels: laplace (discrete Laplace noise on every count), exponential (the exponential "
    "mechanism) or exponential_paper (the same at half the rate, as published)"
)
ACCOUNTING = (
    "local (largest clique that the query belongs to), component (of the query's component: DMKD17 "
    "Algorithm 3) or queries (their number: the baselines of DMKD17 section 3.1)"
)


@dataclass(frozen=True)
class BatchMechanism(Mechanism):
    """Base of the batch mechanisms.

    The neighbourhoods of a batch are balls (or the k nearest); the noise follows from how many of
    them one record can lie in.
    """

    if TYPE_CHECKING:  # declared by each mechanism, which decides the order of its fields
        epsilon: float | None

    stages = (BATCH,)
    charging = Charging.PER_BATCH
    sharded = True
    persons = True

    def with_noise(self, level: float, asked: int) -> Self:
        """See ``Mechanism.with_noise``."""
        return self.with_values(epsilon=less_spent(1 / level))

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """``asked`` batches, epsilon-DP each.

        Raises InvalidInput where epsilon is not filled in (``with_noise``).
        """
        return (Release(BATCH, "pure", {"epsilon": self.require("epsilon")}, asked, batch=True),)

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, int]:
        """(outcome, label) of a settled query; every query of a paid batch is answered."""
        value = results.get(BATCH)
        return (
            (Outcome.ANSWERED, value[0])
            if isinstance(value, list)
            else (Outcome.ABSTAINED, ABSTAINED)
        )

    def receipt(self, results: Sequence[Mapping[str, Value]]) -> dict[str, int]:
        """Public numbers: the largest clique bound, and the number of bounds by colouring."""
        answered = [value for known in results if isinstance(value := known.get(BATCH), list)]
        return {
            "largest": max((bound for _, bound, _, _ in answered), default=0),
            "by_colouring": sum(1 - exact for _, _, exact, _ in answered),
        }

    def require_batch(self, queries: int, dimensions: int) -> None:
        """Raise InvalidInput, before anything is charged, for a batch that can not be answered."""
        if queries > MAX_QUERIES:
            raise InvalidInput("queries", f"at most {MAX_QUERIES} in a batch", queries)


def noisy_winners(
    votes: np.ndarray,
    bounds: Bounds,
    epsilon: Fraction,
    noise: Noise,
    keys: Sequence[str],
    entropy: Entropy,
) -> np.ndarray:
    """One class for each query, int64 [q]; epsilon-DP for the batch.

    ``votes``: int64 [q, c], counts of the records in each query's ball. A record adds 1 to one
    count of each ball that it lies in. Query i spends e_i = epsilon / size_i.

    "laplace": argmax of the counts plus discrete Laplace noise of scale 1 / e_i, ties to the lowest
    class (DMKD17 Algorithm 1). "exponential": probability proportional to exp(e_i count), e_i-DP
    because a record only raises counts. "exponential_paper": exp(e_i count / 2) (DMKD17 Algorithm
    2), which needs no such argument.
    """
    if noise == "laplace":
        drawn = laplace(bounds.sizes, epsilon, keys, votes.shape[1], entropy)
        return (votes + drawn).argmax(axis=1)
    divisor = 2 if noise == "exponential_paper" else 1
    rates = [epsilon / (divisor * size) for size in bounds.sizes.tolist()]
    return entropy.choose(votes.max(axis=1, keepdims=True) - votes, rates, keys, LABEL_NOISE)


def laplace(
    sizes: np.ndarray, epsilon: Fraction, keys: Sequence[str], width: int, entropy: Entropy
) -> np.ndarray:
    """Discrete Laplace noise, int64 [q, width]; row i has scale sizes[i] / epsilon, rounded up."""
    drawn = np.empty((len(keys), width), dtype=np.int64)
    for size in np.unique(sizes).tolist():
        rows = np.flatnonzero(sizes == size)
        row_keys = [keys[row] for row in rows.tolist()]
        scale = float_above(size / epsilon)
        drawn[rows] = entropy.discrete_laplace(scale, row_keys, LABEL_NOISE, width)
    return drawn


def values(labels: np.ndarray, bounds: Bounds, squared_radii: np.ndarray) -> np.ndarray:
    """Released values, int64 [q, 4]: label, clique bound, whether that is exact, squared radius."""
    return np.stack([labels, bounds.sizes, bounds.exact.astype(np.int64), squared_radii], axis=1)


def squared_radius(radius: float) -> int:
    """Squared radius in integer units, rounded; ``radius``: in sides of the domain box.

    All squared distances are integers.
    """
    return round((Fraction(radius) * SIDE) ** 2)


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
