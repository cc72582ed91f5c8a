"""k nearest neighbours over a batch (DMKD17 Algorithms 4 to 7): private radii, then their balls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...wall.errors import InvalidInput
from ..accounting.conversion import float_above
from . import ball_radii as balls
from .batch import ACCOUNTING, NOISE, BatchMechanism, Noise, noisy_winners, values
from .fields import param, pure_epsilon
from .overlap import Accounting, clique_bounds

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Voters

Conversion = Literal["grid", "interactive", "none"]
RADIUS_NOISE, COUNT_NOISE = "radius", "count"  # purposes of draws
MAX_CANDIDATES = 256
MIN_SHARE = Fraction(1, 100_000)  # for the labels: the scale of their noise must stay below 2^50
AUDIT_DISTANCE = 10  # of the audit's record from the queries


@dataclass(frozen=True)
class BatchKnn(BatchMechanism):
    """A noisy plurality of about ``k`` records around each query of a batch.

    Guarantee, for one batch under add/remove of one record: all its answers, clique bounds and
    radii are jointly epsilon-DP. The number of records (where it is estimated), the radii and the
    labels spend parts of epsilon that add up to it exactly. Proof: docs/privacy.md, "Batches". All
    fields are publishable and fixed without looking at private rows.
    """

    kind: Literal["batch_knn"] = "batch_knn"
    k: int = param(30, "target number of records in a query's ball", unit="a count", ge=1, le=10**6)
    epsilon: float | None = pure_epsilon("of a batch")
    conversion: Conversion = param(
        "grid",
        "how a query gets its radius: grid (a noisy histogram of the domain box: DMKD17 Algorithm "
        "7), interactive (the exponential mechanism over candidates: Algorithm 6) or none (no "
        "radius: the k nearest vote by the exponential mechanism, epsilon split over the queries: "
        "the baseline, Algorithm 4)",
    )
    conversion_share: float = param(
        0.5, "part of epsilon that pays for the radii; the paper's w", ge=0.001, le=0.999
    )
    records: int | None = param(
        None,
        "public number (or guess) of the private records; null: a noisy estimate, which is charged",
        unit="a count",
        ge=1,
        le=10**9,
    )
    records_share: float = param(
        0.05, "part of epsilon that pays for that estimate", ge=0.001, le=0.999
    )
    candidates: int = param(
        10, "radii that interactive chooses from", unit="a count", ge=1, le=MAX_CANDIDATES
    )
    candidate_accounting: Accounting = param(
        "local",
        "as accounting, for the choice of the radii, every ball as large as its largest candidate; "
        "queries is the paper's",
    )
    noise: Noise = param("laplace", f"{NOISE}; conversion none always uses exponential_paper")
    accounting: Accounting = param("local", ACCOUNTING)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.conversion != "none" and self._shares()[-1] < MIN_SHARE:
            rule = f"at most {float(1 - MIN_SHARE)} together with records_share"
            raise InvalidInput("mechanism.conversion_share", rule, self.conversion_share)

    def require_batch(self, queries: int, dimensions: int) -> None:
        """Raise InvalidInput, before anything is charged, for a batch that can not be answered."""
        super().require_batch(queries, dimensions)
        if self.conversion == "grid":
            epsilon = Fraction(self.require("epsilon"))
            balls.require_grid(dimensions, self.records, epsilon * self._shares()[1])

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Answers of one charged batch, int64 [n_queries, 4].

        Columns: label, clique bound, whether that is exact, squared radius. Without a conversion
        the bound is the number of queries and the radius -1.
        """
        epsilon = Fraction(self.require("epsilon"))
        if self.conversion == "none":
            return self._baseline(voters, keys, epsilon, entropy)
        for_count, for_radii, for_labels = (epsilon * share for share in self._shares())
        records = self.records or _noisy_count(len(voters.index.units), for_count, keys, entropy)
        radii = self._radii(voters, records, for_radii, keys, entropy)
        bounds = clique_bounds(voters.queries, radii, self.accounting)
        votes = voters.ball_votes(radii)
        labels = noisy_winners(votes, bounds, for_labels, self.noise, keys, entropy)
        return values(labels, bounds, radii)

    def _shares(self) -> tuple[Fraction, Fraction, Fraction]:
        """Parts of epsilon for the number of records, radii and labels: exact, with sum 1."""
        count = Fraction(0) if self.records else Fraction(self.records_share)
        return count, Fraction(self.conversion_share), 1 - count - Fraction(self.conversion_share)

    def _radii(
        self,
        voters: Voters,
        records: int,
        epsilon: Fraction,
        keys: Sequence[str],
        entropy: Entropy,
    ) -> np.ndarray:
        """Squared radii, int64 [q], epsilon-DP for the batch."""
        dimensions = voters.queries.shape[1]
        if self.conversion == "grid":
            cells = balls.cells_a_side(dimensions, records, epsilon)
            counts = voters.grid_counts(cells)
            scale = float_above(1 / epsilon)
            noise = entropy.discrete_laplace(scale, keys[:1], RADIUS_NOISE, len(counts))[0]
            return balls.radii_of_grid(voters.queries, counts + noise, cells, self.k)
        candidates = balls.candidate_radii(dimensions, self.k, records, self.candidates)
        largest = np.full(len(keys), candidates[-1], dtype=np.int64)
        sizes = clique_bounds(voters.queries, largest, self.candidate_accounting).sizes
        losses = np.abs(voters.ball_counts(candidates) - self.k)
        rates = [epsilon / (2 * size) for size in sizes.tolist()]
        return candidates[entropy.choose(losses, rates, keys, RADIUS_NOISE)]

    def _baseline(
        self, voters: Voters, keys: Sequence[str], epsilon: Fraction, entropy: Entropy
    ) -> np.ndarray:
        """DMKD17 Algorithm 4 for each query at epsilon / q.

        Counts of the k nearest move by e_a - e_b, so the rate is halved.
        """
        votes = voters.votes(self.k, 1.0, keys, BatchKnn.kind, entropy)
        no_radii = np.full(len(keys), -1, dtype=np.int64)
        bounds = clique_bounds(voters.queries, no_radii, "queries")
        labels = noisy_winners(votes, bounds, epsilon, "exponential_paper", keys, entropy)
        return values(labels, bounds, no_radii)


def _noisy_count(records: int, epsilon: Fraction, keys: Sequence[str], entropy: Entropy) -> int:
    """The number of records plus discrete Laplace noise of scale 1 / epsilon, at least 1."""
    noise = entropy.discrete_laplace(float_above(1 / epsilon), keys[:1], COUNT_NOISE, 1)
    return max(1, records + int(noise[0, 0]))
