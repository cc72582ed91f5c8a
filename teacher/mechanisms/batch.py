"""Batches of queries under pure DP (DMKD17): one charge pays for all answers of a batch.

Radius neighbours are the records in a ball (Algorithms 1 to 3). The k nearest neighbours are the
records in a ball whose radius is found privately (Algorithms 4 to 7): it is one of some candidates,
or follows from a noisy grid. The domain is the box -63..63 in each dimension; as real numbers,
features lie in -63.5..63.5.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.matrices import LEVELS
from ...wall.messages import Value
from ..accounting.conversion import float_above
from ..accounting.plan import Release
from .base import Charging, Mechanism
from .fields import count, less_spent, param, pure_epsilon
from .overlap import MAX_QUERIES, Accounting, clique_bounds

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Keys, Voters

# The only release; a query's value is [label, clique bound, squared radius].
BATCH = "batch"
LABEL_NOISE, RADIUS_NOISE, COUNT_NOISE = "label", "radius", "count"  # purposes of draws
SIDE = LEVELS - 1  # of the domain box
MAX_CANDIDATES = 256
POINTS = 1 << 16  # of the quadrature, over the whole box
THETA = 10.0  # Su et al. 2016
STEP = 0.25  # increment of a radius, 1/500 of a side
QUERIES_PER_BLOCK = 8  # their distances to all points fit a cache
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
    neighbours in the overlap graph. Query i spends epsilon / size_i, and the sizes of a clique's
    members are at least its size (overlap.py). Proof: docs/privacy.md, "Batches".
    """

    epsilon: float | None = pure_epsilon("of a batch")
    noise: Noise = param("laplace", NOISE)
    accounting: Accounting = param("local", ACCOUNTING)

    stages = (BATCH,)
    charging = Charging.PER_BATCH
    persons = True

    @abstractmethod
    def radii(self, voters: Voters, keys: Keys, entropy: Entropy) -> tuple[np.ndarray, Fraction]:
        """Squared radii, int64 [n_queries], and what they leave of epsilon."""

    def draw(self, stage: str, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """int64 [n_queries, 3]: label, clique bound and squared radius of one charged batch."""
        radii, epsilon = self.radii(voters, keys, entropy)
        sizes = clique_bounds(voters.queries, radii, self.accounting)
        votes = voters.ball_votes(radii) if voters.tally is None else voters.tally
        labels = noisy_labels(votes, sizes, epsilon, self.noise, keys, entropy)
        return np.stack([labels, sizes, radii], axis=1)

    def with_noise(self, level: float, asked: int) -> Self:
        return self.with_values(epsilon=less_spent(1 / level))

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """``asked`` batches, epsilon-DP each."""
        return (Release(BATCH, "pure", {"epsilon": self.require("epsilon")}, asked, batch=True),)

    def label(self, value: Any) -> Value:
        return int(value[0])

    def clique(self, results: Sequence[Mapping[str, Value]]) -> int:
        values = (value for result in results if isinstance(value := result.get(BATCH), list))
        return max((bound for _, bound, _ in values), default=0)

    def require_batch(self, queries: int, dimensions: int) -> None:
        if queries > MAX_QUERIES:
            raise InvalidInput("queries", f"at most {MAX_QUERIES} in a batch", queries)


def noisy_labels(
    votes: np.ndarray,
    sizes: np.ndarray,
    epsilon: Fraction,
    noise: Noise,
    keys: Keys,
    entropy: Entropy,
) -> np.ndarray:
    """Labels, epsilon-DP for the batch: int64 [q].

    ``votes``: int64 [q, c], counts of the records in each query's ball. A record adds 1 to one
    count of each ball that it lies in. Query i spends e_i = epsilon / size_i.

    "laplace": argmax of the counts plus discrete Laplace noise of scale 1 / e_i, rounded up, ties
    to the lowest class (DMKD17 Algorithm 1). "exponential": probability proportional to exp(e_i
    count), e_i-DP because a record only raises counts. "exponential_paper": exp(e_i count / 2)
    (DMKD17 Algorithm 2), which needs no such argument.
    """
    if noise == "laplace":
        noisy = votes.copy()
        for size in np.unique(sizes).tolist():
            rows = np.flatnonzero(sizes == size)
            own, scale = [keys[row] for row in rows.tolist()], float_above(size / epsilon)
            noisy[rows] += entropy.discrete_laplace(scale, own, LABEL_NOISE, votes.shape[1])
        return noisy.argmax(axis=1)
    divisor = 2 if noise == "exponential_paper" else 1
    behind = votes.max(axis=1, keepdims=True) - votes
    rates = [epsilon / (divisor * size) for size in sizes.tolist()]
    return entropy.choose(behind, rates, keys, LABEL_NOISE)


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

    def tally(self, voters: Voters) -> np.ndarray:
        return voters.ball_votes(self._squares(len(voters.queries)))

    def radii(self, voters: Voters, keys: Keys, entropy: Entropy) -> tuple[np.ndarray, Fraction]:
        return self._squares(len(keys)), Fraction(self.require("epsilon"))

    def _squares(self, queries: int) -> np.ndarray:
        squared = min(round((Fraction(self.radius) * SIDE) ** 2), 1 << 26)
        return np.full(queries, squared, dtype=np.int64)


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
        """A grid has two cells a side at least."""
        super().require_batch(queries, dimensions)
        if self.conversion != "grid":
            return
        epsilon, rule = float(Fraction(self.require("epsilon")) * self._shares()[1]), ""
        if _points_a_side(dimensions) < 2:
            rule = f" for features of {dimensions} dimensions: a grid of two cells a side has "
            rule += f"2^{dimensions} cells"
        elif self.records and self.records * epsilon < THETA * 2 ** ((2 + dimensions) / 2):
            rule = f": for {dimensions} dimensions, {self.records} records and this epsilon a grid "
            rule += "has one cell a side"
        if rule:
            raise InvalidInput("mechanism.conversion", f"interactive{rule}", "grid")

    def tally(self, voters: Voters) -> None:
        if self.conversion == "none":
            voters.rank(self.k, 1.0)

    def draw(self, stage: str, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """Draw; without a conversion the clique bound is the number of queries, and the radius -1.

        DMKD17 Algorithm 4 for each query at epsilon / q. Counts of the k nearest move by e_a - e_b,
        so the rate is halved.
        """
        if self.conversion != "none":
            return super().draw(stage, voters, keys, entropy)
        votes = voters.votes(self.k, 1.0, keys, self.kind, entropy)
        no_radii = np.full(len(keys), -1, dtype=np.int64)
        sizes = clique_bounds(voters.queries, no_radii, "queries")
        epsilon = Fraction(self.require("epsilon"))
        labels = noisy_labels(votes, sizes, epsilon, "exponential_paper", keys, entropy)
        return np.stack([labels, sizes, no_radii], axis=1)

    def _shares(self) -> tuple[Fraction, Fraction, Fraction]:
        """Parts of epsilon for the number of records, radii and labels: exact, with sum 1."""
        count = Fraction(0) if self.records else Fraction(self.records_share)
        return count, Fraction(self.conversion_share), 1 - count - Fraction(self.conversion_share)

    def radii(self, voters: Voters, keys: Keys, entropy: Entropy) -> tuple[np.ndarray, Fraction]:
        """Epsilon-DP for the batch, at its share of epsilon and that of the number of records."""
        whole, dimensions = Fraction(self.require("epsilon")), voters.queries.shape[1]
        for_count, epsilon, rest = (whole * share for share in self._shares())
        records = self.records
        if records is None:
            noise = entropy.discrete_laplace(float_above(1 / for_count), keys[:1], COUNT_NOISE, 1)
            records = max(1, len(voters.index.units) + int(noise[0, 0]))
        if self.conversion == "grid":
            # The extended uniform grid of Su et al. 2016.
            side = (records * float(epsilon) / THETA) ** (2 / (2 + dimensions))
            cells = max(2, min(math.floor(side), LEVELS, _points_a_side(dimensions)))
            counts = voters.grid_counts(cells)
            scale = float_above(1 / epsilon)
            noise = entropy.discrete_laplace(scale, keys[:1], RADIUS_NOISE, len(counts))
            return radii_of_grid(voters.queries, counts + noise[0], cells, self.k), rest
        candidates = candidate_radii(dimensions, self.k, records, self.candidates)
        largest = np.full(len(keys), candidates[-1], dtype=np.int64)
        sizes = clique_bounds(voters.queries, largest, self.candidate_accounting)
        losses = np.abs(voters.ball_counts(candidates) - self.k)
        rates = [epsilon / (2 * size) for size in sizes.tolist()]
        return candidates[entropy.choose(losses, rates, keys, RADIUS_NOISE)], rest


def candidate_radii(dimensions: int, k: int, records: int, candidates: int) -> np.ndarray:
    """Squares of the radii 2 j r / n for j = 1..n, n = ``candidates``: int64 [n] ascending.

    r is the radius of a ball with k records of a uniform data set, DMKD17 Algorithm 6, lines 3 and
    4: pi^(d/2) / Gamma(d/2 + 1) r^d = k / records of the box's volume. No radius exceeds the box's
    diagonal.
    """
    log_volume = dimensions / 2 * math.log(math.pi) - math.lgamma(dimensions / 2 + 1)
    uniform = SIDE * math.exp((math.log(k / records) - log_volume) / dimensions)
    diagonal = SIDE**2 * dimensions
    radii = (2 * j * uniform / candidates for j in range(1, candidates + 1))
    return np.array([min(diagonal, math.floor(radius**2)) for radius in radii], dtype=np.int64)


def _points_a_side(dimensions: int) -> int:
    """The largest s with s^dimensions <= POINTS."""
    side = 1
    while (side + 1) ** dimensions <= POINTS:
        side += 1
    return side


def radii_of_grid(queries: np.ndarray, counts: np.ndarray, cells: int, k: int) -> np.ndarray:
    """Squares of the smallest radii, in increments of STEP, whose balls have mass >= k: int64 [q].

    ``counts``: noisy, int64 [cells^d]. DMKD17 Algorithm 7. The volume of ball and cell is a
    midpoint rule: each cell's count is spread evenly over s^d points, (s cells)^d <= POINTS. Where
    the box has less mass than ``k``, the radius covers it.
    """
    dimensions = queries.shape[1]
    fine = max(1, _points_a_side(dimensions) // cells)
    axis = (np.arange(fine * cells) + 0.5) * (LEVELS / (fine * cells)) - LEVELS / 2
    points = _product(axis, dimensions).astype(np.float32)  # the quadrature errs by more
    cell = _product(np.arange(fine * cells) // fine, dimensions) @ cells ** np.arange(
        dimensions, dtype=np.int64
    )
    mass = counts[cell] / fine**dimensions
    steps = math.ceil(LEVELS * math.sqrt(dimensions) / STEP) + 1
    squares = (points * points).sum(axis=1)
    radii = np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(queries), QUERIES_PER_BLOCK):
        block = queries[start : start + QUERIES_PER_BLOCK].astype(np.float32)
        norms = (block * block).sum(axis=1)[:, None]
        distances = np.sqrt(np.maximum(squares + norms - 2 * block @ points.T, 0))
        rings = np.ceil(distances / STEP).astype(np.int64)
        for i, ring in enumerate(rings, start=start):
            inside = np.cumsum(np.bincount(ring, mass, minlength=steps))
            enough = np.flatnonzero(inside >= k)
            radii[i] = math.floor((STEP * (enough[0] if len(enough) else steps)) ** 2)
    return radii


def _product(axis: np.ndarray, dimensions: int) -> np.ndarray:
    """All points with coordinates from ``axis`` [n]: [n^dimensions, dimensions]."""
    grid = np.meshgrid(*[axis] * dimensions, indexing="ij")
    return np.stack(grid, axis=-1).reshape(-1, dimensions)
