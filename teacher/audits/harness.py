"""The statistical audit: lower bounds of epsilon from a mechanism's own code.

Every kind of mechanism has worst-case neighbouring data sets (cases.py). Its ``draw`` is run
with the search, the sampler and the noise that answer real queries; no private row is read and
nothing is charged. A lower bound above the claim proves that code and curve disagree. A lower bound
below it only shows that a fault, if there is one, costs less than the trials can detect. So the
bound is shown next to the claim, and next to the bound that faithful code would reach.

**Validity.** Trials are independent: each has new inclusion bits and noise on the same data set.
The first quarter is for exploration: it orders outcomes by estimated likelihood ratio (summed over
a trial's queries: Neyman-Pearson for independent ones) and picks a threshold and a direction, hence
one event S. On the rest, on which S does not depend,

    epsilon(delta) >= log((P(S) - delta) / Q(S)) >= log((p_low - delta) / q_high),

where P, Q are the laws on the two data sets in the direction picked, and p_low and q_high one-sided
Clopper-Pearson limits at level error / 2 each. The second inequality fails with probability at most
``error`` for any mechanism, also if the choice of pair and event assumed a wrong law. Several
bounds share 1 - confidence equally, so all hold jointly.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
from scipy.special import betaincinv, ndtr

from ...wall.errors import InvalidInput
from ..accounting.accountant import certified_epsilon
from ..accounting.plan import Plan, Release, Slot

PROBE_DELTA = 0.02
EXPLORED = 4  # one in this many trials chooses the event
OUTCOMES = 64  # steps of a noisy sum between -4 and 4 standard deviations


@dataclass(frozen=True)
class Pair:
    """Neighbouring data sets around one query.

    There are ``allies`` records of the added one's class, then ``rivals`` of class 0. The neighbour
    has one record more, nearer than all of them, of the last of ``num_classes`` classes.
    """

    allies: int
    rivals: int
    num_classes: int

    def labels(self, added: bool) -> np.ndarray:
        """Classes by nearness, int64 [n], with or without the added record."""
        return np.repeat([self.num_classes - 1, 0], [self.allies + added, self.rivals])


Outcomes = Callable[[Pair, bool, int], np.ndarray]
"""(pair, with the record, n) -> codes, int64 [n], of independent queries."""


@dataclass(frozen=True)
class ReleaseFinding:
    """The result for one kind of release. Epsilons are at the finding's delta.

    ``claim``: the certificate of exactly ``queries`` releases; ``expected``: the approximate lower
    bound of faithful code with this many trials; ``pair``: of the bound.
    """

    release: str
    queries: int  # in a trial
    trials: int  # on each of the two data sets
    pair: Pair
    lower_bound: float
    expected: float
    claim: float

    @property
    def share(self) -> float:
        """Lower bound over claim; above 1, the claim is refuted."""
        if self.claim > 0:
            return self.lower_bound / self.claim
        return math.inf * (self.lower_bound > 0)


@dataclass(frozen=True)
class EmpiricalFinding:
    """The result of a mechanism's audit.

    All lower bounds hold jointly with probability ``confidence``.
    """

    mechanism: dict[str, object]
    delta: float
    confidence: float
    releases: tuple[ReleaseFinding, ...]

    @property
    def worst(self) -> ReleaseFinding:
        """The release whose lower bound is the largest share of its claim."""
        return max(self.releases, key=lambda found: found.share)

    @property
    def lower_bound(self) -> float:
        return self.worst.lower_bound

    @property
    def claim(self) -> float:
        return self.worst.claim

    @property
    def refuted(self) -> bool:
        """The mechanism loses more than it claims, at this confidence."""
        return any(found.lower_bound > found.claim for found in self.releases)

    def to_json(self) -> dict[str, object]:
        return {
            **asdict(self),
            "lower_bound": self.lower_bound,
            "claim": self.claim,
            "refuted": self.refuted,
        }

    def render(self) -> str:
        """The finding for a reader."""
        exceeds = "REFUTED: a lower bound exceeds its claim"
        verdict = exceeds if self.refuted else "no claim is refuted"
        lines = [
            f"{verdict}, at delta {self.delta:g} and {self.confidence:.2%} confidence",
            f"  {'release':18} {'queries':>7} {'trials':>8} {'epsilon >=':>10} "
            f"{'of faithful code':>16} {'claim':>7}",
        ]
        lines += (
            f"  {r.release:18} {r.queries:7} {r.trials:8} {r.lower_bound:10.3f} "
            f"{r.expected:16.3f} {r.claim:7.3f}"
            for r in self.releases
        )
        return "\n".join(lines)


class Audited(Protocol):
    """What the audit needs of a mechanism; see ``Mechanism``."""

    def fields(self) -> dict[str, object]: ...

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]: ...


@dataclass(frozen=True, eq=False)
class Part:
    """One kind of release, audited on one pair of data sets.

    ``run(added, n)``: codes of ``n`` independent draws by the mechanism's own code, with or without
    the added record: int64 [n]. ``laws``: probabilities of the codes of faithful code, without and
    with it, float64 [n_codes] each.
    """

    release: str
    pair: Pair
    run: Callable[[bool, int], np.ndarray]
    laws: tuple[np.ndarray, np.ndarray]


def audit_parts(
    mechanism: Audited, parts: Sequence[Part], *, delta: float, trials: int, confidence: float
) -> EmpiricalFinding:
    """Audit one query for each part, where all have the mechanism's price for an answered query.

    ``trials``: draws for each part on each of its two data sets. Raises InvalidInput for fewer than
    8 trials, or delta or confidence outside (0, 1).
    """
    check_audit(delta, trials, confidence, 1)
    claim = certified(mechanism, mechanism.releases(1, 1), delta)
    error, found = (1 - confidence) / len(parts), []
    for part in parts:

        def outcomes(at: Pair, added: bool, n: int, part: Part = part) -> np.ndarray:
            return part.run(added, n)

        bound = bound_pair(outcomes, part.pair, queries=1, trials=trials, delta=delta, error=error)
        expected = expected_bound(*part.laws, trials, delta, error)
        found.append(ReleaseFinding(part.release, 1, trials, part.pair, bound, expected, claim))
    return EmpiricalFinding(mechanism.fields(), delta, confidence, tuple(found))


def check_audit(delta: float, trials: int, confidence: float, queries: int) -> None:
    """Raise InvalidInput for bad arguments of an audit.

    ``trials``, in queries, must allow 8 trials of ``queries`` each; delta and confidence must be in
    (0, 1).
    """
    if queries < 1 or trials < 8 * queries:
        raise InvalidInput("trials", f"at least 8 times the {queries} queries of a trial", trials)
    for name, value in (("delta", delta), ("confidence", confidence)):
        if not 0 < value < 1:
            raise InvalidInput(name, "between 0 and 1", value)


def certified(mechanism: Audited, releases: tuple[Release, ...], delta: float) -> float:
    """The certified epsilon of exactly these releases."""
    return certified_epsilon(Plan(1.0, delta, (Slot(mechanism.fields(), releases),)))


def fresh_keys(n: int, batch: int) -> Iterator[list[str]]:
    """New identities of ``n`` queries, ``batch`` at a time; none is ever used twice."""
    call = secrets.token_hex(8)
    for start in range(0, n, batch):
        yield [f"{call}-{row}" for row in range(start, min(start + batch, n))]


def sharpest_bound(
    outcomes: Outcomes,
    pairs: Iterable[Pair],
    *,
    queries: int,
    trials: int,
    delta: float,
    error: float,
) -> tuple[Pair, float]:
    """The pair with the largest ``bound_pair``, and that bound; each bound fails with ``error``."""
    bounds = {
        pair: bound_pair(outcomes, pair, queries=queries, trials=trials, delta=delta, error=error)
        for pair in dict.fromkeys(pairs)
    }
    return max(bounds.items(), key=lambda found: found[1])


def bound_pair(
    outcomes: Outcomes, pair: Pair, *, queries: int, trials: int, delta: float, error: float
) -> float:
    """``lower_bound`` for ``trials`` groups of ``queries`` answers on each side of a pair."""
    drawn = [outcomes(pair, added, trials * queries) for added in (False, True)]
    size = int(max(codes.max() for codes in drawn)) + 1
    trial = np.repeat(np.arange(trials), queries)
    without, added = (
        np.bincount(trial * size + codes, minlength=trials * size).reshape(trials, size)
        for codes in drawn
    )
    return lower_bound(without, added, delta=delta, error=error)


def lower_bound(without: np.ndarray, added: np.ndarray, *, delta: float, error: float) -> float:
    """A lower bound of epsilon(delta) that fails with probability at most ``error``.

    ``without``, ``added``: int64 [trials, n_outcomes], counts of each outcome in each trial on the
    two data sets. Proof: module docstring.
    """
    cut = len(without) // EXPLORED
    seen_added, seen_without = (side[:cut].sum(axis=0) + 0.5 for side in (added, without))
    log_ratio = np.log(seen_added) - np.log(seen_without)  # float64 [n_outcomes]
    scores = [np.round(counts @ log_ratio, 9) for counts in (without, added)]
    tested = len(without) - cut
    best = (-math.inf, 1.0, 0.0)
    for sign in (1.0, -1.0):
        low, high = (np.sort(sign * side[:cut]) for side in (scores if sign > 0 else scores[::-1]))
        thresholds = np.unique(np.concatenate([low, high]))
        x, y = (cut - np.searchsorted(side, thresholds) for side in (high, low))
        # one more hit of the unlikely side: an event that exploration did not see is possible
        unlikely_hits = np.minimum((y + 1.0) * (tested / cut), tested)
        promised = loss_bound(x * (tested / cut), unlikely_hits, tested, delta, error)
        top = int(promised.argmax())
        best = max(best, (float(promised[top]), sign, float(thresholds[top])))
    _, sign, threshold = best
    unlikely, likely = scores if sign > 0 else scores[::-1]
    x, y = (
        np.array([(sign * side[cut:] >= threshold).sum(dtype=float)]) for side in (likely, unlikely)
    )
    return max(0.0, float(loss_bound(x, y, tested, delta, error)[0]))


def loss_bound(x: np.ndarray, y: np.ndarray, n: int, delta: float, error: float) -> np.ndarray:
    """log((p_low - delta) / q_high) from ``x`` and ``y`` hits in ``n`` trials of either law.

    Elementwise, float64; -inf where p_low is at most delta.
    """
    low = np.where(x > 0, betaincinv(np.maximum(x, 1e-9), n - x + 1, error / 2), 0.0)
    mirrored = 1 - betaincinv(np.maximum(n - y, 1e-9), y + 1, error / 2)  # Beta(y + 1, n - y)
    high = np.where(y < n, mirrored, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(low > delta, np.log(np.maximum(low - delta, 0.0) / high), -np.inf)


def expected_bound(
    without: np.ndarray, added: np.ndarray, trials: int, delta: float, error: float
) -> float:
    """Approximate lower bound of faithful code with ``trials`` trials, from its two laws.

    The largest ``loss_bound`` at expected counts over events {likelihood ratio above a threshold},
    in both directions. ``without``, ``added``: probabilities, float64 [n_outcomes].
    """
    n = trials - trials // EXPLORED
    best = 0.0
    for q, p in ((without, added), (added, without)):
        ratio = np.log(np.maximum(q, 1e-300)) - np.log(np.maximum(p, 1e-300))
        order = np.argsort(ratio, kind="stable")
        hits, others = (np.minimum(np.cumsum(law[order]), 1.0) * n for law in (p, q))
        best = max(best, float(loss_bound(hits, others, n, delta, error).max()))
    return best


def sum_codes(sums: np.ndarray, deviation: float) -> np.ndarray:
    """Integer noisy sums (int64 [n]) with standard deviation ``deviation`` as 0..OUTCOMES."""
    return np.clip(sums // math.ceil(8 * deviation / OUTCOMES) + OUTCOMES // 2, 0, OUTCOMES)


def normal_law(shifts: np.ndarray) -> np.ndarray:
    """Probabilities of ``sum_codes`` of normal sums: float64 [n, OUTCOMES + 1].

    ``shifts``: float64 [n], their means in standard deviations.
    """
    edges = 8 * (np.arange(1, OUTCOMES + 1) - OUTCOMES // 2) / OUTCOMES
    below = ndtr(edges - shifts[:, None])
    return np.diff(np.pad(below, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1))), axis=1)
