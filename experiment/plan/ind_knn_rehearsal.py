"""Simulated records: PUBLIC labelled rows, each of which stands for several private records.

A row is asked with its own copies left out. The noise is numpy's and continuous, as nothing private
is read or released.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...teacher.mechanisms.ind_knn import MIN_NEIGHBOURS, IndKnn
from ...teacher.search.kernels import GRID


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
    ) -> SimulatedRecords:
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

    @property
    def description(self) -> str:
        """The source of the forecast, for a reader."""
        rows = f"{len(self.labels)} labelled public rows"
        return (
            f"a rehearsal among {rows}, each left out of its own votes and standing for "
            f"{self.copies:.3g} records"
        )

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
