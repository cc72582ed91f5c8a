"""The statistical audit: run a mechanism's own code on neighbouring data sets, and bound its epsilon from below.

What is run is ``mechanism.draw`` with the search, the sampler and the noise that answer real queries, on data sets made
for it (worst_case.py); no private row is read and nothing is charged. A lower bound above the claim proves that code and
curve do not belong together. One below it proves nothing, except that a fault, if there is one, costs less than what the
trials can see: hence the bound is shown next to the claim and next to what faithful code would reach.

**Validity.** Trials are independent: each sees fresh bits and noise on the same data set. The first quarter of them is
only explored: it orders outcomes by estimated likelihood ratio (summed over a trial's queries: Neyman-Pearson for
independent ones) and picks a threshold and a direction, hence one event S. On the rest, which S does not depend on,

    epsilon(delta) >= log((P(S) - delta) / Q(S)) >= log((p_low - delta) / q_high),

P, Q the laws on the two data sets in the order picked, p_low and q_high one-sided Clopper-Pearson limits at level
error / 2 each: the second inequality fails with probability at most ``error``, for any mechanism whatsoever, also one
whose law the choice of pair and event got wrong. Several bounds share 1 - confidence equally, so all hold jointly.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.special import betaincinv

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.naive_knn.mechanism import NaiveKnn
from labelwall.teacher.mechanisms.pate.linear_ensemble import Ensemble, shards, trained
from labelwall.teacher.mechanisms.pate.mechanism import ConfidentGnmax, Lnmax
from labelwall.teacher.mechanisms.private_knn.mechanism import AGGREGATE, SCREEN, PrivateKnn
from labelwall.teacher.mechanisms.vote_laws import (
    JOINT,
    Pair,
    Pate,
    Voting,
    candidates,
    empty,
    laws,
    parts,
    repeated,
)
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.errors import InvalidInput

PROBE_DELTA = 0.02
EXPLORED = 4  # one trial in so many chooses the event
_TOGETHER, _BITS = 1024, 1 << 22  # queries, and inclusion bits, drawn in one call


@dataclass(frozen=True)
class ReleaseFinding:
    """One kind of release. Epsilons at the finding's delta; ``claim`` is the certificate of exactly ``queries`` of them.

    ``expected``: about the lower bound that faithful code reaches with so many trials. ``pair``: of the bound.
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
        return (
            self.lower_bound / self.claim if self.claim > 0 else math.inf * (self.lower_bound > 0)
        )


@dataclass(frozen=True)
class EmpiricalFinding:
    """What the audit of a mechanism says. All lower bounds hold jointly with probability ``confidence``."""

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
        verdict = (
            "REFUTED: a lower bound exceeds its claim" if self.refuted else "no claim is refuted"
        )
        lines = [f"{verdict}, at delta {self.delta:g} and {self.confidence:.2%} confidence"]
        lines += [
            f"  {'release':18} {'queries':>7} {'trials':>8} {'epsilon >=':>10} {'of faithful code':>16} {'claim':>7}"
        ]
        lines += [
            f"  {r.release:18} {r.queries:7} {r.trials:8} {r.lower_bound:10.3f} {r.expected:16.3f} {r.claim:7.3f}"
            for r in self.releases
        ]
        return "\n".join(lines)


def audit_mechanism(
    mechanism: Voting,
    *,
    delta: float,
    trials: int,
    confidence: float = 0.95,
    queries: int = 4,
    releases: Sequence[str] | None = None,
) -> EmpiricalFinding:
    """Audit the screening, the aggregation, and whole queries composed over ``queries`` on one pair; or some of these.

    A mechanism without screening has its aggregation alone.

    Each is run on the pair with the largest expected bound, and on an empty data set and its neighbour, where all that is
    released is noise. ``trials``: queries drawn for each release on each data set (a trial of whole queries takes
    ``queries`` of them); time grows with it, about 50 us a query at k = 10.

    Raises InvalidInput for fewer than 8 trials, or delta or confidence outside (0, 1).
    """
    check_audit(delta, trials, confidence, queries)
    releases = parts(mechanism) if releases is None else releases
    error, found = (1 - confidence) / (2 * len(releases)), []
    pairs = sharpest_pairs(mechanism, delta=delta, trials=trials, error=error, queries=queries)
    for part in releases:
        pair, expected = pairs[part]
        repeats = queries if part == JOINT else 1
        n = trials // repeats

        def outcomes(at: Pair, added: bool, n: int, part: str = part) -> np.ndarray:
            return run(mechanism, part, at, added, n, SystemEntropy())

        bounds = {
            at: bound_pair(outcomes, at, queries=repeats, trials=n, delta=delta, error=error)
            for at in {pair, empty(mechanism, part)}
        }
        at = max(bounds, key=bounds.__getitem__)
        claim = claimed(mechanism, part, repeats, delta)
        found.append(ReleaseFinding(part, repeats, n, at, bounds[at], expected, claim))
    return EmpiricalFinding(mechanism.fields(), delta, confidence, tuple(found))


