"""The best Ind-KNN configuration for a budget: the most expected right labels.

UAI23, supplement, section 3: first the threshold without noise, then threshold and noise for each
budget and number of queries. Records are simulated by PUBLIC labelled rows, each of which stands
for several and is asked with its own copies left out; the noise is numpy's and continuous, as
nothing private is read or released. Every candidate is simulated with the same order of queries
and the same noise; the winner is simulated again with new noise, so that its forecast has no
selection bias.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...teacher.mechanisms.base import Priced
from ...teacher.mechanisms.calibration import calibrate
from ...teacher.mechanisms.ind_knn import MIN_NEIGHBOURS, IndKnn
from ...teacher.search.kernels import GRID, STEPS
from ...wall.progress import Progress, no_progress
from .planner import Choice, Goal, Optimum, PublicRows, View

LEVELS = tuple(step / 20 for step in range(1, 20))  # of the cosine, in the first round
MAX_MISSES = 2  # consecutive levels that are no better end the second round
# sigma_label, in typical weights: 0.15 to 5.77
LABEL_NOISE = tuple(round(0.15 * 1.5**step, 3) for step in range(10))
COUNT_NOISE = (0.5, 1.0, 2.0)  # sigma_count, of the default sqrt(T / (6 rho))
ASKED = (0.125, 0.25, 0.5, 0.75, 1.0)  # number of queries, as a share of the public inputs
MIN_SIMULATED = 1000  # queries for every candidate, so that chance does not decide
REPEATS = 3  # simulations of the winner, as a multiple of a candidate's


def plan(kernel: IndKnn, goal: Goal, public: PublicRows, progress: Progress) -> Optimum[IndKnn]:
    """A ``Planner``: threshold, noise and rho; all other fields are those of ``kernel``."""
    features, labels, length, view = public.embed()
    records = SimulatedRecords.of(
        features, labels, goal.expected_records, public.num_classes, kernel, length
    )
    return optimise(kernel, records, view, goal, progress)


def optimise(
    kernel: IndKnn,
    records: "SimulatedRecords",
    view: View,
    goal: Goal,
    progress: Progress = no_progress,
) -> Optimum[IndKnn]:
    """See ``planner.Planner``; the records are simulated already."""
    goal.check()
    level, _ = best_level(records, kernel)
    repeats = math.ceil(MIN_SIMULATED / len(records.labels))
    trials = []
    numbers = sorted({max(goal.rounds, round(share * goal.queries)) for share in ASKED})
    for done, asked in enumerate(numbers, start=1):
        trial = best_noise(
            records, kernel, goal, asked, level=level, seed=goal.seed, repeats=repeats
        )
        if trial.right >= goal.min_accuracy:
            trials.append((asked * trial.right, asked, trial.mechanism))
        progress("rehearsing", done, len(numbers))
    if not trials:
        raise goal.nothing_affordable()
    _, asked, mechanism = max(trials, key=lambda trial: trial[0])
    rng = np.random.default_rng([asked, REPEATS])
    (right,) = records.ind_knn([mechanism], asked, REPEATS * repeats, rng)
    choice = Choice(goal.epsilon, view, mechanism, asked, asked, float(asked), float(right))
    source = (
        f"a rehearsal among {len(records.labels)} labelled public rows, each left out of its own "
        f"votes and standing for {records.copies:.3g} records"
    )
    return Optimum(goal, (choice.certified(goal),), source)


@dataclass(frozen=True)
class Trial:
    """A mechanism with its rho, and its share of right answers in the search, 0..1."""

    mechanism: IndKnn
    right: float


def best_level(records: "SimulatedRecords", kernel: IndKnn) -> tuple[float, float]:
    """First round: (level of the cosine, share right) of the best threshold without noise."""
    tried = ((level, records.without_noise(_threshold(kernel, level))) for level in LEVELS)
    return max(tried, key=lambda level: level[1])


def _threshold(kernel: IndKnn, level: float) -> float:
    """The threshold at a level of the cosine, rounded to the mechanism's grid as it would be."""
    return max(1, round(threshold_at(kernel, level) * STEPS)) / STEPS


def best_noise(
    records: "SimulatedRecords",
    kernel: IndKnn,
    goal: Goal,
    asked: int,
    *,
    level: float,
    seed: int,
    repeats: int = 1,
) -> Trial:
    """Second round, for ``asked`` queries: the best threshold and noise.

    Where budgets are short, noise calls for more neighbours and payments for fewer: levels fall
    from two steps above ``level`` until they are no better.
    """
    priced = Priced(replace(kernel, rho=None, sigma_count=None), asked, asked)
    (planned,) = calibrate((priced,), goal.epsilon, goal.delta)
    best, misses = Trial(planned, -1.0), 0
    for tried in reversed(LEVELS[: LEVELS.index(level) + 3]):
        threshold = _threshold(kernel, tried)
        unit = records.typical_weight(threshold)
        candidates = [
            candidate
            for count in COUNT_NOISE
            for candidate in _noisy(planned, threshold, unit, count)
        ]
        shares = records.ind_knn(candidates, asked, repeats, np.random.default_rng(seed))
        winner = int(shares.argmax())
        if shares[winner] > best.right:
            best, misses = Trial(candidates[winner], float(shares[winner])), 0
        else:
            misses += 1
        if misses == MAX_MISSES:
            break
    return best


