"""Answers that vote on later queries (UAI23 section 3.1): they are public, and vote without paying.

All of it is post-processing. Which earlier queries are near, and their weights, are a function of
public inputs, the public feature map and labels that were sent. Draws without a record in the
ledger and private rows do not enter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ...wall.messages import Value
from ..search.cpu import ExactIndex
from ..search.kernels import Select
from .ind_knn import IndKnn, Reused

IDENTITY_BYTES = 32


class EarlierAnswers:
    """Queries that were answered under one extractor, with their features, in an append-only file.

    ``path``: in the custodian's directory, though its content is public. A row is an identity (32
    bytes) and int8 [d]. Labels are read from the ledger only: a row without a recorded answer does
    not vote, and a torn row at the end is cut off. Losing the file only costs accuracy.
    """

    def __init__(self, path: Path, dimensions: int) -> None:
        self._path, self._dimensions, self._row = path, dimensions, IDENTITY_BYTES + dimensions
        size = path.stat().st_size if path.exists() else 0
        if size % self._row:
            with path.open("rb+") as file:
                file.truncate(size - size % self._row)
        stored = np.fromfile(path, dtype=np.uint8) if size else np.zeros(0, dtype=np.uint8)
        rows = stored.reshape(-1, self._row)
        self._keys = [row.tobytes().hex() for row in rows[:, :IDENTITY_BYTES]]
        self._features = [rows[:, IDENTITY_BYTES:].view(np.int8)]

    def add(self, keys: Sequence[str], features: np.ndarray) -> None:
        """Append answered queries: identities in hex, and int8 [n, d] features."""
        joined = b"".join(bytes.fromhex(key) for key in keys)
        identities = np.frombuffer(joined, dtype=np.uint8).reshape(-1, IDENTITY_BYTES)
        with self._path.open("ab") as file:
            file.write(np.hstack([identities, features.view(np.uint8)]).tobytes())
        self._keys += keys
        self._features.append(features)

    def votes(
        self,
        results: Mapping[str, Mapping[str, Value]],
        select: Select,
        queries: np.ndarray,
        num_classes: int,
    ) -> Reused:
        """Votes of earlier answers on ``queries`` (int8 [q, d]); ``results``: by identity."""
        outcome = IndKnn().outcome
        answers = [outcome(results.get(key, {}))[1] for key in self._keys]
        labels = np.array(answers, dtype=np.int64)
        self._features = [np.concatenate(self._features)]
        known = labels >= 0
        labels, features = labels[known], self._features[0][known]
        near = ExactIndex(features, np.arange(len(features))).similar(queries, select)
        sums = [
            np.bincount(labels[n.rows], weights=n.weights.astype(np.int64), minlength=num_classes)
            for n in near
        ]
        counts = np.array([len(n.rows) for n in near], dtype=np.int64)
        return Reused(np.array(sums).reshape(len(near), num_classes).astype(np.int64), counts)