def check_audit(delta: float, trials: int, confidence: float, queries: int) -> None:
    """Raises InvalidInput for fewer than 8 trials of so many queries, or delta or confidence outside (0, 1)."""
    if queries < 1 or trials < 8 * queries:
        raise InvalidInput("trials", f"at least 8 times the {queries} queries of a trial", trials)
    for name, value in (("delta", delta), ("confidence", confidence)):
        if not 0 < value < 1:
            raise InvalidInput(name, "between 0 and 1", value)


def probe(mechanism: Voting) -> Voting:
    """The same code with parameters at which faults show in seconds; to be audited at PROBE_DELTA.

    Useful configurations lose so little a query that no affordable number of trials tells them from perfect privacy.
    """
    if isinstance(mechanism, PrivateKnn):
        return replace(
            mechanism, k=3, threshold=2, sigma_screen=1.0, sigma_vote=2.0, sampling_probability=0.5
        )
    if isinstance(mechanism, NaiveKnn):
        return replace(mechanism, k=2, sigma_vote=2.0)
    if isinstance(mechanism, ConfidentGnmax):
        return replace(mechanism, teachers=2, threshold=1, sigma_screen=1.0, sigma_vote=2.0)
    return (
        replace(mechanism, teachers=2, scale=2.0)
        if isinstance(mechanism, Lnmax)
        else replace(mechanism, teachers=2, sigma_vote=2.0)
    )


Outcomes = Callable[
    [Pair, bool, int], np.ndarray
]  # (pair, with the record, n) -> codes int64 [n] of independent queries


def bound_pair(
    outcomes: Outcomes, pair: Pair, *, queries: int, trials: int, delta: float, error: float
) -> float:
    """``lower_bound`` for ``trials`` groups of ``queries`` answers on each side of a pair."""
    drawn = [outcomes(pair, added, trials * queries) for added in (False, True)]
    size, trial = (
        int(max(codes.max() for codes in drawn)) + 1,
        np.repeat(np.arange(trials), queries),
    )
    without, added = (
        np.bincount(trial * size + codes, minlength=trials * size).reshape(trials, size)
        for codes in drawn
    )
    return lower_bound(without, added, delta=delta, error=error)


def claimed(mechanism: Voting, part: str, queries: int, delta: float) -> float:
    """The certified epsilon of ``queries`` releases of this part, and of nothing else."""
    alone = part == AGGREGATE and SCREEN in mechanism.stages
    caps = (0 if alone else queries, 0 if part == SCREEN else queries)
    return certified_epsilon(
        Plan(1.0, delta, (Slot(mechanism.fields(), mechanism.releases(*caps)),))
    )


def sharpest_pairs(
    mechanism: Voting, *, delta: float, trials: int, error: float, queries: int
) -> dict[str, tuple[Pair, float]]:
    """For each part the pair with the largest expected bound, and that bound, from the exact laws.

    The curve's own maximiser may need an event too rare for the trials at hand; this is the maximiser of what they show.
    Among pairs that show nothing, the one with the largest chi-square distance.
    """
    best = {part: (empty(mechanism, part), -1.0, 0.0) for part in parts(mechanism)}
    for pair in candidates(mechanism):
        for part, (without, added) in laws(mechanism, pair).items():
            repeats = queries if part == JOINT else 1
            tested = trials // repeats - trials // repeats // EXPLORED
            expected = expected_bound(
                repeated(without, repeats), repeated(added, repeats), tested, delta, error
            )
            distance = float(
                np.sum((added - without) ** 2 / np.maximum(without, 1e-300), where=without > 0)
            )
            if (expected, distance) > best[part][1:]:
                best[part] = pair, expected, distance
    return {part: (pair, expected) for part, (pair, expected, _) in best.items()}


