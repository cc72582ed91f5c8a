"""Calibration: the noise that a plan's mechanisms leave to the budget.

One noise level for the whole plan, the smallest whose certificate stays within the budget. Only
public numbers enter: budget, caps and the mechanisms' fields. The certificate of the calibrated
plan is what `run` and the ledger check, so a wrong search can waste budget and never overspend it.

A certificate may take a minute (an argmax curve at a noise that it has not seen), so the level is
searched with an estimate of it. The ratio of the two hardly depends on the level: the first
certificate gives the ratio, the second is close to the budget. Where it is not, a bracketed root
search goes on with certificates.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from ...wall.progress import Progress, no_progress
from ..accounting.accountant import (
    certified_epsilon,
    is_slow,
    pure_and_rest,
    quick,
    smallest_by_rdp,
)
from ..accounting.curves import ORDERS, release_rdp
from ..accounting.plan import Plan
from ..accounting.pld import closed_epsilon
from .base import M, Priced

WHAT = "solving the noise for the budget"  # of the progress
CERTIFICATES = 12  # computed at most, about
ENOUGH = 0.995  # of the budget: no further certificate is computed
ENOUGH_SLOW, AIM_SLOW = 0.99, 0.997  # where one may take a minute
EXACT, CLOSE = 1e-9, 5e-4  # relative precision of a search: closed formulas, and sums
AIM_AGAIN = 0.9975  # of the budget, for the second certificate of sums
STEP = 0.01  # first step of a bracket around a level that is nearly right, relative
RANGE = 60 * math.log(2)  # of a level's logarithm: more than any mechanism's range


def calibrate(
    entries: Sequence[Priced[M]], epsilon: float, delta: float, progress: Progress = no_progress
) -> list[M]:
    """The mechanisms with their missing noise, so that all of them together cost ``epsilon``.

    The certificate is at most epsilon and at least 0.99 of it, except where no noise that can be
    drawn costs that: then the noise is the most or the least that can be drawn. Deterministic.
    """
    levels = _levels(_Search(tuple(entries), epsilon, delta, progress))
    return [
        entry.mechanism.with_noise(level, entry.asked)
        for entry, level in zip(entries, levels, strict=True)
    ]


@dataclass(frozen=True)
class _Search:
    """The search for the levels of ``entries`` at (``epsilon``, ``delta``)."""

    entries: tuple[Priced, ...]
    epsilon: float
    delta: float
    progress: Progress = field(compare=False)

    def plan(self, levels: np.ndarray) -> Plan:
        entries = (
            replace(e, mechanism=e.mechanism.with_noise(float(level), e.asked))
            for e, level in zip(self.entries, levels, strict=True)
        )
        slots = tuple(slot for entry in entries for slot in entry.periods())
        return Plan(self.epsilon, self.delta, slots)

    def levels(self) -> np.ndarray:
        """float64 [n_entries]."""
        shares, computed = self._by_share(), dict[float, float]()
        enough, aim, precision = _demands(self.plan(shares))

        def certificate(factor: float) -> float:
            if factor not in computed:
                self.progress(WHAT, min(len(computed), CERTIFICATES - 1), CERTIFICATES)
                computed[factor] = certified_epsilon(self.plan(shares * factor))
            return computed[factor]

        def at(goal: float) -> float:
            least = (1 - precision) * goal
            return _root(lambda f: estimate(self.plan(shares * f)), least, goal, precision)

        factor = at(aim * self.epsilon)
        cost = certificate(factor)
        if not enough * self.epsilon <= cost <= self.epsilon and 0 < cost < math.inf:
            aim = min(aim, AIM_AGAIN) if precision > EXACT else aim
            factor = at(aim * self.epsilon * estimate(self.plan(shares * factor)) / cost)
        factor = _root(certificate, enough * self.epsilon, self.epsilon, precision, factor, STEP)
        self.progress(WHAT, CERTIFICATES, CERTIFICATES)
        return shares * factor

    def _by_share(self) -> np.ndarray:
        """Levels at which each mechanism has its share of about the budget, float64 [n_entries].

        Of the Renyi divergence at the order that decides for Gaussian noise, which is
        1 + 2 log(1 / delta) / epsilon and leaves half of epsilon for it (Mironov 2017,
        Proposition 3).
        """
        missing = [i for i, e in enumerate(self.entries) if e.mechanism.uncalibrated]
        total = sum(self.entries[i].share for i in missing)
        levels = np.ones(len(self.entries))
        if len(missing) == 1:
            return levels
        decisive = 1 - 2 * math.log(self.delta) / self.epsilon
        curves = [release_rdp(quick(r), ORDERS) for r in self.plan(levels).releases()]
        finite = ORDERS[np.isfinite(curves).all(axis=0)]  # some curves hold up to one order
        order = finite[[min(int(np.searchsorted(finite, decisive)), len(finite) - 1)]]
        for i in missing:
            one = replace(self, entries=self.entries[i : i + 1])

            def divergence(level: float, one: _Search = one) -> float:
                releases = one.plan(np.array([level])).releases()
                return float(sum(r.cap * release_rdp(quick(r), order)[0] for r in releases))

            goal = self.entries[i].share / total * self.epsilon / 2
            levels[i] = _root(divergence, (1 - CLOSE) * goal, goal, CLOSE)
        return levels


@lru_cache(maxsize=256)
def _levels(search: _Search) -> tuple[float, ...]:
    """A noise level for each mechanism, without effect on those that miss no number."""
    if not any(entry.mechanism.uncalibrated for entry in search.entries):
        return (1.0,) * len(search.entries)
    return tuple(search.levels().tolist())


def estimate(plan: Plan) -> float:
    """The plan's approximate epsilon, in a fraction of a second: for searches, no guarantee."""
    releases = [quick(release) for release in plan.releases()]
    closed = closed_epsilon([release for release in plan.releases() if release.cap], plan.delta)
    pure, rest = pure_and_rest(releases)
    found = smallest_by_rdp(releases, plan.delta)[0], closed, None if rest else float(pure)
    return min(epsilon for epsilon in found if epsilon is not None)


