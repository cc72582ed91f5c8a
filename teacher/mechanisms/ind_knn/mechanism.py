"""Ind-KNN (UAI23 Algorithm 3, in the order that its proof needs): neighbours by threshold, each of
which pays for its votes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from ....wall.errors import InvalidInput
from ....wall.messages import ABSTAINED, Outcome, Value
from ...accounting.conversion import epsilons_from_rdp
from ...accounting.curves.base import ORDERS, is_integer
from ...accounting.plan import Parameter, Release
from ...ledger.individual_budgets import FULL
from ...noise.scales import less_spent
from ...search.kernels import GRID, Select, Similar, cosine, rbf
from ..base import Charging, Mechanism
from .label_price import label_prices

if TYPE_CHECKING:
    from pathlib import Path

    from ...noise.entropy import Entropy
    from ..earlier_answers import EarlierAnswers, Reused

# The one prepaid release. A query's value under it is [noisy number of neighbours, label].
ANSWER = "individual_budgets"
COUNT_NOISE, LABEL_NOISE = "count", "label"  # what a draw is for
MIN_NEIGHBOURS = 30  # the noise of a label is never scaled for fewer
MIN_PLANNED = 3  # queries: for fewer, no record's budget would cover a count
MAX_SCALE = 1e6  # of a field
WHOLE_ORDERS = ORDERS[ORDERS % 1 == 0]  # that a filter can hold at


@dataclass(frozen=True)
class IndKnn(Mechanism):
    """Weighted votes of similar records, each with a budget of ``rho`` for all answers together.

    Guarantee: all answers under one slot of a ledger, over all rounds, extractors and restarts,
    together are ``rho``-zCDP, (alpha, alpha rho)-RDP at every alpha > 1, under add/remove of one
    record (its whole presence schedule); with ``filter`` gdp they are a Gaussian pair, too; with
    renyi they are (alpha, ``order`` rho)-RDP at every alpha up to ``order`` instead. The slot is
    charged in full before the first answer. A budget belongs to a slot and a record's id:
    another extractor, removing and adding again, or a restart refill nothing. Each slot is charged
    its own rho, and they add up. A record without budget no longer votes. Proof: docs/privacy.md,
    "Individual budgets".

    Args:
        kind: the mechanism's name.
        kernel: similarity of two feature vectors: "cosine" (negative ones count as 0) or "rbf",
            exp(-max(0, |x - q|^2 - near^2) / bandwidth^2).
        threshold: records at least this similar to a query are its neighbours, in (0, 1]; rounded
            to multiples of 1/4096.
        bandwidth: of the rbf kernel, in lengths of a normalised feature vector; unused by cosine.
        near: distance within which a record's similarity is 1, in the same unit; unused by cosine.
            A narrow bandwidth needs it where no record is close: weights are multiples of 1/128.
        sigma_label: noise on a class's weighted votes is
            sigma_label * sqrt(max(noisy number of neighbours, 30)), in votes.
        sigma_count: scale of the discrete Gaussian noise on the number of neighbours, in records;
            null: sqrt(T / (6 rho)) for T planned queries.
        tables: hash tables, a count; 0 compares with all records, more with those that share a
            bucket with the query in some table (Ind-KNN-Hash).
        bits: hyperplanes of a table, 1..16: 2^bits buckets.
        hash_seed: of the hyperplanes; public. Changing it protects nothing.
        rho: budget of one record for all answers, zCDP; null: what the budget buys.
        filter: how budgets add up (docs/privacy.md, section 20): "zcdp"; "gdp", by which the same
            epsilon buys a larger rho; or "renyi", which holds at one Renyi order, where a label
            costs less than the sums that it is taken from.
        order: the Renyi order of the filter "renyi", of the accountant's grid; null: the one at
            which the budget buys the largest rho.
        reuse: whether answered queries vote with their labels, as records do, at no cost; for
            streams of queries that outlast the records' budgets.
    """

    kind: Literal["ind_knn"] = "ind_knn"
    kernel: Literal["cosine", "rbf"] = "cosine"
    threshold: float = 0.5
    bandwidth: float = 1.0
    near: float = 0.0
    sigma_label: float = 0.5
    sigma_count: float | None = None
    tables: int = 0
    bits: int = 8
    hash_seed: int = 0
    rho: float | None = None
    reuse: bool = False
    filter: Literal["zcdp", "gdp", "renyi"] = "zcdp"
    order: int | None = None

    stages = (ANSWER,)
    charging = Charging.PREPAID
    solved = ("rho", "sigma_count", "order")
    sharded = True
    persons = True

    def __post_init__(self) -> None:
        if self.kernel not in ("cosine", "rbf"):
            raise InvalidInput("mechanism.kernel", "cosine or rbf", self.kernel)
        if self.filter not in ("zcdp", "gdp", "renyi"):
            raise InvalidInput("mechanism.filter", "zcdp, gdp or renyi", self.filter)
        if self.order is not None:
            if self.filter != "renyi":
                raise InvalidInput("mechanism.order", "null without `filter: renyi`", self.order)
            if not is_integer(self.order) or self.order not in WHOLE_ORDERS:
                rule = "a whole order of the accountant's grid, such as 16, 18, 20, 32"
                raise InvalidInput("mechanism.order", rule, self.order)
        if not 0 < self.threshold <= 1:
            raise InvalidInput("mechanism.threshold", "in (0, 1]", self.threshold)
        for name in ("sigma_label", "sigma_count", "bandwidth", "rho"):
            value = getattr(self, name)
            minimum = 1e-9 if name == "rho" else 1e-3
            if value is not None and not minimum <= value <= MAX_SCALE:
                raise InvalidInput(f"mechanism.{name}", f"between {minimum:g} and 1e6", value)
        for name, low, high in (
            ("near", 0, 1e6),
            ("tables", 0, 1000),
            ("bits", 1, 16),
            ("hash_seed", 0, 2**31),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidInput(f"mechanism.{name}", f"between {low} and {high}", value)
        if self.sigma_count is not None and self.rho is not None and self._count_units() > FULL:
            minimum = 1 / math.sqrt(2 * self.rho)
            rule = f"at least {minimum:.6g} (below it, no record's budget covers one count)"
            raise InvalidInput("mechanism.sigma_count", rule, self.sigma_count)

    @property
    def missing(self) -> tuple[str, ...]:
        """See ``Mechanism.missing``; only one filter has an order."""
        found = super().missing
        return tuple(name for name in found if name != "order" or self.filter == "renyi")

    def for_budget(self, epsilon: float, delta: float) -> IndKnn:
        """See ``Mechanism.for_budget``: the order at which the budget buys the largest rho."""
        if "order" not in self.missing:
            return self
        left = epsilon - epsilons_from_rdp(WHOLE_ORDERS, 0 * WHOLE_ORDERS, delta)
        return replace(self, order=int(WHOLE_ORDERS[(left / WHOLE_ORDERS).argmax()]))

    def with_noise(self, level: float, asked: int) -> IndKnn:
        """See ``Mechanism.with_noise``. rho is rounded down to a multiple of 1e-7 at least.

        Counts take a third of it: sigma_count follows from the queries and rho.
        """
        rho = less_spent(1 / (2 * level**2), places=7) if self.rho is None else self.rho
        count = math.ceil(100 * math.sqrt(max(asked, MIN_PLANNED) / (6 * rho))) / 100
        return self.filled(rho=rho, sigma_count=min(count, MAX_SCALE))

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """One prepaid release, however many queries are asked.

        Raises InvalidInput where rho or sigma_count is not filled in (``with_noise``).
        """
        parameters: dict[str, Parameter] = {"rho": self.number("rho")}
        sigma = self.number("sigma_count")
        if self.filter == "gdp":  # both noises are on integers: records, and 1/GRID
            parameters["sigma"] = min(sigma, float(self._noise(0)))
        if self.filter == "renyi":
            parameters["order"] = int(self.number("order"))
        return (Release(ANSWER, self.filter, parameters, 1, prepaid=True),)

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, int]:
        """(outcome, label) of a settled query; every query is answered."""
        value = results.get(ANSWER)
        if isinstance(value, list):
            return Outcome.ANSWERED, value[1]
        return Outcome.ABSTAINED, ABSTAINED

    def prepaid(self) -> IndKnn:
        """Itself: each record has a budget."""
        return self

    def memory(self, path: Path, dimensions: int) -> EarlierAnswers | None:
        """Answered queries under one extractor, where they vote (``reuse``)."""
        if not self.reuse:
            return None
        from ..earlier_answers import EarlierAnswers

        return EarlierAnswers(path, dimensions, self.outcome)

    def select(self, length: float) -> Select:
        """The kernel with its threshold. ``length``: public, of a unit vector's features."""
        if self.kernel == "cosine":
            return cosine(self.threshold)
        return rbf(self.threshold, self.bandwidth, length, self.near)

    def hashing(self) -> tuple[int, int, int] | None:
        """(tables, bits, seed) of the hyperplanes, None where all records are looked at."""
        return (self.tables, self.bits, self.hash_seed) if self.tables else None

    def reserve(self, similar: Sequence[Similar], left: np.ndarray) -> np.ndarray:
        """The most that a batch may cost each record: int64 [n] units, at most ``left``.

        ``similar``: for each query; ``left``: int64 [n] units. For each record it is a function of
        its own similarities and budget. Noise is smallest, and a vote costs most, at the smallest
        number of neighbours.
        """
        highest = self._count_units() + int(self._prices(self._noise(0))[GRID])
        times = np.zeros(len(left), dtype=np.int64)
        for neighbours in similar:
            times[neighbours.rows] += 1
        return np.minimum(left, times * highest)  # highest <= 2 FULL + 1, times < 2^20

    def answer(
        self,
        similar: Sequence[Similar],
        left: np.ndarray,
        labels: np.ndarray,
        num_classes: int,
        keys: Sequence[str],
        entropy: Entropy,
        reused: Reused | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Answer queries one after the other (UAI23 Algorithm 3).

        Returns int64 [n_queries, 2] of (noisy number of neighbours, label), and int64 [n] units
        paid. ``similar``: for each query; ``left``: int64 [n] units before the first of them,
        reserved already; ``labels``: int64 [n], unless ``similar`` says its own. Nothing of it may
        leave before the payments are committed. For each query:

        1. Neighbours are the similar records whose budget covers a count.
        2. Their number is released with N_Z(0, sigma_count^2); each pays 1/(2 sigma_count^2).
        3. The scale s of the label's noise follows from the released number.
        4. It takes the largest weight w <= kernel whose price its budget covers, and pays it:
           w^2/(2 s^2), or less where the filter is "renyi" (label_price.py).
        5. The class of the largest sum of weights plus N_Z(0, s^2) is released; ties to the lowest.

        An empty or exhausted neighbourhood is answered the same way. ``reused`` counts in 3 and 5
        as neighbours that pay nothing: it is public.
        """
        left, price = left.copy(), self._count_units()
        before = left.copy()
        count_noise = entropy.discrete_gaussian(self._sigma_count(), keys, COUNT_NOISE, 1)[:, 0]
        values = np.empty((len(keys), 2), dtype=np.int64)
        for j, neighbours in enumerate(similar):
            rows = neighbours.rows
            able = left[rows] >= price
            said = (labels[rows] if neighbours.labels is None else neighbours.labels)[able]
            rows, weights = rows[able], neighbours.weights[able].astype(np.int64)
            left[rows] -= price
            values[j, 0] = len(rows) + count_noise[j]
            known = 0 if reused is None else int(reused.counts[j])
            scale = self._noise(int(values[j, 0]) + known)
            prices = self._prices(scale)
            weights = np.minimum(weights, np.searchsorted(prices, left[rows], side="right") - 1)
            left[rows] -= prices[weights]
            sums = np.bincount(said, weights=weights, minlength=num_classes)
            noise = entropy.discrete_gaussian(float(scale), [keys[j]], LABEL_NOISE, num_classes)[0]
            public = 0 if reused is None else reused.sums[j]
            exact = sums.astype(np.int64)  # sums of integers below 2^53
            values[j, 1] = (exact + public + noise).argmax()
        return values, before - left

    def _sigma_count(self) -> float:
        return self.number("sigma_count")

    def _count_units(self) -> int:
        """The price of a count, 1/(2 sigma_count^2), in units of rho / FULL, rounded up."""
        rho = Fraction(self.number("rho"))
        return math.ceil(FULL / (2 * Fraction(self._sigma_count()) ** 2 * rho))

    def _noise(self, neighbours: int) -> int:
        """The label's noise: sigma_label sqrt(max(neighbours, 30)) in 1/GRID, rounded up."""
        square = (Fraction(self.sigma_label) * GRID) ** 2 * max(neighbours, MIN_NEIGHBOURS)
        return math.isqrt(math.ceil(square) - 1) + 1

    def _prices(self, scale: int) -> np.ndarray:
        """Prices of the weights a/GRID for a in 0..GRID: int64 [GRID + 1] units, rounded up.

        FULL + 1 where no budget covers it.
        """
        return _prices(scale, self.number("rho"), self.order)


@lru_cache(maxsize=1024)
def _prices(scale: int, rho: float, order: int | None) -> np.ndarray:
    """(a/GRID)^2 / (2 s^2), s = scale/GRID, as exact rationals, rounded up to units of rho/FULL.

    At one ``order`` the smaller of it and of a label's own price.
    """
    above, below = (FULL / (2 * Fraction(scale) ** 2 * Fraction(rho))).as_integer_ratio()
    prices = np.array(
        [min(FULL + 1, -(-a * a * above // below)) for a in range(GRID + 1)], dtype=np.int64
    )
    if order is not None:
        own = np.ceil(label_prices(scale, np.arange(1, GRID + 1), order) * (FULL / rho))
        prices[1:] = np.minimum(prices[1:], np.minimum(own, FULL + 1).astype(np.int64))
    prices.flags.writeable = False
    return prices
