"""Batches of queries under pure DP (DMKD17): one charge pays for all answers of a batch.

Radius neighbours are the records in a ball (Algorithms 1 to 3); k nearest neighbours are those in a
ball whose radius is found privately (Algorithms 4 to 7; ball_radii.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.messages import Value
from ..accounting.conversion import float_above
from ..accounting.plan import Release
from ..noise.scales import less_spent
from . import ball_radii as balls
from .base import Charging, Mechanism
from .fields import count, param, pure_epsilon
from .overlap import MAX_QUERIES, Accounting, Bounds, clique_bounds

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Voters

# The only release; a query's value is [label, clique bound, whether that is exact, squared radius].
BATCH = "batch"
LABEL_NOISE, RADIUS_NOISE, COUNT_NOISE = "label", "radius", "count"  # purposes of draws
SIDE = 126  # of the domain box: features are integers in -63..63 in each dimension
MAX_CANDIDATES = 256
MIN_SHARE = Fraction(1, 100_000)  # for the labels: the scale of their noise must stay below 2^50

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
    """Base of the batch mechanisms: a noisy plurality of the records in a ball around each query.

    Guarantee, for one batch under add/remove of one record: all its answers, clique bounds and
    radii are jointly epsilon-DP. A record votes in the balls that it lies in, which are pairwise
    neighbours in the overlap graph; query i spends epsilon / size_i, and the sizes of a clique's
    members are at least its size (overlap.py). Proof: docs/privacy.md, "Batches". All fields are
    publishable and fixed without looking at private rows.
    """

    epsilon: float | None = pure_epsilon("of a batch")
    noise: Noise = param("laplace", NOISE)
    accounting: Accounting = param("local", ACCOUNTING)

    stages = (BATCH,)
    charging = Charging.PER_BATCH
    persons = True

    @abstractmethod
    def radii(
        self, voters: Voters, keys: Sequence[str], entropy: Entropy
    ) -> tuple[np.ndarray, Fraction]:
        """Squared radii, int64 [n_queries], and what they leave of epsilon."""

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Answers of one charged batch, int64 [n_queries, 4].

        Columns: label, clique bound, whether that is exact, squared radius.
        """
        radii, epsilon = self.radii(voters, keys, entropy)
        bounds = clique_bounds(voters.queries, radii, self.accounting)
        votes = voters.ball_votes(radii)
        return released(votes, bounds, radii, epsilon, self.noise, keys, entropy)

    def with_noise(self, level: float, asked: int) -> Self:
        return self.with_values(epsilon=less_spent(1 / level))

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """``asked`` batches, epsilon-DP each."""
        return (Release(BATCH, "pure", {"epsilon": self.require("epsilon")}, asked, batch=True),)

    def label(self, value: Any) -> Value:
        """Every query of a paid batch is answered."""
        return int(value[0])

    def receipt(self, results: Sequence[Mapping[str, Value]]) -> dict[str, int]:
        """The largest clique bound, and the number of bounds by colouring."""
        answered = [value for known in results if isinstance(value := known.get(BATCH), list)]
        return {
            "largest": max((bound for _, bound, _, _ in answered), default=0),
            "by_colouring": sum(1 - exact for _, _, exact, _ in answered),
        }

    def require_batch(self, queries: int, dimensions: int) -> None:
        """Raise InvalidInput for too many queries."""
        if queries > MAX_QUERIES:
            raise InvalidInput("queries", f"at most {MAX_QUERIES} in a batch", queries)


def released(
    votes: np.ndarray,
    bounds: Bounds,
    squared_radii: np.ndarray,
    epsilon: Fraction,
    noise: Noise,
    keys: Sequence[str],
    entropy: Entropy,
) -> np.ndarray:
    """int64 [q, 4], of which the labels are epsilon-DP for the batch; the rest is public.

    ``votes``: int64 [q, c], counts of the records in each query's ball. A record adds 1 to one
    count of each ball that it lies in. Query i spends e_i = epsilon / size_i.

    "laplace": argmax of the counts plus discrete Laplace noise of scale 1 / e_i, ties to the lowest
    class (DMKD17 Algorithm 1). "exponential": probability proportional to exp(e_i count), e_i-DP
    because a record only raises counts. "exponential_paper": exp(e_i count / 2) (DMKD17 Algorithm
    2), which needs no such argument.
    """
    if noise == "laplace":
        drawn = laplace(bounds.sizes, epsilon, keys, votes.shape[1], entropy)
        labels = (votes + drawn).argmax(axis=1)
    else:
        divisor = 2 if noise == "exponential_paper" else 1
        rates = [epsilon / (divisor * size) for size in bounds.sizes.tolist()]
        behind = votes.max(axis=1, keepdims=True) - votes
        labels = entropy.choose(behind, rates, keys, LABEL_NOISE)
    return np.stack([labels, bounds.sizes, bounds.exact.astype(np.int64), squared_radii], axis=1)


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


