"""Simulated votes: what a private-kNN teacher would probably answer, from PUBLIC rows or a model.

A query's neighbours are a fraction of the data set, k / (gamma n) of it, so labelled public rows
that look like the private ones show their labels: the same fraction of the other public rows. n is
the user's public guess; no private row, and not their number, is read. Sampling and noise follow
analytically.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr, ndtri

from labelwall.teacher.mechanisms.planning import MIN_ROWS, Goal, PublicRows
from labelwall.teacher.mechanisms.private_knn.mechanism import PrivateKnn
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.errors import InvalidInput

MODEL_QUERIES = 400
MODEL_SPREAD = 0.2  # standard deviation of the share of right neighbours between model queries
DEFAULT_ACCURACY = 0.8  # the model's mean share of right neighbours, where the user names none
LEAST_VARIANCE = 0.1  # of the drawn noise's, kept when the simulation's own is taken off
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True)
class SimulatedQueries:
    """Queries, and who votes on them.

    ``labels``: int64 [q], the right answers; ``shares(fraction)``: float64 [q, c], what share of
    the nearest ``fraction`` of a data set votes for each class, rows sum to 1; ``rows``: how many
    rows stand for the data set, infinity for a model; ``description``: what a reader is told.
    """

    labels: np.ndarray = field(repr=False)
    shares: Callable[[float], np.ndarray] = field(repr=False)
    rows: float
    description: str


def simulated_queries(goal: Goal, public: PublicRows) -> SimulatedQueries:
    """Votes among public rows; of the margin model where the goal asks for it or rows are few."""
    if goal.mean_accuracy is not None:
        return margin_model(goal.mean_accuracy, public.num_classes)
    if public.available < MIN_ROWS:
        return margin_model(DEFAULT_ACCURACY, public.num_classes)
    features, labels, _ = public.embed()
    return votes_among(features, labels, public.num_classes)


def votes_among(features: np.ndarray, labels: np.ndarray, num_classes: int) -> SimulatedQueries:
    """Exact neighbours among PUBLIC rows, each left out of its own votes.

    ``features``: int8 [m, d]; ``labels``: int64 [m].
    """
    m = len(labels)
    index = ExactIndex(features, np.arange(m, dtype=np.int64), product="float32", threads=1)
    near = index.prefix(features, m)  # [m, m]
    ordered = labels[near[near != np.arange(m)[:, None]]].reshape(m, m - 1)

    def shares(fraction: float) -> np.ndarray:
        """The last of the rows votes with the part of it that lies inside the fraction."""
        inside = min(fraction, 1.0) * (m - 1)
        whole = math.floor(inside)
        cells = ordered[:, :whole] + num_classes * np.arange(m)[:, None]
        counts = (
            np.bincount(cells.ravel(), minlength=m * num_classes)
            .reshape(m, num_classes)
            .astype(np.float64)
        )
        if inside > whole:
            counts[np.arange(m), ordered[:, whole]] += inside - whole
        return counts / inside

    return SimulatedQueries(
        labels,
        shares,
        float(m - 1),
        f"votes among {m} labelled rows of the public test split, each left out of its own",
    )


def margin_model(mean_accuracy: float, num_classes: int) -> SimulatedQueries:
    """The share of right neighbours is normal between queries, cut to [0, 1].

    Its mean is ``mean_accuracy``, its deviation 0.2. Half of the wrong neighbours belong to one
    rival class, the others to all the rest alike. Classes are of one size, so that a fraction f of
    the data set holds at most 1 / (c f) right ones. Raises InvalidInput unless the mean is in (0,
    1).
    """
    if not 0 < mean_accuracy < 1:
        raise InvalidInput("mean_accuracy", "between 0 and 1", mean_accuracy)
    quantiles = (np.arange(MODEL_QUERIES) + 0.5) / MODEL_QUERIES
    right = np.clip(mean_accuracy + MODEL_SPREAD * ndtri(quantiles), 0, 1)

    def shares(fraction: float) -> np.ndarray:
        kept = np.minimum(right, 1 / (num_classes * fraction))
        votes = np.empty((MODEL_QUERIES, num_classes))
        votes[:, 0] = kept
        votes[:, 1] = (1 - kept) * (0.5 if num_classes > 2 else 1.0)
        votes[:, 2:] = ((1 - kept) * 0.5 / max(1, num_classes - 2))[:, None]
        return votes

    text = (
        f"a margin model, no votes: {mean_accuracy:g} of a query's neighbours are right on average "
        f"(deviation {MODEL_SPREAD})"
    )
    return SimulatedQueries(np.zeros(MODEL_QUERIES, dtype=np.int64), shares, math.inf, text)


@dataclass(frozen=True)
class Votes:
    """``mean``: expected votes, float64 [q, c]; ``excess``: variance beyond the noise, of the mean.

    The excess is negative where the simulation itself varies more than real votes.
    """

    labels: np.ndarray = field(repr=False)
    mean: np.ndarray = field(repr=False)
    excess: float

    def pass_rates(self, thresholds: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
        """P(max_j n_j + Z > T) of every query, float64 [t, s, q]; ``thresholds`` [t] and ``sigmas``
        [s] in votes.

        The plurality of a random electorate: mean and variance of the larger of two correlated
        normals (Clark 1961).
        """
        total = self.mean.sum(axis=1)
        second, first = np.sort(self.mean, axis=1)[:, -2:].T
        # multinomial: Var(n_1 - n_2) = n_1 + n_2 - (n_1 - n_2)^2 / k
        spread = max(self.excess, 0.0)
        gap = np.sqrt(
            spread * np.maximum(first + second - (first - second) ** 2 / total, 0) + 1e-12
        )
        density = np.exp(-((first - second) ** 2) / (2 * gap**2)) / math.sqrt(2 * math.pi)
        plurality = first + gap * density - (first - second) * ndtr(-(first - second) / gap)
        variance = _total_variance(
            sigmas[:, None], first * (1 - first / total) * self.excess
        )  # [s, q]
        return ndtr((plurality - thresholds[:, None, None] - 0.5) / np.sqrt(variance))

    def right_rates(self, sigmas: np.ndarray) -> np.ndarray:
        """P(argmax_j (n_j + Z_j) is the right class) of every query, float64 [s, q].

        By Gauss-Hermite over the right class. Classes vary like Poisson counts: where two are
        close, and it matters, their difference has the multinomial's variance.
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
    return np.maximum(np.square(sigma) + excess, LEAST_VARIANCE * np.square(sigma))


