"""Parameters of Ind-KNN and Private-kNN chosen on labelled public rows.

Ind-KNN's threshold and noise by the planner, for each epsilon and kernel; then the kernel.
Private-kNN is simulated; its noise is the smallest whose best certificate fits; its screening is
omitted at no cost.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from labelwall.benchmarks.shared import image_features
from labelwall.benchmarks.shared.linear_sgd import CLASSES, DELTA
from labelwall.benchmarks.shared.vote_plans import planned_votes
from labelwall.experiment.plan.candidates import threshold_at
from labelwall.experiment.plan.planner import Choice, Goal
from labelwall.teacher.accounting.accountant import odometer
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.votes import AGGREGATE, PrivateKnn
from labelwall.teacher.search.cpu import ExactIndex

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
# A record at cosine 0.5 counts in full, at 0.3 a fifth of that.
NARROW = IndKnn(kernel="rbf", bandwidth=0.5, near=1.0)
CLOSE = replace(NARROW, bandwidth=0.35, near=0.7)
KERNELS = (IndKnn(), NARROW, CLOSE, replace(NARROW, bandwidth=0.4))  # simulated with noise
# Tried without noise as well.
SHARPER = tuple(replace(NARROW, bandwidth=width, near=0.9) for width in (0.3, 0.35, 0.4))
LEVELS = tuple(step / 20 for step in range(1, 20))  # of the cosine, without noise
# Private-kNN: gamma, and k / gamma.
SAMPLED = (0.05, 0.1, 0.2)
REACH = (500, 1000, 2000, 3000, 4500, 6000)


@dataclass(frozen=True)
class Split:
    """Quantised features int8 [n, d] with labels int64 [n]."""

    features: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)

    def part(self, start: int, rows: int) -> "Split":
        return Split(self.features[start : start + rows], self.labels[start : start + rows])


@dataclass(frozen=True)
class Chosen:
    """Mechanisms chosen on public rows for each epsilon, and their accuracy there, 0..1."""

    ind_knn: list[tuple[IndKnn, float]]
    private_knn: list[tuple[PrivateKnn, float]]


def choose(validation: Split, records: int, options: argparse.Namespace) -> Chosen:
    """Choose all mechanisms on public rows; every candidate gets the same noise."""
    asked, seed = options.queries, options.seed
    choices = choose_ind_knn(KERNELS, validation, records, options.epsilons, asked)
    polls = [choose_poll(validation, records, each, asked, seed) for each in options.epsilons]
    return Chosen([(choice.mechanism, choice.accuracy) for choice in choices], polls)


def choose_ind_knn(
    kernels: Sequence[IndKnn],
    validation: Split,
    records: int,
    epsilons: Sequence[float],
    asked: int,
) -> list[Choice[IndKnn]]:
    """The best kernel, threshold and noise for each epsilon."""
    rows = validation.features, validation.labels, CLASSES
    goals = [Goal(epsilon, DELTA, records, asked, 1, asked=asked) for epsilon in epsilons]
    return [
        max((planned_votes(kernel, *rows, goal) for kernel in kernels), key=lambda c: c.accuracy)
        for goal in goals
    ]


def choose_own(validation: Split, length: float) -> tuple[IndKnn, float]:
    """(the best kernel and threshold without noise and budgets, its accuracy on public rows)."""
    index = ExactIndex(validation.features, np.arange(len(validation.labels)))

    def right(mechanism: IndKnn) -> float:
        """Each row is left out of its own votes."""
        near = index.similar(validation.features, mechanism.select(length))
        sums = [
            np.bincount(validation.labels[n.rows], n.weights * (n.rows != row), CLASSES)
            for row, n in enumerate(near)
        ]
        return float((np.array(sums).argmax(axis=1) == validation.labels).mean())

    own = [
        replace(kernel, threshold=threshold_at(kernel, level))
        for kernel in (*KERNELS, *SHARPER)
        for level in LEVELS
        if threshold_at(kernel, level) > 0
    ]
    return max(((each, right(each)) for each in own), key=lambda tried: tried[1])


def choose_poll(
    validation: Split,
    records: int,
    epsilon: float,
    asked: int,
    seed: int,
    sampled: Sequence[float] = SAMPLED,
) -> tuple[PrivateKnn, float]:
    """Private-kNN's sampling probability and k at ``epsilon``."""
    found = []
    for gamma in sampled:
        sigma = least_noise(gamma, epsilon, asked)
        for k in (round(gamma * reach) for reach in REACH):
            other = PrivateKnn(k=k, threshold=0, sigma_vote=sigma, sample_rate=gamma)
            rng = np.random.default_rng(seed)
            found.append((other, simulate_poll(validation, records, other, 2 * asked, rng)))
    return max(found, key=lambda tried: tried[1])