def _demands(plan: Plan) -> tuple[float, float, float]:
    """(least share of the budget to accept, share to aim at, precision of a search)."""
    releases = plan.releases()
    if any(map(is_slow, releases)):
        return ENOUGH_SLOW, AIM_SLOW, CLOSE
    sums = any(
        r.curve in ("screening", "argmax") or r.parameters.get("sample_rate", 1.0) < 1
        for r in releases
    )
    return ENOUGH, 1.0, CLOSE if sums else EXACT


def _root(
    cost: Callable[[float], float],
    least: float,
    most: float,
    precision: float,
    start: float = 1.0,
    step: float = math.log(2),
) -> float:
    """A factor at which a falling ``cost`` lies in [least, most]; else one on the safe side.

    A bracket grows from ``start`` by ``step``, doubled each time, on the logarithmic axis, where a
    Gaussian mechanism's cost is nearly a straight line; Brent's method ends at the first factor
    that is good enough. Where the cost jumps over the interval, the dearest factor that costs no
    more than ``most`` is taken. Returns the end of the range where no factor costs so much, or so
    little.
    """
    prices = dict[float, float]()

    def miss(x: float) -> float:
        """Above 0 where the cost is too high, below 0 where it is too low."""
        price = prices[x] if x in prices else prices.setdefault(x, cost(math.exp(x)))
        if least <= price <= most:
            return 0.0
        goal = most if price > most else least
        return math.log(max(price, 1e-300) / goal) if price < math.inf else RANGE

    first = miss(math.log(start))
    near = far = math.log(start)
    while first and first * miss(far := near + math.copysign(step, first)) > 0:
        if abs(far) > RANGE:
            return math.exp(far)
        near, step = far, 2 * step
    if first:
        brentq(miss, near, far, xtol=precision / 4)
    safe = [(price, -x) for x, price in prices.items() if price <= most]
    return math.exp(-max(safe)[1])
