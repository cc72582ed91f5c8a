"""The statistical audit: lower bounds of epsilon from a mechanism's own code.

Every kind of mechanism has worst-case neighbouring data sets and a statistic (cases.py). Its draws
are run with the search, the sampler and the noise that answer real queries; no private row is read
and nothing is charged. A lower bound above the claim proves that code and curve disagree. A lower
bound below it only shows that a fault, if there is one, costs less than the trials can detect. So
the bound is shown next to the claim, and next to what exploration promised.

**Validity.** Trials are independent: each has new inclusion bits and noise on the same data set.
Exploration draws a quarter of the trials on every pair of data sets. On each it orders outcomes by
estimated likelihood ratio (summed over a trial's queries: Neyman-Pearson for independent ones) and
picks a threshold and a direction, hence one event S; the pair that promises most is kept. On new
trials on that pair, on which S does not depend,

    epsilon(delta) >= log((P(S) - delta) / Q(S)) >= log((p_low - delta) / q_high),

where P, Q are the laws on the two data sets in the direction picked, and p_low and q_high one-sided
Clopper-Pearson limits at level error / 2 each. The second inequality fails with probability at most
``error`` for any mechanism, whatever exploration chose. The bounds of several releases share
1 - confidence equally, so all hold jointly.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from scipy.special import betaincinv

from ...wall.guarantee import Unit
from ..accounting.accountant import certified_epsilon
from ..accounting.plan import Plan, Release, Slot
from ..mechanisms.base import Mechanism
from ..mechanisms.voters import Voters
from ..noise.entropy import Entropy, SystemEntropy
from ..search.cpu import ExactIndex

EXPLORED = 4  # one in this many trials chooses the event
OUTCOMES = 64  # steps of a noisy sum between -4 and 4 standard deviations
BITS_PER_CALL = 1 << 22  # inclusion bits
FAR = 63  # entries of a row far off, on the other side than the query's
LATER = 1 << 40  # between the ids of a person's rows


@dataclass(frozen=True)
class Pair:
    """Neighbouring data sets around one query.

    There are ``same_class`` records of the added one's class, then ``other_class`` of class 0. The
    neighbour has one record more, nearer than all of them, of the last of ``num_classes`` classes.
    """

    same_class: int
    other_class: int
    num_classes: int

    def labels(self, added: bool) -> np.ndarray:
        """Classes by nearness, int64 [n], with or without the added record."""
        return np.repeat([self.num_classes - 1, 0], [self.same_class + added, self.other_class])


EMPTY = Pair(0, 0, 2)  # without the added record a release is only noise
Run = Callable[[Pair, bool, int, Entropy], np.ndarray]


@dataclass(frozen=True, eq=False)
class Case:
    """One kind of release, with the pairs of data sets on which it may leak most.

    ``run(pair, added, n, entropy)``: codes, int64 from 0, of ``n`` independent trials by the
    mechanism's own code, with or without the added record: [n * queries]. ``priced``: the releases
    of a trial.
    """

    release: str
    pairs: Sequence[Pair]
    run: Run
    priced: tuple[Release, ...]
    queries: int = 1  # of a trial


@dataclass(frozen=True)
class ReleaseFinding:
    """The result for one kind of release. Epsilons are at the finding's delta.

    ``claim``: the certificate of exactly ``queries`` releases; ``expected``: the lower bound that
    exploration promised; ``pair``: of the bound.
    """

    release: str
    queries: int  # in a trial
    trials: int  # on each of the pair's two data sets
    pair: Pair
    lower_bound: float
    expected: float
    claim: float


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
    def refuted(self) -> bool:
        """The mechanism loses more than it claims, at this confidence."""
        return any(release.lower_bound > release.claim for release in self.releases)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "refuted": self.refuted}

    def render(self) -> str:
        """The finding for a reader."""
        exceeds = "REFUTED: a lower bound exceeds its claim"
        verdict = exceeds if self.refuted else "no claim is refuted"
        settings = (
            f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.mechanism.items()
            if name != "kind" and value is not None
        )
        lines = [
            f"{self.mechanism['kind']} ({', '.join(settings)})",
            f"{verdict}, at delta {self.delta:g} and {self.confidence:.2%} confidence",
            f"  {'release':18} {'queries':>7} {'trials':>8} {'epsilon >=':>10} "
            f"{'expected':>9} {'claim':>7}",
        ]
        lines += (
            f"  {r.release:18} {r.queries:7} {r.trials:8} {r.lower_bound:10.3f} "
            f"{r.expected:9.3f} {r.claim:7.3f}"
            for r in self.releases
        )
        return "\n".join(lines)


def attack(
    mechanism: Mechanism, case: Case, *, delta: float, trials: int, error: float
) -> ReleaseFinding:
    """Attack one release; the bound fails with probability at most ``error``.

    ``trials``: queries drawn on each of a pair's two data sets.
    """
    n, entropy = trials // case.queries, SystemEntropy()

    def sides(pair: Pair, size: int) -> tuple[np.ndarray, np.ndarray]:
        without, added = (case.run(pair, side, size, entropy) for side in (False, True))
        return without.reshape(size, -1), added.reshape(size, -1)

    tested = n - n // EXPLORED
    events = {
        pair: explored(*sides(pair, n // EXPLORED), tested, delta, error)
        for pair in dict.fromkeys(case.pairs)
    }
    pair, event = max(events.items(), key=lambda entry: entry[1].promised)
    bound = event.bound(*sides(pair, tested), delta, error)
    claim = certified_epsilon(Plan(1.0, delta, (Slot(mechanism.fields(), case.priced),)))
    expected = max(0.0, event.promised)
    return ReleaseFinding(case.release, case.queries, n, pair, bound, expected, claim)


@dataclass(frozen=True, eq=False)
class Event:
    """A set of trials: those whose summed ``log_ratio`` reaches ``threshold``, or is below it.

    ``log_ratio``: float64 [n_codes + 1], with the record over without; the last is of codes that
    exploration did not see. ``sign``: -1 where trials without the record are the likely ones.
    ``promised``: the bound that exploration expects.
    """

    log_ratio: np.ndarray
    sign: float = 1.0
    threshold: float = 0.0
    promised: float = -math.inf

    def scores(self, codes: np.ndarray) -> np.ndarray:
        """Scores of trials, float64 [n], by their codes, int64 [n, queries]."""
        seen = self.log_ratio[np.minimum(codes, len(self.log_ratio) - 1)]
        scores: np.ndarray = self.sign * np.round(seen.sum(axis=1), 9)
        return scores

    def bound(self, without: np.ndarray, added: np.ndarray, delta: float, error: float) -> float:
        """The lower bound by new trials, codes int64 [n, queries] on either side; at least 0."""
        sides = (without, added) if self.sign > 0 else (added, without)
        y, x = (np.array([(self.scores(s) >= self.threshold).sum(dtype=float)]) for s in sides)
        return max(0.0, float(loss_bound(x, y, len(without), delta, error)[0]))


def explored(
    without: np.ndarray, added: np.ndarray, tested: int, delta: float, error: float
) -> Event:
    """The event that promises the largest bound by ``tested`` more trials.

    ``without``, ``added``: codes int64 [n, queries] of trials on the two data sets.
    """
    n, size = len(without), int(max(without.max(), added.max())) + 1
    rates = [np.bincount(side.ravel(), minlength=size) + 0.5 for side in (added, without)]
    best = Event(np.append(np.log(rates[0]) - np.log(rates[1]), 0.0))
    for sign in (1.0, -1.0):
        event = replace(best, sign=sign)
        low, high = (np.sort(event.scores(s)) for s in (without, added)[:: int(sign)])
        thresholds = np.unique(np.concatenate([low, high]))
        x, y = (n - np.searchsorted(side, thresholds) for side in (high, low))
        # one more hit of the unlikely side: an event that exploration did not see is possible
        unlikely = np.minimum((y + 1.0) * (tested / n), tested)
        promised = loss_bound(x * (tested / n), unlikely, tested, delta, error)
        top = int(promised.argmax())
        if promised[top] > best.promised:
            best = replace(event, threshold=float(thresholds[top]), promised=float(promised[top]))
    return best


def loss_bound(x: np.ndarray, y: np.ndarray, n: int, delta: float, error: float) -> np.ndarray:
    """log((p_low - delta) / q_high) from ``x`` and ``y`` hits in ``n`` trials of either law.

    Elementwise, float64; -inf where p_low is at most delta.
    """
    low = np.where(x > 0, betaincinv(np.maximum(x, 1e-9), n - x + 1, error / 2), 0.0)
    mirrored = 1 - betaincinv(np.maximum(n - y, 1e-9), y + 1, error / 2)  # Beta(y + 1, n - y)
    high = np.where(y < n, mirrored, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(low > delta, np.log(np.maximum(low - delta, 0.0) / high), -np.inf)


def sum_codes(sums: np.ndarray, deviation: float) -> np.ndarray:
    """Integer noisy sums (int64 [n]) with standard deviation ``deviation`` as 0..OUTCOMES."""
    return np.clip(sums // math.ceil(8 * deviation / OUTCOMES) + OUTCOMES // 2, 0, OUTCOMES)


def drawn_case(
    mechanism: Mechanism,
    release: str,
    pairs: Sequence[Pair],
    side: Callable[[Pair, bool], Voters],
    codes: Callable[[np.ndarray, Pair], np.ndarray],
    priced: tuple[Release, ...],
    *,
    stages: Sequence[str] = (),
    queries: int = 1,
    batch: int = 0,
) -> Case:
    """The case of a release whose trials are draws of the only query of ``side(pair, added)``.

    ``codes(values, pair)``: of what was drawn; ``stages``: of a query, the release itself where
    empty; ``batch``: queries that are drawn together and have one code, if not each its own.
    """

    def run(pair: Pair, added: bool, n: int, entropy: Entropy) -> np.ndarray:
        voters, steps = side(pair, added), stages or (release,)
        size = batch or max(1, min(1024, BITS_PER_CALL // max(1, len(voters.labels))))
        total, pieces, call = n * (batch or queries), [], secrets.token_hex(8)
        for start in range(0, total, size):
            keys = [f"{call}-{row}" for row in range(start, min(start + size, total))]
            asked = replace(voters, queries=np.repeat(voters.queries, len(keys), axis=0))
            *screens, values = (mechanism.draw(step, asked, keys, entropy) for step in steps)
            for bits in screens:  # 0 where nothing is answered
                values = np.where(bits == 1, values + 1, 0)
            pieces.append(codes(values, pair))
        return np.concatenate(pieces)

    return Case(release, pairs, run, priced, queries)


def of_unit(voters: Voters, unit: Unit, *, alike: bool = False) -> Voters:
    """A pair's side, whose records are rows, or persons with four rows each.

    A person has its record's row, rows of its label and of another one at the same place with later
    ids, and a row of another label far off. Faithful code answers as it does for the pair of rows;
    a second ballot, an unclipped sum or a second payment moves the answers by more.

    ``alike``: persons of equal rows alone, for sums, to which persons of other rows add less.
    """
    if unit == "row":
        return voters
    labels, index = voters.labels, voters.index
    assert isinstance(index, ExactIndex)
    other = labels if alike or not len(labels) else labels.max() + labels.min() - labels
    query = voters.queries.reshape(-1, voters.queries.shape[-1])[0]
    own = index.features
    away = own if alike else np.full_like(own, np.where(query > 0, -FAR, FAR))
    ids = np.concatenate([index.ids + copy * LATER for copy in range(4)])
    people = ExactIndex(np.concatenate([own, own, own, away]), ids, np.tile(np.arange(len(own)), 4))
    return replace(voters, index=people, labels=np.concatenate([labels, labels, other, other]))