def _noisy(planned: IndKnn, threshold: float, unit: float, count: float) -> list[IndKnn]:
    """One candidate for each noise on labels, with ``count`` times the default noise on counts.

    ``unit``: of the noise on labels, in weights.
    """
    assert planned.sigma_count is not None
    assert planned.rho is not None
    minimum = 1 / math.sqrt(2 * planned.rho)  # below this, no record can pay for one count
    sigma_count = math.ceil(100 * max(count * planned.sigma_count, 1.001 * minimum)) / 100
    labels = [float(f"{max(0.001, noise * unit):.3g}") for noise in LABEL_NOISE]
    return [
        replace(planned, threshold=threshold, sigma_label=label, sigma_count=sigma_count)
        for label in labels
    ]


@dataclass(frozen=True)
class SimulatedRecords:
    """Public rows and their similarities.

    ``similarity``: float32 [n, n] kernel values, -1 on the diagonal; ``labels``: int64 [n];
    ``copies``: number of records that a row stands for.
    """

    similarity: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    copies: float
    num_classes: int

    @classmethod
    def of(
        cls,
        features: np.ndarray,
        labels: np.ndarray,
        records: int,
        num_classes: int,
        kernel: IndKnn,
        length: float,
    ) -> "SimulatedRecords":
        """From quantised public features int8 [n, d], to stand for ``records`` private ones.

        ``kernel``: a mechanism with the kernel to use; ``length``: of a unit vector after
        quantisation. At most the first ``records`` rows are taken.
        """
        x, labels = features[:records].astype(np.float32), labels[:records]
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        if kernel.kernel == "cosine":
            x /= np.maximum(norms, 1)
            similarity = x @ x.T
        else:
            squares = norms**2 + norms.T**2 - 2 * x @ x.T
            beyond = np.maximum(squares - (kernel.near * length) ** 2, 0)
            similarity = np.exp(-beyond / (kernel.bandwidth * length) ** 2)
        np.fill_diagonal(similarity, -1)
        return cls(similarity, labels, records / len(labels), num_classes)

    def without_noise(self, threshold: float) -> float:
        """Accuracy of the neighbours' weighted votes without noise and budgets."""
        weights = np.where(self.similarity >= threshold, _floored(self.similarity), 0)
        sums = weights @ np.eye(self.num_classes, dtype=np.float32)[self.labels]
        return float((sums.argmax(axis=1) == self.labels).mean())

    def typical_weight(self, threshold: float) -> float:
        """Root mean square of the neighbours' weights, at least a step of the grid.

        The unit of the noise on labels.
        """
        weights = _floored(self.similarity[self.similarity >= threshold])
        if not weights.size:
            return 1.0
        return max(1 / GRID, float(np.sqrt(np.square(weights, dtype=np.float64).mean())))

    def ind_knn(
        self, mechanisms: Sequence[IndKnn], asked: int, repeats: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Share of right answers of each mechanism in conversations of ``asked`` queries.

        float64 [m], with the same noise for all. The mechanisms differ only in noise and rho. Every
        row is asked at least ``repeats`` times. With more queries than rows, a conversation asks
        every row once and budgets are cut in proportion, which spends them at the same rate.
        """
        length = min(asked, len(self.labels))
        parts = [part for _ in range(repeats) for part in self._conversations(length, rng)]
        right = sum(self._converse(mechanisms, part, length / asked, rng) for part in parts)
        return np.asarray(right) / (len(parts) * length)

    def _conversations(self, asked: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Rows in random order, ``asked`` at a time; the last conversation repeats some of them."""
        order = rng.permutation(len(self.labels))
        for start in range(0, len(order), asked):
            yield np.resize(np.concatenate([order[start:], order[:start]]), asked)

    def _converse(
        self,
        mechanisms: Sequence[IndKnn],
        queries: np.ndarray,
        share: float,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Number of right answers of each mechanism in one conversation, int64 [m].

        As in section 12 of docs/privacy.md; copies pay alike. ``share``: part of rho that each
        record starts with.
        """
        (threshold,) = {mechanism.threshold for mechanism in mechanisms}
        count, label, rho = (
            np.array([getattr(m, name) for m in mechanisms], dtype=np.float32)
            for name in ("sigma_count", "sigma_label", "rho")
        )
        remaining = np.repeat([share * rho], len(self.labels), axis=0)  # [n, m]
        classes = np.eye(self.num_classes, dtype=np.float32)[self.labels].T
        right = np.zeros(len(mechanisms), dtype=np.int64)
        price = 1 / (2 * count**2)
        for query in queries:
            rows = np.flatnonzero(self.similarity[query] >= threshold)
            kernel = _floored(self.similarity[query, rows])
            noise = rng.normal(size=1 + self.num_classes).astype(np.float32)
            budgets = remaining[rows]  # [neighbours, m]
            able = budgets >= price
            budgets -= price * able
            neighbours = self.copies * able.sum(axis=0) + count * noise[0]
            double_variance = (
                2 * label**2 * np.maximum(neighbours, MIN_NEIGHBOURS).astype(np.float32)
            )
            full = (kernel**2)[:, None] / double_variance
            payments = np.minimum(full, budgets) * able
            remaining[rows] = budgets - payments
            sums = classes[:, rows] @ np.sqrt(payments * double_variance)  # [c, m], in rows
            noisy = self.copies * sums + np.sqrt(double_variance / 2) * noise[1:, None]
            right += noisy.argmax(axis=0) == self.labels[query]
        return right


def _floored(kernel: np.ndarray) -> np.ndarray:
    """Kernel values as the mechanism weighs them, rounded down to its grid."""
    return np.floor(kernel * GRID) / GRID


def threshold_at(mechanism: IndKnn, level: float) -> float:
    """The kernel's value where the cosine of two unit vectors is ``level``.

    Their squared distance is 2 - 2 level.
    """
    if mechanism.kernel == "cosine":
        return level
    return math.exp(-max(0, 2 - 2 * level - mechanism.near**2) / mechanism.bandwidth**2)
