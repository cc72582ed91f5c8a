"""Votes that nobody cast: what a private-kNN teacher would probably answer, from PUBLIC rows or a stated model alone.

A query's neighbours are a fraction of the data set, k / (gamma n) of it, so a labelled public test split that looks like the
private rows shows their labels: the same fraction of the split's other rows. n is the user's public guess; no private row,
and not their number, is read. Sampling and noise follow analytically.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr, ndtri

from labelwall.experiment.config.config import Config
from labelwall.experiment.plan.simulated_records import StandIns
from labelwall.teacher.mechanisms.ind_knn.mechanism import IndKnn
from labelwall.teacher.mechanisms.private_knn.mechanism import PrivateKnn
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.datasets.registry import data_set
from labelwall.wall.datasets.sources import PublicData, Task
from labelwall.wall.errors import InvalidInput

MOST_ROWS = 1_000  # labelled public rows that are looked at: every one is a query, and a neighbour of all others
FEWEST_ROWS = 100  # below, their votes say less than the margin model
MODEL_QUERIES = 400
MODEL_SPREAD = (
    0.2  # standard deviation of the share of right neighbours between the margin model's queries
)
DEFAULT_ACCURACY = (
    0.8  # the margin model's mean share of right neighbours, where the user names none
)
LEAST_VARIANCE = (
    0.1  # share of the drawn noise's variance that is kept when the proxy's own is taken off
)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True)
class Proxy:
    """Simulated queries.

    ``labels``: int64 [q], the right answers. ``shares(fraction)``: float64 [q, c], what share of the nearest ``fraction`` of a
    data set votes for each class; rows sum to 1. ``rows``: how many rows stand for the data set, infinity for a model.
    ``description``: what a reader is told.
    """

    labels: np.ndarray = field(repr=False)
    shares: Callable[[float], np.ndarray] = field(repr=False)
    rows: float
    description: str


def default_records(config: Config, public_rows: int) -> int:
    """The guess of n where the user makes none: the published split's size, else as many as there are public inputs."""
    return data_set(config.data.source).private_records or public_rows


def choose_proxy(
    config: Config,
    task: Task,
    public: PublicData,
    mean_accuracy: float | None,
    progress: Callable[[str, int, int], None],
) -> Proxy:
    """Votes among the labelled test rows; the margin model where ``mean_accuracy`` is given or the rows are too few."""
    if mean_accuracy is not None or len(public.test_labels) < FEWEST_ROWS:
        return margin_model(
            DEFAULT_ACCURACY if mean_accuracy is None else mean_accuracy, task.num_classes
        )
    features, labels, _ = _test_rows(config, task, public, progress)
    return neighbour_proxy(features, labels, task.num_classes)


def choose_stand_ins(
    config: Config,
    task: Task,
    public: PublicData,
    kernel: IndKnn,
    expected_records: int,
    progress: Callable[[str, int, int], None],
) -> StandIns:
    """The labelled test rows as so many private records, similar by the mechanism's ``kernel``. No model can replace them.

    Raises InvalidInput where they are too few.
    """
    if len(public.test_labels) < FEWEST_ROWS:
        rule = f"at least {FEWEST_ROWS} labelled rows, to rehearse ind_knn with"
        raise InvalidInput("data.test", rule, len(public.test_labels))
    features, labels, length = _test_rows(config, task, public, progress)
    return StandIns.of(features, labels, expected_records, task.num_classes, kernel, length)


def _test_rows(
    config: Config, task: Task, public: PublicData, progress: Callable[[str, int, int], None]
) -> tuple[np.ndarray, np.ndarray, float]:
    """(int8 [m, d], int64 [m], length of a unit vector): random labelled test rows under the first round's features."""
    from labelwall.experiment.run.whitening import starting_extractor
    from labelwall.teacher.features.embedder import Embedder

    rows = np.random.default_rng(config.seed).permutation(len(public.test_labels))[:MOST_ROWS]
    embedder = Embedder(
        starting_extractor(config, task, public.inputs), probe=None, workers=config.workers
    )
    features, finite = embedder.embed(
        public.test_inputs[rows], lambda done, total: progress("features of test rows", done, total)
    )
    return features[finite], public.test_labels[rows][finite], embedder.length(features.shape[1])


