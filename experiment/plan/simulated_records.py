"""Mechanisms rehearsed on PUBLIC labelled rows: each stands in for as many private records as there are of them a public row.

Parameters are chosen here, so no private vote has a say in them. A row is asked with its own copies left out. Noise is numpy's
and continuous: nothing private is touched, and nothing is released.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from labelwall.teacher.mechanisms.ind_knn.mechanism import FEWEST, IndKnn
from labelwall.teacher.mechanisms.private_knn.mechanism import PrivateKnn
from labelwall.teacher.search.kernels import GRID


@dataclass(frozen=True)
class StandIns:
    """``similarity``: float32 [n, n] kernel values, -1 on the diagonal; ``labels``: int64 [n]; ``copies``: records a row."""

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
    ) -> StandIns:
        """From quantised public features int8 [n, d], to stand in for ``records`` private ones under the kernel's mechanism.

        ``length``: that of a unit vector after quantisation. Of more rows than ``records``, the first ``records`` are taken.
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
        """What a reader is told."""
        rows = f"{len(self.labels)} labelled rows of the public test split"
        return f"a rehearsal among {rows}, each left out of its own votes and standing for {self.copies:.3g} records"

    def without_noise(self, threshold: float) -> float:
        """Share of rows that their neighbours' weighted votes get right, no noise and no budgets."""
        weights = np.where(self.similarity >= threshold, _floored(self.similarity), 0)
        sums = weights @ np.eye(self.num_classes, dtype=np.float32)[self.labels]
        return float((sums.argmax(axis=1) == self.labels).mean())

    def typical_weight(self, threshold: float) -> float:
        """Root mean square of what neighbours weigh, least a step of the grid: the scale on which a label's noise matters."""
        weights = _floored(self.similarity[self.similarity >= threshold])
        return max(
            1 / GRID,
            float(np.sqrt(np.square(weights, dtype=np.float64).mean())) if weights.size else 1.0,
        )

    def ind_knn(
        self, mechanisms: Sequence[IndKnn], asked: int, repeats: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Share of right answers of each mechanism in conversations of ``asked`` queries, float64 [m]; the same noise for all.

        The mechanisms differ in noise and rho alone. Every row is asked at least ``repeats`` times. Where more are asked than
        there are rows, a conversation asks every row once and budgets are cut in proportion, which spends them as fast.
        """
        length = min(asked, len(self.labels))
        parts = [part for _ in range(repeats) for part in self._conversations(length, rng)]
        right = sum(self._talk(mechanisms, part, length / asked, rng) for part in parts)
        return np.asarray(right) / (len(parts) * length)

    def private_knn(self, mechanism: PrivateKnn, asked: int, rng: np.random.Generator) -> float:
        """Share of right answers to the first ``asked`` rows; every query is answered."""
        nearest = np.argsort(-self.similarity[:asked], axis=1)[:, :-1]  # the last is the row itself
        hits = rng.binomial(round(self.copies), mechanism.sampling_probability, nearest.shape)
        votes = np.diff(np.minimum(hits.cumsum(axis=1), mechanism.k), axis=1, prepend=0)
        place = np.arange(len(nearest))[:, None] * self.num_classes + self.labels[nearest]
        sums = np.bincount(place.ravel(), votes.ravel(), len(nearest) * self.num_classes).reshape(
            len(nearest), -1
        )
        noisy = sums + rng.normal(scale=mechanism.sigma_vote, size=sums.shape)
        return float((noisy.argmax(axis=1) == self.labels[:asked]).mean())

    def _conversations(self, asked: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Rows in random order, ``asked`` at a time; the last conversation begins again with rows that were asked before."""
        order = rng.permutation(len(self.labels))
        for start in range(0, len(order), asked):
            yield np.resize(np.concatenate([order[start:], order[:start]]), asked)

    def _talk(
        self,
        mechanisms: Sequence[IndKnn],
        queries: np.ndarray,
        share: float,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Right answers of each mechanism in one conversation, int64 [m]: section 12 of docs/privacy.md, copies pay alike.

        ``share``: of rho, that each record begins with.
        """
        (threshold,) = {mechanism.threshold for mechanism in mechanisms}
        count, label, rho = (
            np.array([getattr(m, name) for m in mechanisms], dtype=np.float32)
            for name in ("sigma_count", "sigma_label", "rho")
        )
        left = np.repeat([share * rho], len(self.labels), axis=0)  # [n, m]
        classes, right = (
            np.eye(self.num_classes, dtype=np.float32)[self.labels].T,
            np.zeros(len(mechanisms), dtype=np.int64),
        )
        price = 1 / (2 * count**2)
        for query in queries:
            rows = np.flatnonzero(self.similarity[query] >= threshold)
            kernel, noise = (
                _floored(self.similarity[query, rows]),
                rng.normal(size=1 + self.num_classes).astype(np.float32),
            )
            mine = left[rows]  # [neighbours, m]
            able = mine >= price
            mine -= price * able
            neighbours = self.copies * able.sum(axis=0) + count * noise[0]
            twice = (
                2 * label**2 * np.maximum(neighbours, FEWEST).astype(np.float32)
            )  # the variance of a label's noise, doubled
            squares = np.minimum((kernel**2)[:, None] / twice, mine) * able  # what the labels cost
            left[rows] = mine - squares
            sums = classes[:, rows] @ np.sqrt(squares * twice)  # [c, m], in rows
            noisy = self.copies * sums + np.sqrt(twice / 2) * noise[1:, None]
            right += noisy.argmax(axis=0) == self.labels[query]
        return right


def _floored(kernel: np.ndarray) -> np.ndarray:
    """Kernel values as the mechanism weighs them, rounded down to its grid."""
    return np.floor(kernel * GRID) / GRID


def threshold_at(mechanism: IndKnn, level: float) -> float:
    """The kernel's value where the cosine of two unit vectors is ``level``: their squared distance is 2 - 2 level."""
    return (
        level
        if mechanism.kernel == "cosine"
        else math.exp(-max(0, 2 - 2 * level - mechanism.near**2) / mechanism.bandwidth**2)
    )
