"""Simulated votes: expected answers of a private-kNN teacher, from PUBLIC rows.

A query's neighbours are a fraction k / (gamma n) of the data set. Their labels are simulated by the
same fraction of other labelled public rows that look like the private ones. n is the user's public
guess; neither private rows nor their number are read. Sampling and noise are computed analytically.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr

from ...teacher.mechanisms.votes import SampledVotes
from ...teacher.search.cpu import ExactIndex
from ...teacher.search.int8_matmul import float32_product

MIN_VARIANCE = 0.1  # share of the noise's variance that remains without the simulation's own
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True)
class SimulatedQueries:
    """Queries with the class shares of their neighbours.

    ``labels``: int64 [q], the right answers; ``shares(fraction)``: float64 [q, c], class shares
    among the nearest ``fraction`` of a data set, rows sum to 1; ``rows``: number of rows that stand
    for the data set; ``description``: of the source, for a reader.
    """

    labels: np.ndarray = field(repr=False)
    shares: Callable[[float], np.ndarray] = field(repr=False)
    rows: float
    description: str


def neighbours(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Other rows' labels, nearest first: int64 [m, m - 1] of int8 [m, d] and int64 [m]."""
    m = len(labels)
    index = ExactIndex(features, np.arange(m, dtype=np.int64), product=float32_product, threads=1)
    near = index.prefix(features, m)
    return labels[near[near != np.arange(m)[:, None]]].reshape(m, m - 1)


def votes_among(features: np.ndarray, labels: np.ndarray, num_classes: int) -> SimulatedQueries:
    """Exact neighbours among PUBLIC rows, each left out of its own votes.

    ``features``: int8 [m, d]; ``labels``: int64 [m].
    """
    m, ordered = len(labels), neighbours(features, labels)

    def shares(fraction: float) -> np.ndarray:
        """The last row's vote is weighted by its part inside the fraction."""
        inside = min(fraction, 1.0) * (m - 1)
        whole = math.floor(inside)
        cells = ordered[:, :whole] + num_classes * np.arange(m)[:, None]
        counts = np.bincount(cells.ravel(), minlength=m * num_classes).astype(np.float64)
        counts = counts.reshape(m, num_classes)
        if inside > whole:
            counts[np.arange(m), ordered[:, whole]] += inside - whole
        return counts / inside

    return SimulatedQueries(
        labels,
        shares,
        float(m - 1),
        f"votes among {m} labelled public rows, each left out of its own",
    )


@dataclass(frozen=True)
class Votes:
    """Simulated votes before noise.

    ``mean``: expected votes, float64 [q, c]; ``excess``: variance beyond the noise, as a multiple
    of the mean, negative where the simulation itself varies more than real votes; ``spread``:
    variance of the number of voters over its square, 0 where it is k.
    """

    labels: np.ndarray = field(repr=False)
    mean: np.ndarray = field(repr=False)
    excess: float
    spread: float = 0.0

    def pass_rates(self, thresholds: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
        """P(max_j n_j + Z > T) of every query, float64 [t, s, q].

        ``thresholds`` [t] and ``sigmas`` [s] in votes. The plurality is the larger of two
        correlated normals, with mean and variance by Clark 1961.
        """
        total = self.mean.sum(axis=1)
        second, first = np.sort(self.mean, axis=1)[:, -2:].T
        # multinomial: Var(n_1 - n_2) = n_1 + n_2 - (n_1 - n_2)^2 / k
        contest = np.maximum(first + second - (first - second) ** 2 / total, 0)
        common = self.spread * (first - second) ** 2
        gap = np.sqrt(max(self.excess, 0.0) * contest + common + 1e-12)
        density = np.exp(-((first - second) ** 2) / (2 * gap**2)) / math.sqrt(2 * math.pi)
        plurality = first + gap * density - (first - second) * ndtr(-(first - second) / gap)
        excess = first * (1 - first / total) * self.excess + self.spread * first**2
        variance = _total_variance(sigmas[:, None], excess)  # [s, q]
        return ndtr((plurality - thresholds[:, None, None] - 0.5) / np.sqrt(variance))

    def right_rates(self, sigmas: np.ndarray) -> np.ndarray:
        """P(argmax_j (n_j + Z_j) is the right class) of every query, float64 [s, q].

        By Gauss-Hermite quadrature over the right class's votes. Classes vary like Poisson counts:
        where two are close, which is where it matters, their difference has the multinomial's
        variance.
        """
        rows = np.arange(len(self.labels))
        rates = np.empty((len(sigmas), len(rows)))
        ahead = self.mean[rows, self.labels][:, None] - self.mean  # [q, c]
        for position, sigma in enumerate(sigmas):
            scale = np.sqrt(_total_variance(sigma, self.mean * self.excess))  # [q, c]
            own = scale[rows, self.labels]
            moved = ahead[:, None, :] + own[:, None, None] * _NODES[:, None]  # [q, nodes, c]
            below = ndtr(moved / scale[:, None, :])
            below[rows, :, self.labels] = 1.0
            rates[position] = below.prod(axis=2) @ _WEIGHTS
        return rates


def _total_variance(sigma: np.ndarray | float, excess: np.ndarray) -> np.ndarray:
    return np.maximum(np.square(sigma) + excess, MIN_VARIANCE * np.square(sigma))


def votes_of(simulated: SimulatedQueries, mechanism: SampledVotes, expected_records: int) -> Votes:
    """Votes of the nearest rows of a Poisson sample of ``expected_records`` records.

    Neighbours are drawn from a population in which a query's nearest ``fraction`` has class shares
    p: k votes are multinomial, variance k p (over data set and sample jointly; the sampling
    probability cancels). The simulated shares are such a sample themselves, of r = fraction * rows,
    and already have the variance k^2 p / r: adding normal noise of variance
    sigma^2 + k p (1 - k / r) gives the law of the real votes.
    """
    k = round(mechanism.expected_votes(expected_records))
    sample = mechanism.sampling_probability * expected_records
    votes = min(float(k), sample)
    fraction = votes / sample
    excess = 1 - votes / (fraction * simulated.rows)
    shares = simulated.shares(fraction)
    return Votes(simulated.labels, votes * shares, excess, mechanism.spread(k))


def rates(
    simulated: SimulatedQueries, mechanism: SampledVotes, expected_records: int
) -> tuple[float, float]:
    """(share of queries that pass the screening, share that also get the right label)."""
    votes = votes_of(simulated, mechanism, expected_records)
    thresholds, sigmas = np.array([mechanism.threshold]), np.array([mechanism.sigma_screen])
    passed = votes.pass_rates(thresholds, sigmas)[0, 0]
    right = votes.right_rates(np.array([mechanism.sigma_vote]))[0]
    return float(passed.mean()), float((passed * right).mean())
