"""Noise from the budget: the numbers that a plan's mechanisms leave out.

One noise level for the whole plan, the smallest whose certificate stays within the budget. Only
public numbers enter: budget, caps and the mechanisms' fields. The certificate of the solved plan is
what `run` and the ledger check, so a wrong search can waste budget and never overspend it.

A certificate may take a minute (an argmax curve at a noise that it has not seen), so the level is
searched with an estimate of it. The ratio of the two hardly depends on the level: the first
certificate gives the ratio, the second is close to the budget. Further levels follow from the power
law between the last two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ...wall.progress import Progress, no_progress
from ..accounting.accountant import certified_epsilon, odometer
from ..accounting.curves import ORDERS, pure_epsilon, release_rdp
from ..accounting.curves.cache import cached
from ..accounting.plan import Plan, Release, Slot
from ..accounting.quick import is_slow, quick
from ..accounting.smoothed import smoothed_epsilon
from .base import M, Priced

VERSION = 1  # raise when a level would be solved otherwise
WHAT = "solving the noise for the budget"  # of the progress
CERTIFICATES = 12  # computed at most
ENOUGH = 0.995  # of the budget: no further certificate is computed
ENOUGH_SLOW, AIM_SLOW = 0.99, 0.997  # where one may take a minute
EXACT, CLOSE = 1e-9, 5e-4  # relative precision of a search: closed formulas, and sums
MAX_POWER = 4.0  # of the noise, in a certificate's epsilon
MIN_AIM = 0.1  # of the budget: each certificate above it lowers the aim, by more each time
DOUBLINGS = 60  # of the level: more than any mechanism's range


def solve(
    entries: Sequence[Priced[M]],
    epsilon: float,
    delta: float,
    progress: Progress = no_progress,
) -> list[M]:
    """The mechanisms with their missing noise, so that all of them together cost ``epsilon``.

    The certificate is at most epsilon and at least 0.99 of it, except where no noise that can be
    drawn costs that: then the noise is the most or the least that can be drawn. Deterministic, and
    kept on disk (curves/cache.py).
    """
    levels = _levels(_Search(tuple(entries), epsilon, delta, progress))
    return [entry.mechanism for entry in _made(entries, np.array(levels))]


def _made(entries: Sequence[Priced[M]], levels: np.ndarray) -> list[Priced[M]]:
    return [
        replace(entry, mechanism=entry.mechanism.with_noise(float(level), entry.asked))
        for entry, level in zip(entries, levels, strict=True)
    ]


@dataclass(frozen=True)
class _Search:
    """The search for the level of ``entries`` at (``epsilon``, ``delta``)."""

    entries: tuple[Priced, ...]
    epsilon: float
    delta: float
    progress: Progress = field(compare=False)

    def plan(self, levels: np.ndarray) -> Plan:
        slots = tuple(entry.slot() for entry in _made(self.entries, levels))
        return Plan(self.epsilon, self.delta, slots)

    def still_holds(self, levels: np.ndarray) -> bool:
        """Whether levels of an earlier call are what ``levels`` would accept."""
        plan = self.plan(levels)
        return _demands(plan)[0] * self.epsilon <= certified_epsilon(plan) <= self.epsilon

    def levels(self) -> np.ndarray:
        """float64 [n_entries]."""
        shares = self._by_share()
        best, cost, past = shares * 2.0**DOUBLINGS, -math.inf, (0.0, 0.0)
        low, high = 0.0, math.inf  # the last factors that cost more, and not more
        enough, aim, precision = _demands(self.plan(shares))

        def at(goal: float) -> float:
            return _smallest(lambda f: estimate(self.plan(shares * f)), goal, precision)

        factor = at(aim * self.epsilon)
        for step in range(CERTIFICATES):
            self.progress(WHAT, step, CERTIFICATES)
            plan = self.plan(shares * factor)
            found = certified_epsilon(plan)
            if cost < found <= self.epsilon:
                best, cost = shares * factor, found
            stuck = past in ((factor, past[1]), (past[0], found)) or not 0 < found < math.inf
            if stuck or cost >= enough * self.epsilon:
                break
            if found > self.epsilon:
                aim, low = max(aim - 0.001 * 2**step, MIN_AIM), factor
            else:
                high = factor
            if step == 0:
                following = at(aim * self.epsilon * estimate(plan) / found)
            else:  # a power of the noise, nearly
                power = math.log(found / past[1]) / math.log(factor / past[0])
                power = min(max(power, -MAX_POWER), -1 / MAX_POWER)
                following = factor * (aim * self.epsilon / found) ** (1 / power)
            if 0 < low < high < math.inf and not low < following < high:
                following = math.sqrt(low * high)  # little noise: no power, and not even falling
            past, factor = (factor, found), following
        self.progress(WHAT, CERTIFICATES, CERTIFICATES)
        return best

    def _by_share(self) -> np.ndarray:
        """Levels at which each mechanism has its share of about the budget, float64 [n_entries].

        Of the Renyi divergence at the order that decides for Gaussian noise, which is
        1 + 2 log(1 / delta) / epsilon and leaves half of epsilon for it (Mironov 2017,
        Proposition 3).
        """
        missing = [bool(entry.mechanism.uncalibrated) for entry in self.entries]
        total = sum(e.share for e, solved in zip(self.entries, missing, strict=True) if solved)
        levels = np.ones(len(self.entries))
        if sum(missing) == 1:
            return levels
        decisive = 1 - 2 * math.log(self.delta) / self.epsilon
        held = [release_rdp(quick(r), ORDERS) for r in self.plan(levels).releases()]
        finite = ORDERS[np.isfinite(held).all(axis=0)]  # some curves hold up to one order
        order = finite[[min(int(np.searchsorted(finite, decisive)), len(finite) - 1)]]
        for i, entry in enumerate(self.entries):
            if missing[i]:
                one = replace(self, entries=(entry,))

                def divergence(level: float, one: _Search = one) -> float:
                    releases = one.plan(np.array([level])).releases()
                    return float(sum(r.cap * release_rdp(quick(r), order)[0] for r in releases))

                levels[i] = _smallest(divergence, entry.share / total * self.epsilon / 2, CLOSE)
        return levels


@lru_cache(maxsize=256)
def _levels(search: _Search) -> tuple[float, ...]:
    """A noise level for each mechanism, without effect on those that miss no number."""
    entries = search.entries
    if not any(entry.mechanism.uncalibrated for entry in entries):
        return (1.0,) * len(entries)
    key = {
        "solved": VERSION,
        "budget": [float(search.epsilon).hex(), float(search.delta).hex()],
        "slots": [[e.mechanism.fields(), e.asked, e.answered, e.share] for e in entries],
    }
    found = cached(key, len(entries), search.levels, search.still_holds)
    return tuple(found.tolist())


def estimate(plan: Plan) -> float:
    """The plan's approximate epsilon, in a fraction of a second: for searches, no guarantee."""
    releases = [quick(release) for release in plan.releases()]
    cheap = replace(plan, slots=(Slot({}, tuple(releases)),))
    found = odometer(cheap, [release.cap for release in releases])
    if all(map(_closed, releases)):
        closed = smoothed_epsilon(plan.releases(), plan.delta)
        found = found if closed is None else min(found, closed)
    pure = [pure_epsilon(release) for release in releases]
    exact = [r.cap * cost for r, cost in zip(releases, pure, strict=True) if cost is not None]
    return min(found, float(sum(exact, Fraction(0)))) if len(exact) == len(releases) else found


