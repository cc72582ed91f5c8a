"""Ind-KNN (UAI23 Algorithm 3, in the order that its proof needs).

Neighbours are chosen by a threshold, and each pays for its own votes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.matrices import GRID
from ...wall.messages import Value
from ..accounting.plan import FULL, Release
from .base import Charging, Mechanism
from .fields import less_spent, param

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from ..search.kernels import Select, Similar
    from .voters import Keys

# The one prepaid release. A query's value under it is [noisy number of neighbours, label].
ANSWER = "individual_budgets"
COUNT_NOISE, LABEL_NOISE = "count", "label"  # what a draw is for
MIN_NEIGHBOURS = 30  # the noise of a label is never scaled for fewer
MIN_PLANNED = 3  # queries: for fewer, no record's budget would cover a count
MAX_SCALE = 1e6  # of a field
IDENTITY_BYTES = 32


@dataclass(frozen=True, eq=False)
class Reused:
    """Votes of earlier answers on a batch; public.

    ``sums``: int64 [q, n_classes] in units of 1/GRID; ``counts``: int64 [q].
    """

    sums: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class IndKnn(Mechanism):
    """Weighted votes of similar records, each with a budget of ``rho`` for all answers together.

    Guarantee: all answers under one slot of a ledger, over all rounds, extractors and restarts,
    together are ``rho``-zCDP under add/remove of one record (its whole presence schedule). The slot
    is charged in full before the first answer. A budget belongs to a slot and a record's id:
    another extractor, removing and adding again, or a restart refill nothing. A record without
    budget no longer votes. Proof: docs/privacy.md, "Individual budgets".
    """

    kind: Literal["ind_knn"] = "ind_knn"
    kernel: Literal["cosine", "rbf"] = param(
        "cosine",
        "similarity of two feature vectors: cosine (negative ones count as 0) or rbf, exp(-max(0, "
        "|x - q|^2 - near^2) / bandwidth^2)",
    )
    threshold: float = param(
        0.5,
        "records at least this similar to a query are its neighbours; rounded to multiples of "
        "1/4096",
        gt=0,
        le=1,
    )
    bandwidth: float = param(
        1.0,
        "of the rbf kernel; unused by cosine",
        unit="lengths of a normalised feature vector",
        ge=1e-3,
        le=MAX_SCALE,
    )
    near: float = param(
        0.0,
        "distance within which a record's similarity is 1; unused by cosine. A narrow bandwidth "
        "needs it if no record is close: weights are multiples of 1/128",
        unit="lengths of a normalised feature vector",
        ge=0,
        le=MAX_SCALE,
    )
    sigma_label: float = param(
        0.5,
        "noise on a class's weighted votes is sigma_label * sqrt(max(noisy number of neighbours, "
        "30))",
        unit="votes",
        ge=1e-3,
        le=MAX_SCALE,
    )
    sigma_count: float | None = param(
        None,
        "scale of the discrete Gaussian noise on the number of neighbours; null: sqrt(T / (6 rho)) "
        "for T planned queries",
        unit="records",
        ge=1e-3,
        le=MAX_SCALE,
        calibrated=True,
    )
    tables: int = param(
        0,
        "hash tables; 0 compares with all records, more with those that share a bucket with the "
        "query in some table (Ind-KNN-Hash)",
        unit="a count",
        ge=0,
        le=1000,
    )
    bits: int = param(8, "hyperplanes of a table: 2^bits buckets", unit="a count", ge=1, le=16)
    hash_seed: int = param(
        0, "of the hyperplanes; public. Changing it protects nothing", ge=0, le=2**31
    )
    rho: float | None = param(
        None,
        "budget of one record for all answers; null: what the budget buys",
        unit="zCDP",
        ge=1e-9,
        le=MAX_SCALE,
        calibrated=True,
    )
    reuse: bool = param(
        False,
        "whether answered queries vote with their labels, as records do, at no cost; for streams "
        "of queries that outlast the records' budgets",
    )

    stages = (ANSWER,)
    charging = Charging.PREPAID
    rehearsed = True
    persons = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma_count is not None and self.rho is not None and self._count_units() > FULL:
            minimum = 1 / math.sqrt(2 * self.rho)
            rule = f"at least {minimum:.6g} (below it, no record's budget covers one count)"
            raise InvalidInput("mechanism.sigma_count", rule, self.sigma_count)

    def with_noise(self, level: float, asked: int) -> Self:
        """Counts take a third of rho: sigma_count follows from the queries and rho."""
        rho = less_spent(1 / (2 * level**2), places=7) if self.rho is None else self.rho
        count = math.ceil(100 * math.sqrt(max(asked, MIN_PLANNED) / (6 * rho))) / 100
        return self.with_values(rho=rho, sigma_count=count)

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """One prepaid release, however many queries are asked."""
        self.require("sigma_count")
        return (Release(ANSWER, "zcdp", {"rho": self.require("rho")}, 1, prepaid=True),)

    def label(self, value: Any) -> Value:
        return int(value[1])

    @property
    def noise_of_neighbours(self) -> float:
        return self.require("sigma_count")

    def select(self, length: float) -> Select:
        """The rule for neighbours; ``length``: of a unit vector, public."""
        from ..search.kernels import cosine, rbf  # of the private side: a price needs none

        if self.kernel == "cosine":
            return cosine(self.threshold)
        return rbf(self.threshold, self.bandwidth, length, self.near)

    def hashing(self) -> tuple[int, int, int] | None:
        """(tables, bits, seed) of the hyperplanes; None if all records are looked at."""
        return (self.tables, self.bits, self.hash_seed) if self.tables else None

    def reserve(self, similar: Sequence[Similar], left: np.ndarray) -> np.ndarray:
        """The most that a batch may cost each record: int64 [n] units, at most ``left``.

        ``similar``: for each query; ``left``: int64 [n] units. For each record it is a function of
        its own similarities and budget. A vote costs most where noise is smallest.
        """
        highest = self._count_units() + int(self._prices(self._noise(0))[GRID])
        times = np.zeros(len(left), dtype=np.int64)
        for neighbours in similar:
            times[neighbours.rows] += 1
        # highest <= 2 FULL + 1, and times < 2^20, because a batch has fewer queries than that
        return np.minimum(left, times * highest)

    def answer(
        self,
        similar: Sequence[Similar],
        left: np.ndarray,
        labels: np.ndarray,
        num_classes: int,
        keys: Keys,
        entropy: Entropy,
        reused: Reused | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Answer queries one after the other (UAI23 Algorithm 3, as docs/privacy.md, section 12).

        Returns values int64 [n_queries, 2], (noisy number of neighbours, label), and the units that
        each record paid: int64 [n]. Nothing of it may leave before the payments are committed.

        ``left``: int64 [n] units before the first query, reserved already; ``labels``: int64 [n],
        unless ``similar`` says its own. ``reused`` counts as neighbours that pay nothing.
        """
        left, price = left.copy(), self._count_units()
        before = left.copy()
        sigma = self.require("sigma_count")
        count_noise = entropy.discrete_gaussian(sigma, keys, COUNT_NOISE, 1)[:, 0]
        values = np.empty((len(keys), 2), dtype=np.int64)
        for j, neighbours in enumerate(similar):
            rows = neighbours.rows
            able = left[rows] >= price
            classes = (labels[rows] if neighbours.labels is None else neighbours.labels)[able]
            rows, weights = rows[able], neighbours.weights[able].astype(np.int64)
            left[rows] -= price
            values[j, 0] = len(rows) + count_noise[j]
            public, earlier = (0, 0) if reused is None else (reused.sums[j], int(reused.counts[j]))
            scale = self._noise(int(values[j, 0]) + earlier)
            prices = self._prices(scale)
            weights = np.minimum(weights, np.searchsorted(prices, left[rows], side="right") - 1)
            left[rows] -= prices[weights]
            sums = np.bincount(classes, weights=weights, minlength=num_classes)
            noise = entropy.discrete_gaussian(float(scale), [keys[j]], LABEL_NOISE, num_classes)[0]
            # astype: sums of integers below 2^53
            values[j, 1] = (sums.astype(np.int64) + public + noise).argmax()
        return values, before - left

    def _count_units(self) -> int:
        """The price of a count, 1/(2 sigma_count^2), in units of rho / FULL, rounded up."""
        rho = Fraction(self.require("rho"))
        return math.ceil(FULL / (2 * Fraction(self.require("sigma_count")) ** 2 * rho))

    def _noise(self, neighbours: int) -> int:
        """The label's noise: sigma_label sqrt(max(neighbours, 30)) in 1/GRID, rounded up."""
        square = (Fraction(self.sigma_label) * GRID) ** 2 * max(neighbours, MIN_NEIGHBOURS)
        return math.isqrt(math.ceil(square) - 1) + 1

    def _prices(self, scale: int) -> np.ndarray:
        return _prices(scale, self.require("rho"))


