"""PATE's linear teachers: one classifier, with one vote, for each disjoint shard of the records.

A record belongs to one shard, by a keyed hash of its id, independently of other records (all rows
of a person by the person's code, where the unit of privacy is a person); a classifier is a function
of its own shard (docs/privacy.md, section 14). A shard without records votes for class 0.

Ridge regression on one-hot targets has one solution, found without randomness: no seeds, no early
stopping, no order of rows.
"""

import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.files import whole
from ...wall.matrices import MAX_ENTRY
from ...wall.progress import TaskProgress, no_progress
from ..accounting.plan import MAX_TEACHERS
from ..noise import sampler

KEY, KEY_BYTES = "shards.key", sampler.KEY_BYTES
RIDGE = 1.0  # added to the diagonal of the kernel matrix of rows scaled to entries in -1..1
PRESENT = 0.5  # threshold between the targets 0, absent, and 1, present


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Linear classifiers over int8 features.

    ``weights``: float32 [teachers, d + 1, n_classes]; row d is the intercept.
    """

    weights: np.ndarray = field(repr=False)

    def votes(self, queries: np.ndarray) -> np.ndarray:
        """How many classifiers choose each class, ties to the lowest: int64 [n_queries, n_classes].

        ``queries``: int8 [n_queries, d].
        """
        rows = _scaled(queries)  # float32 [n_queries, d + 1]
        counts = np.zeros((len(queries), self.weights.shape[2]), dtype=np.int64)
        for weights in self.weights:
            counts[np.arange(len(rows)), (rows @ weights).argmax(axis=1)] += 1
        return counts

    def attributes(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """Attributes that each classifier finds: int64 [n_queries, n_classes] of 0 and 1."""
        rows = _scaled(queries)
        return ((rows @ weights > PRESENT).astype(np.int64) for weights in self.weights)


def shard_numbers(ids: np.ndarray, key: bytes, teachers: int) -> np.ndarray:
    """The shard of each id (int64 [n]) by HMAC-SHA256 under the custodian's key: int64 [n].

    It is a function of id, key and ``teachers`` alone. Raises InvalidInput for fewer than one and
    for more than MAX_TEACHERS.
    """
    if not 1 <= teachers <= MAX_TEACHERS:
        raise InvalidInput("mechanism.teachers", f"from 1 to {MAX_TEACHERS}", teachers)
    digests = (hmac.digest(key, int(i).to_bytes(8, "little", signed=True), "sha256") for i in ids)
    numbers = [int.from_bytes(digest[:8], "little") % teachers for digest in digests]
    return np.array(numbers, dtype=np.int64)


def shard_key(directory: Path) -> bytes:
    """The custodian's secret for ``shard_numbers``, created on first use.

    Another key gives another partition, which is equally good.
    """
    path = directory / KEY
    if not path.exists():
        with whole(path, 0o600) as file:
            file.write(sampler.fresh_key())
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise InvalidInput(KEY, f"{KEY_BYTES} bytes", len(key))
    return key


def fit(features: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Ridge regression on targets of 0 and 1, in its dual form: float32 [d + 1, n_classes].

    ``labels``: int64 [n], or [n, n_classes] of 0 and 1. Without rows all weights are zero, hence
    class 0, or no attribute.
    """
    rows = _scaled(features).astype(np.float64)  # [n, d + 1]
    targets = np.eye(num_classes)[labels] if labels.ndim == 1 else labels  # [n, c]
    kernel = rows @ rows.T + RIDGE * np.eye(len(rows))
    return (rows.T @ np.linalg.solve(kernel, targets)).astype(np.float32)


def _scaled(features: np.ndarray) -> np.ndarray:
    """float32 [n, d + 1]: entries in -1..1, and a column of ones for the intercept."""
    rows = np.ones((len(features), features.shape[1] + 1), dtype=np.float32)
    rows[:, :-1] = features.astype(np.float32) / MAX_ENTRY
    return rows


def train_ensemble(
    features: np.ndarray,
    labels: np.ndarray,
    ids: np.ndarray,
    *,
    owners: np.ndarray | None = None,
    num_classes: int,
    teachers: int,
    key: bytes,
    progress: TaskProgress = no_progress,
) -> Ensemble:
    """``teachers`` classifiers of records in memory.

    ``features``: int8 [n, d]; ``ids``: int64 [n]; ``labels``: int64 [n], classes, or [n, n_classes]
    of 0 and 1, attributes; ``key``: of the shards. ``owners``: int64 [n], whose shard a row is in:
    its person's where the unit of privacy is a person; its own where None.
    """
    order = np.argsort(ids, kind="stable")
    shard = shard_numbers(ids if owners is None else owners, key, teachers)
    rows = (order[shard[order] == number] for number in range(teachers))
    shards = ((features[own], labels[own]) for own in rows)
    return train_by_shard(shards, num_classes, teachers, progress)


def train_by_shard(
    shards: Iterable[tuple[np.ndarray, np.ndarray]],
    num_classes: int,
    teachers: int,
    progress: TaskProgress,
) -> Ensemble:
    """Train as ``train_ensemble`` does, by (features, labels) of one shard at a time.

    Its rows ascend by id: the order of storage must not affect the last bits.
    """
    weights = []
    for own in shards:
        weights.append(fit(*own, num_classes))
        progress(len(weights), teachers)
    return Ensemble(np.stack(weights))