@dataclass(frozen=True)
class RadiusNeighbours(BatchMechanism):
    """A noisy plurality of the records at most ``radius`` from each query of a batch."""

    kind: Literal["radius"] = "radius"
    radius: float = param(
        0.05,
        "of a query's ball; distances are Euclidean",
        unit="sides of the domain box",
        ge=0,
        le=100,
    )

    def radii(
        self, voters: Voters, keys: Sequence[str], entropy: Entropy
    ) -> tuple[np.ndarray, Fraction]:
        squared = np.full(len(keys), min(squared_radius(self.radius), 1 << 26), dtype=np.int64)
        return squared, Fraction(self.require("epsilon"))


def squared_radius(radius: float) -> int:
    """Squared radius in integer units, as squared distances are, rounded.

    ``radius``: in sides of the domain box.
    """
    return round((Fraction(radius) * SIDE) ** 2)


@dataclass(frozen=True)
class BatchKnn(BatchMechanism):
    """A noisy plurality of about ``k`` records around each query of a batch.

    The number of records (where it is estimated), the radii and the labels spend parts of epsilon
    that add up to it exactly.
    """

    kind: Literal["batch_knn"] = "batch_knn"
    k: int = param(30, "target number of records in a query's ball", unit="a count", ge=1, le=10**6)
    conversion: Literal["grid", "interactive", "none"] = param(
        "grid",
        "how a query gets its radius: grid (a noisy histogram of the domain box: DMKD17 Algorithm "
        "7), interactive (the exponential mechanism over candidates: Algorithm 6) or none (no "
        "radius: the k nearest vote by the exponential mechanism, epsilon split over the queries: "
        "the baseline, Algorithm 4)",
    )
    conversion_share: float = param(
        0.5, "part of epsilon that pays for the radii; the paper's w", ge=0.001, le=0.999
    )
    records: int | None = count(
        None,
        "public number (or guess) of the private records; null: a noisy estimate, which is charged",
        10**9,
    )
    records_share: float = param(
        0.05, "part of epsilon that pays for that estimate", ge=0.001, le=0.999
    )
    candidates: int = count(10, "radii that interactive chooses from", MAX_CANDIDATES)
    candidate_accounting: Accounting = param(
        "local",
        "as accounting, for the choice of the radii, every ball as large as its largest candidate; "
        "queries is the paper's",
    )
    noise: Noise = param("laplace", f"{NOISE}; conversion none always uses exponential_paper")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.conversion != "none" and self._shares()[-1] < MIN_SHARE:
            rule = f"at most {float(1 - MIN_SHARE)} together with records_share"
            raise InvalidInput("mechanism.conversion_share", rule, self.conversion_share)

    def require_batch(self, queries: int, dimensions: int) -> None:
        """Raise InvalidInput for too many queries, or a grid that is no grid."""
        super().require_batch(queries, dimensions)
        if self.conversion == "grid":
            epsilon = Fraction(self.require("epsilon"))
            balls.require_grid(dimensions, self.records, epsilon * self._shares()[1])

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Without a conversion the clique bound is the number of queries and the radius -1.

        DMKD17 Algorithm 4 for each query at epsilon / q. Counts of the k nearest move by e_a - e_b,
        so the rate is halved.
        """
        if self.conversion != "none":
            return super().draw(stage, voters, keys, entropy)
        votes = voters.votes(self.k, 1.0, keys, self.kind, entropy)
        no_radii = np.full(len(keys), -1, dtype=np.int64)
        bounds = clique_bounds(voters.queries, no_radii, "queries")
        epsilon = Fraction(self.require("epsilon"))
        return released(votes, bounds, no_radii, epsilon, "exponential_paper", keys, entropy)

    def _shares(self) -> tuple[Fraction, Fraction, Fraction]:
        """Parts of epsilon for the number of records, radii and labels: exact, with sum 1."""
        count = Fraction(0) if self.records else Fraction(self.records_share)
        return count, Fraction(self.conversion_share), 1 - count - Fraction(self.conversion_share)

    def radii(
        self, voters: Voters, keys: Sequence[str], entropy: Entropy
    ) -> tuple[np.ndarray, Fraction]:
        """Epsilon-DP for the batch, at its share of epsilon and that of the number of records."""
        whole, dimensions = Fraction(self.require("epsilon")), voters.queries.shape[1]
        for_count, epsilon, rest = (whole * share for share in self._shares())
        records = self.records
        if records is None:
            noise = entropy.discrete_laplace(float_above(1 / for_count), keys[:1], COUNT_NOISE, 1)
            records = max(1, len(voters.index.units) + int(noise[0, 0]))
        if self.conversion == "grid":
            cells = balls.cells_a_side(dimensions, records, epsilon)
            counts = voters.grid_counts(cells)
            scale = float_above(1 / epsilon)
            noise = entropy.discrete_laplace(scale, keys[:1], RADIUS_NOISE, len(counts))
            return balls.radii_of_grid(voters.queries, counts + noise[0], cells, self.k), rest
        candidates = balls.candidate_radii(dimensions, self.k, records, self.candidates)
        largest = np.full(len(keys), candidates[-1], dtype=np.int64)
        sizes = clique_bounds(voters.queries, largest, self.candidate_accounting).sizes
        losses = np.abs(voters.ball_counts(candidates) - self.k)
        rates = [epsilon / (2 * size) for size in sizes.tolist()]
        return candidates[entropy.choose(losses, rates, keys, RADIUS_NOISE)], rest