def _closed(release: Release) -> bool:
    """Whether the certificate by continuous pairs is a closed formula."""
    sampled = release.parameters.get("sampling_probability", 1.0) < 1
    return not sampled and pure_epsilon(release) is None


def _demands(plan: Plan) -> tuple[float, float, float]:
    """(least share of the budget to accept, share to aim at, precision of a search)."""
    releases = plan.releases()
    if any(map(is_slow, releases)):
        return ENOUGH_SLOW, AIM_SLOW, CLOSE
    sums = any(
        release.curve in ("screening", "argmax")
        or release.parameters.get("sampling_probability", 1.0) < 1
        for release in releases
    )
    return ENOUGH, 1.0, CLOSE if sums else EXACT


def _smallest(cost: Callable[[float], float], goal: float, precision: float) -> float:
    """The smallest factor at which a falling ``cost`` is at most ``goal``, to a relative precision.

    Returns the end of the range if the cost there is still above, or still below, the goal.
    Bisection alternates with interpolation along a straight line on logarithmic axes: a Gaussian
    mechanism's cost is nearly a power of its noise.
    """
    low, high, above, below = 0.5, 1.0, cost(0.5), cost(1.0)
    while below > goal and high < 2.0**DOUBLINGS:
        low, above, high = high, below, 2 * high
        below = cost(high)
    while above <= goal and low > 2.0**-DOUBLINGS:
        high, below, low = low, above, low / 2
        above = cost(low)
    if below > goal or above <= goal:
        return high if below > goal else low
    turn = 0
    while high > low * (1 + precision) and below < goal * (1 - precision):
        middle, turn = math.sqrt(low * high), turn + 1
        if turn % 2 and 0 < below < above < math.inf:
            wanted = math.log(above / (goal * (1 - precision / 2))) / math.log(above / below)
            middle = min(max(low * (high / low) ** wanted, low), high)
        price = cost(middle)
        if price > goal:
            low, above = middle, price
        else:
            high, below = middle, price
    return high