def neighbour_proxy(features: np.ndarray, labels: np.ndarray, num_classes: int) -> Proxy:
    """Exact neighbours among PUBLIC rows, each left out of its own votes. ``features``: int8 [m, d]; ``labels``: int64 [m]."""
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

    return Proxy(
        labels,
        shares,
        float(m - 1),
        f"votes among {m} labelled rows of the public test split, each left out of its own",
    )


def margin_model(mean_accuracy: float, num_classes: int) -> Proxy:
    """The share of right neighbours is normal between queries: mean ``mean_accuracy``, deviation 0.2, cut to [0, 1].

    Half of the wrong neighbours belong to one rival class, the others to all the rest alike. Classes are of one size, so
    that a fraction f of the data set holds at most 1 / (c f) right ones.
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

    text = f"a margin model, no votes: {mean_accuracy:g} of a query's neighbours are right on average (deviation {MODEL_SPREAD})"
    return Proxy(np.zeros(MODEL_QUERIES, dtype=np.int64), shares, math.inf, text)


@dataclass(frozen=True)
class Votes:
    """Expected votes float64 [q, c] and their variances beyond the noise, float64 [q, c] (negative: the proxy's own excess)."""

    labels: np.ndarray = field(repr=False)
    mean: np.ndarray = field(repr=False)
    excess: float

    def pass_rates(self, thresholds: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
        """P(max_j n_j + Z > T) of every query, float64 [t, s, q]; ``thresholds`` [t] and ``sigmas`` [s] in votes.

        The plurality of a random electorate: mean and variance of the larger of two correlated normals (Clark 1961).
        """
        total = self.mean.sum(axis=1)
        second, first = np.sort(self.mean, axis=1)[:, -2:].T
        spread = max(
            self.excess, 0.0
        )  # multinomial: Var(n_1 - n_2) = n_1 + n_2 - (n_1 - n_2)^2 / k
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
        """P(argmax_j (n_j + Z_j) is the right class) of every query, float64 [s, q], by Gauss-Hermite over the right class.

        Classes vary like Poisson counts: where two are close, and it matters, their difference has the multinomial's variance.
        """
        rows = np.arange(len(self.labels))
        rates = np.empty((len(sigmas), len(rows)))
        ahead = self.mean[rows, self.labels][:, None] - self.mean  # [q, c]
        for position, sigma in enumerate(sigmas):
            scale = np.sqrt(_total_variance(sigma, self.mean * self.excess))  # [q, c]
            own = scale[rows, self.labels]
            z = (ahead[:, None, :] + own[:, None, None] * _NODES[:, None]) / scale[
                :, None, :
            ]  # [q, nodes, c]
            below = ndtr(z)
            below[rows, :, self.labels] = 1.0
            rates[position] = below.prod(axis=2) @ _WEIGHTS
        return rates


def _total_variance(sigma: np.ndarray | float, excess: np.ndarray) -> np.ndarray:
    return np.maximum(np.square(sigma) + excess, LEAST_VARIANCE * np.square(sigma))


def simulate(proxy: Proxy, k: int, sampling_probability: float, expected_records: int) -> Votes:
    """Votes of the first min(k, |sample|) of a Poisson sample of ``expected_records`` records.

    Neighbours are drawn from a population in which a query's nearest ``fraction`` have class shares p: k votes are
    multinomial, variance k p (over the data set and the sample together; the sampling probability drops out). The proxy's
    shares are such a sample themselves, of r = fraction * rows, whose variance k^2 p / r is in them already: normal noise
    of variance sigma^2 + k p (1 - k / r) on top makes up the law of the real votes.
    """
    votes = min(float(k), sampling_probability * expected_records)
    fraction = votes / (sampling_probability * expected_records)
    return Votes(proxy.labels, votes * proxy.shares(fraction), 1 - votes / (fraction * proxy.rows))


def rates(proxy: Proxy, mechanism: PrivateKnn, expected_records: int) -> tuple[float, float]:
    """(share of queries that pass the screening, share that pass and are labelled right)."""
    votes = simulate(proxy, mechanism.k, mechanism.sampling_probability, expected_records)
    passed = votes.pass_rates(np.array([mechanism.threshold]), np.array([mechanism.sigma_screen]))[
        0, 0
    ]
    right = votes.right_rates(np.array([mechanism.sigma_vote]))[0]
    return float(passed.mean()), float((passed * right).mean())