@lru_cache(maxsize=1024)
def _prices(scale: int, rho: float) -> np.ndarray:
    """Prices of the weights a/GRID for a in 0..GRID: int64 [GRID + 1] units of rho/FULL.

    (a/GRID)^2 / (2 s^2), s = scale/GRID, as exact rationals, rounded up; FULL + 1 where no budget
    covers it.
    """
    above, below = (FULL / (2 * Fraction(scale) ** 2 * Fraction(rho))).as_integer_ratio()
    prices = np.array(
        [min(FULL + 1, -(-a * a * above // below)) for a in range(GRID + 1)], dtype=np.int64
    )
    prices.flags.writeable = False
    return prices


class EarlierAnswers:
    """Answers that vote on later queries (UAI23 section 3.1): they are public, and do not pay.

    Queries that were answered under one extractor, in an append-only file: a row is an identity (32
    bytes) and int8 [d] features. Labels are read from the ledger only: a row without a recorded
    answer does not vote, and a torn row at the end is cut off. Losing the file costs accuracy.
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
        answered = labels >= 0
        labels, features = labels[answered], self._features[0][answered]
        from ..search.cpu import ExactIndex  # numba takes a fifth of a second

        similar = ExactIndex(features, np.arange(len(features))).similar(queries, select)
        sums = [
            np.bincount(labels[n.rows], weights=n.weights.astype(np.int64), minlength=num_classes)
            for n in similar
        ]
        counts = np.array([len(n.rows) for n in similar], dtype=np.int64)
        return Reused(np.array(sums).reshape(len(similar), num_classes).astype(np.int64), counts)