def simulate_poll(
    rows: Split, records: int, mechanism: PrivateKnn, asked: int, rng: np.random.Generator
) -> float:
    """Private-kNN's share of right answers to the first ``asked`` rows; every query is answered.

    The other rows stand for the records.
    """
    count, queries = len(rows.labels), rows.features[:asked]
    lists = ExactIndex(rows.features, np.arange(count)).prefix(queries, count)
    own = lists != np.arange(len(lists))[:, None]
    nearest = lists[own].reshape(len(lists), count - 1)
    hits = rng.binomial(round(records / count), mechanism.sample_rate, nearest.shape)
    votes = np.diff(np.minimum(hits.cumsum(axis=1), mechanism.k), axis=1, prepend=0)
    place = np.arange(len(nearest))[:, None] * CLASSES + rows.labels[nearest]
    sums = np.bincount(place.ravel(), votes.ravel(), len(nearest) * CLASSES)
    sums = sums.reshape(len(nearest), CLASSES)
    noisy = sums + rng.normal(scale=mechanism.sigma_vote, size=sums.shape)
    return float((noisy.argmax(axis=1) == rows.labels[:asked]).mean())


def least_noise(gamma: float, epsilon: float, asked: int) -> float:
    """A sigma_vote that certifies ``asked`` noisy winners: a multiple of 0.5, found from below."""
    sigma = max(0.5, round(278 * gamma / epsilon * math.sqrt(asked / 1000)) / 2)
    # With all caps used, the odometer is a certificate.
    while (cost := odometer(poll_plan(gamma, sigma, epsilon, asked), [asked])) > epsilon:
        sigma = max(sigma + 0.5, math.ceil(2 * sigma * (cost / epsilon) ** 0.9) / 2)
    return sigma


def poll_plan(gamma: float, sigma: float, epsilon: float, asked: int) -> Plan:
    """``asked`` noisy winners, no screening."""
    mechanism = PrivateKnn(threshold=0, sigma_screen=sigma, sigma_vote=sigma, sample_rate=gamma)
    winners = tuple(
        release for release in mechanism.releases(asked, asked) if release.name == AGGREGATE
    )
    return Plan(epsilon, DELTA, (Slot(mechanism.fields(), winners),))


def ind_plan(mechanism: IndKnn, epsilon: float) -> Plan:
    """The one prepaid release, for any number of queries."""
    return Plan(epsilon, DELTA, (Slot(mechanism.fields(), mechanism.releases(1, 1)),))


def described(m: IndKnn) -> str:
    """Kernel and threshold."""
    kernel = "cosine" if m.kernel == "cosine" else f"rbf {m.bandwidth:g}, near {m.near:g}"
    return f"{kernel}, threshold {m.threshold:.4g}"


def feature_options(description: str | None, out: Path, what: str) -> argparse.ArgumentParser:
    """The options that all benchmarks on features have. ``out``, ``what``: of the pictures."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True, help="folder with the features")
    parser.add_argument(
        "--results", type=Path, help="folder that keeps what was measured with these options"
    )
    parser.add_argument("--out", type=Path, default=FIGURES / out, help=what)
    parser.add_argument("--private", type=int, default=50_000)
    parser.add_argument("--validation", type=int, default=5000)
    parser.add_argument(
        "--whiten", type=int, default=0, help="principal axes of the public rows, a count; 0: none"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the simulations on public rows")
    return parser


def read_splits(options: argparse.Namespace, rows: int) -> tuple[Split, Split, Split, float]:
    """(private, validation, ``rows`` other public rows, length of a vector).

    Sets torch's threads.
    """
    import torch

    torch.set_num_threads(options.threads)
    scaling = image_features.public_scaling(options.cache, options.validation, options.whiten)
    private = Split(*image_features.read(options.cache, "train", scaling, options.private))
    public = Split(*image_features.read(options.cache, "test", scaling, options.validation + rows))
    split = options.validation
    return private, public.part(0, split), public.part(split, rows), scaling.scale