def run(
    mechanism: Voting, part: str, pair: Pair, added: bool, n: int, entropy: Entropy
) -> np.ndarray:
    """Outcomes of ``n`` independent queries on one side of a pair, through the mechanism's own draws: int64 [n].

    A bit for SCREEN, a class for AGGREGATE (drawn as after a screening that passed), label + 1 for JOINT.
    """
    labels = pair.labels(added)
    ids = np.arange(len(labels)) + (not added)  # the added record is id 0
    index = ExactIndex((ids > 0).astype(np.int8)[:, None], ids)  # and the only one at distance 0
    voters = Voters(index, labels, pair.num_classes, np.zeros((n, 1), dtype=np.int8))
    if isinstance(mechanism, Pate):
        mechanism = replace(
            mechanism, classifier="linear"
        )  # what is audited is what becomes of votes
        voters = replace(
            voters, ensembles={mechanism.teachers: _ensemble(mechanism.teachers, pair, added)}
        )
    block = max(1, min(_TOGETHER, _BITS // max(1, len(labels))))
    starts = [
        0,
        *range(1, n, block),
        n,
    ]  # one query alone: its search serves the identical ones that follow
    pieces = [
        _settle(mechanism, part, voters, range(a, b), entropy) for a, b in pairwise(starts) if b > a
    ]
    return np.concatenate(pieces)


def _ensemble(teachers: int, pair: Pair, added: bool) -> Ensemble:
    """Classifiers on shards of which each ally's has a record of its own, as the added one has; the others are empty."""
    key, first = bytes(32), dict[int, int]()  # shard -> an id that falls into it
    for start in range(0, 1000 * teachers, 1000):
        ids = np.arange(start, start + 1000)
        for shard, identity in zip(shards(ids, key, teachers).tolist(), ids.tolist(), strict=True):
            first.setdefault(shard, identity)
        if len(first) > pair.allies:
            break
    held = np.array(list(first.values())[: pair.allies + added], dtype=np.int64)
    labels = np.full(len(held), pair.num_classes - 1)
    rows = np.zeros((len(held), 1), dtype=np.int8)
    return trained(rows, labels, held, num_classes=pair.num_classes, teachers=teachers, key=key)


def _settle(
    mechanism: Voting, part: str, voters: Voters, rows: range, entropy: Entropy
) -> np.ndarray:
    """Outcomes of some queries, taken through the stages as a teacher takes them: int64 [len(rows)]."""
    call = secrets.token_hex(8)  # identities are never used twice, as a teacher's are not
    keys = [f"{call}-{row}" for row in rows]
    results: list[dict[str, int]] = [{SCREEN: 1} if part == AGGREGATE else {} for _ in rows]
    for stage in mechanism.stages[:1] if part == SCREEN else mechanism.stages:
        due = [i for i, known in enumerate(results) if mechanism.next_stage(known) == stage]
        if due:
            drawn = mechanism.draw(
                stage, voters.select([rows[i] for i in due]), [keys[i] for i in due], entropy
            )
            for i, value in zip(due, drawn.tolist(), strict=True):
                results[i][stage] = value
    if part == JOINT:
        return np.array([mechanism.outcome(known)[1] + 1 for known in results], dtype=np.int64)
    return np.array([known[part] for known in results], dtype=np.int64)


def lower_bound(without: np.ndarray, added: np.ndarray, *, delta: float, error: float) -> float:
    """A lower bound of epsilon(delta) that fails with probability at most ``error`` (module docstring: proof).

    ``without``, ``added``: int64 [trials, n_outcomes], how often each outcome came in each trial on either data set.
    """
    cut = len(without) // EXPLORED
    log_ratio = np.log(added[:cut].sum(axis=0) + 0.5) - np.log(
        without[:cut].sum(axis=0) + 0.5
    )  # float64 [n_outcomes]
    scores = [np.round(counts @ log_ratio, 9) for counts in (without, added)]
    tested = len(without) - cut
    best = (-math.inf, 1.0, 0.0)
    for sign in (1.0, -1.0):
        low, high = (np.sort(sign * side[:cut]) for side in (scores if sign > 0 else scores[::-1]))
        thresholds = np.unique(np.concatenate([low, high]))
        # one imagined hit more of the unlikely side: what was not seen in the exploration is not impossible
        x, y = (cut - np.searchsorted(side, thresholds) for side in (high, low))
        promised = loss_bound(
            x * (tested / cut), np.minimum((y + 1.0) * (tested / cut), tested), tested, delta, error
        )
        top = int(promised.argmax())
        best = max(best, (float(promised[top]), sign, float(thresholds[top])))
    _, sign, threshold = best
    unlikely, likely = scores if sign > 0 else scores[::-1]
    hits = [
        np.array([float((sign * side[cut:] >= threshold).sum())]) for side in (likely, unlikely)
    ]
    return max(0.0, float(loss_bound(hits[0], hits[1], tested, delta, error)[0]))


def loss_bound(x: np.ndarray, y: np.ndarray, n: int, delta: float, error: float) -> np.ndarray:
    """log((p_low - delta) / q_high) from ``x`` and ``y`` hits in ``n`` trials of either law, elementwise; -inf for none."""
    low = np.where(x > 0, betaincinv(np.maximum(x, 1e-9), n - x + 1, error / 2), 0.0)
    high = np.where(
        y < n, 1 - betaincinv(np.maximum(n - y, 1e-9), y + 1, error / 2), 1.0
    )  # Beta(y + 1, n - y), mirrored
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(low > delta, np.log(np.maximum(low - delta, 0.0) / high), -np.inf)


def expected_bound(
    without: np.ndarray, added: np.ndarray, n: int, delta: float, error: float
) -> float:
    """The largest ``loss_bound`` at expected counts over events {likelihood ratio above a threshold}, both directions."""
    best = 0.0
    for q, p in ((without, added), (added, without)):
        order = np.argsort(
            np.log(np.maximum(q, 1e-300)) - np.log(np.maximum(p, 1e-300)), kind="stable"
        )
        hits, others = (np.minimum(np.cumsum(law[order]), 1.0) * n for law in (p, q))
        best = max(best, float(loss_bound(hits, others, n, delta, error).max()))
    return best