def simulate(
    simulated: SimulatedQueries, k: int, sampling_probability: float, expected_records: int
) -> Votes:
    """Votes of the first min(k, |sample|) of a Poisson sample of ``expected_records`` records.

    Neighbours are drawn from a population in which a query's nearest ``fraction`` have class shares
    p: k votes are multinomial, variance k p (over the data set and the sample together; the
    sampling probability drops out). The simulated shares are such a sample themselves, of r =
    fraction * rows, whose variance k^2 p / r is in them already: normal noise of variance sigma^2 +
    k p (1 - k / r) on top makes up the law of the real votes.
    """
    votes = min(float(k), sampling_probability * expected_records)
    fraction = votes / (sampling_probability * expected_records)
    excess = 1 - votes / (fraction * simulated.rows)
    return Votes(simulated.labels, votes * simulated.shares(fraction), excess)


def rates(
    simulated: SimulatedQueries, mechanism: PrivateKnn, expected_records: int
) -> tuple[float, float]:
    """(share of queries that pass the screening, share that pass and are labelled right)."""
    votes = simulate(simulated, mechanism.k, mechanism.sampling_probability, expected_records)
    thresholds, sigmas = np.array([mechanism.threshold]), np.array([mechanism.sigma_screen])
    passed = votes.pass_rates(thresholds, sigmas)[0, 0]
    right = votes.right_rates(np.array([mechanism.sigma_vote]))[0]
    return float(passed.mean()), float((passed * right).mean())
