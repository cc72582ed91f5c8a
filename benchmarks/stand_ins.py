"""Mechanisms rehearsed on PUBLIC labelled rows: each stands in for as many private records as there are of them a public row.

Parameters are chosen here, so no private vote has a say in them. A row is asked with its own copies left out. Noise is numpy's
and continuous: nothing private is touched, and nothing is released.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from teacher.mechanisms.ind_knn import FEWEST, IndKnn
from teacher.mechanisms.private_knn import PrivateKnn


@dataclass(frozen=True)
class StandIns:
    """``similarity``: float32 [n, n] cosines, -1 on the diagonal; ``labels``: int64 [n]; ``copies``: records a public row."""

    similarity: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    copies: int
    num_classes: int

    @classmethod
    def of(cls, features: np.ndarray, labels: np.ndarray, records: int, num_classes: int) -> StandIns:
        """From quantised public features int8 [n, d], to stand in for ``records`` private ones."""
        x = features.astype(np.float32)
        x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
        similarity = x @ x.T
        np.fill_diagonal(similarity, -1)
        return cls(similarity, labels, max(1, records // len(labels)), num_classes)

    def without_noise(self, threshold: float) -> float:
        """Share of rows that their neighbours' weighted votes get right, no noise and no budgets."""
        weights = np.where(self.similarity >= threshold, self.similarity, 0)
        sums = weights @ np.eye(self.num_classes, dtype=np.float32)[self.labels]
        return float((sums.argmax(axis=1) == self.labels).mean())

    def ind_knn(self, mechanism: IndKnn, asked: int, repeats: int, rng: np.random.Generator) -> float:
        """Share of right answers where ``asked`` rows a conversation are asked, every row at least ``repeats`` times."""
        parts = [part for _ in range(repeats) for part in self._conversations(asked, rng)]
        return float(np.mean([correct for part in parts for correct in self._talk(mechanism, part, rng)]))

    def private_knn(self, mechanism: PrivateKnn, asked: int, rng: np.random.Generator) -> float:
        """Share of right answers to the first ``asked`` rows; every query is answered."""
        nearest = np.argsort(-self.similarity[:asked], axis=1)[:, :-1]  # the last is the row itself
        hits = rng.binomial(self.copies, mechanism.sampling_probability, nearest.shape)
        votes = np.diff(np.minimum(hits.cumsum(axis=1), mechanism.k), axis=1, prepend=0)
        place = np.arange(len(nearest))[:, None] * self.num_classes + self.labels[nearest]
        sums = np.bincount(place.ravel(), votes.ravel(), len(nearest) * self.num_classes).reshape(len(nearest), -1)
        noisy = sums + rng.normal(scale=mechanism.sigma_vote, size=sums.shape)
        return float((noisy.argmax(axis=1) == self.labels[:asked]).mean())

    def _conversations(self, asked: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Rows in random order, ``asked`` at a time; the last conversation begins again with rows that were asked before."""
        order = rng.permutation(len(self.labels))
        for start in range(0, len(order), asked):
            yield np.resize(np.concatenate([order[start:], order[:start]]), asked)

    def _talk(self, mechanism: IndKnn, queries: np.ndarray, rng: np.random.Generator) -> Iterator[bool]:
        """Whether each answer of one conversation is right: section 12 of docs/privacy.md, with copies that pay alike."""
        assert mechanism.rho is not None
        assert mechanism.sigma_count is not None
        left, price = np.full(len(self.labels), mechanism.rho), 1 / (2 * mechanism.sigma_count**2)
        for query in queries:
            kernel = self.similarity[query]
            rows = np.flatnonzero((kernel >= mechanism.threshold) & (left >= price))
            left[rows] -= price
            neighbours = self.copies * len(rows) + rng.normal(scale=mechanism.sigma_count)
            variance = mechanism.sigma_label**2 * max(neighbours, FEWEST)
            weights = np.minimum(kernel[rows], np.sqrt(2 * variance * left[rows]))
            left[rows] = np.maximum(left[rows] - weights**2 / (2 * variance), 0)
            sums = self.copies * np.bincount(self.labels[rows], weights=weights, minlength=self.num_classes)
            noisy = sums + rng.normal(scale=np.sqrt(variance), size=self.num_classes)
            yield bool(noisy.argmax() == self.labels[query])
