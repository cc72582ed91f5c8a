"""Attacks on what a mechanism draws: noisy votes, neighbours' values, noisy sums.

**Votes.** The curve of a release is a supremum over the votes of the other records
(accounting/curves.py); the pairs here put the votes where it is attained, or nearly. The added
record is the nearest and has the last class, a, which loses ties. Then come records of class a,
then of class 0. Their numbers determine the plurality, and whether the sample is full, so that the
record displaces another (e_a - e_0) or joins (e_a). Values are votes for two classes, the largest
value and the smallest: the largest number in a window is the plurality, and a sum moves by its full
sensitivity. PATE's k shards all vote: the shards of class a have one record each, the others are
empty and vote for class 0. The added record lies in one of these.

**Sums**, of votes for attributes, of votes in cells, of gradients. Noise has the same law on every
entry, so the statistic is the released sum projected on the direction in which it moves. It is
sufficient for faithful code, and also shows noise that is too small or missing, and votes or
gradients that are not clipped.
"""

import math
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...wall.guarantee import Unit
from ...wall.label_kinds import MOST_ATTRIBUTES, STEPS, pack, unpack
from ...wall.matrices import MAX_ENTRY
from ..accounting.plan import Release
from ..classifiers.linear_ensemble import Ensemble, shard_numbers, train_ensemble
from ..mechanisms.attributes import COUNTS, GRID, AttributeVotes, clipped
from ..mechanisms.batch import BATCH, BatchKnn, BatchMechanism
from ..mechanisms.sums import SUM, LinearSums, ReverseKnn, Score
from ..mechanisms.values import MEAN, RANGE, Regression
from ..mechanisms.voters import Voters
from ..mechanisms.votes import AGGREGATE, SCREEN, Screened, Votes
from ..noise.entropy import Entropy
from ..search.cpu import ExactIndex
from .harness import EMPTY, OUTCOMES, Case, Pair, drawn_case, of_unit, sum_codes

NEXT_PERIOD = f"{SUM}, next period"
JOINT = f"{SCREEN}+{AGGREGATE}"  # a whole query: abstained, or a class
QUERIES = 4  # of a trial of JOINT
MANY_CLASSES = 10  # a contest among many, where class a rarely wins without the record
MAX_RECORDS = 8192  # drawing from more takes too long
BATCH_SIZES = (1, 4)  # queries
DISTANCE = 10  # of k-NN's record from the queries, in integer units
SCORES = "score", "score_attributes", "score_value", "score_tables", "score_tables_attributes"
# (outputs, the record's label) by label space: the last class, all attributes, the upper bound.
RECORD = {"class": (2, 1), "attributes": (8, (1 << 8) - 1), "value": (1, STEPS)}
FEATURES = np.full((1, 8), 63, dtype=np.int8)  # of the record: almost three times as long
LENGTH = 63.0  # as a unit vector is
WITHOUT_NOISE = OUTCOMES + 1, OUTCOMES + 2  # codes: an entry is as of no record, or as of this one
MOST_OTHERS = 4096  # drawing from more is slow; above this, a record with attributes displaces none
# The displaced records' feature: a ridge classifier of one of them finds its attributes present at
# MAX_ENTRY, until the added record joins its shard there.
OTHERS_AT = 20
_KEY = bytes(32)


def pairs(mechanism: Screened, noise: float, swap: bool) -> list[Pair]:
    """Nobody; a tie and a class a little behind; a plurality at and below the threshold.

    ``noise``: the scale of the noise on a class, in votes. ``swap``: whether a record displaces
    another of a full sample.
    """
    k, gamma = mechanism.max_votes, mechanism.rate
    threshold, screen_noise = 0, 0.0
    if mechanism.screened:
        threshold, screen_noise = mechanism.threshold, mechanism.require("sigma_screen")
    tie = (k - 1) // 2 if swap else threshold
    behind = max(0, tie - round(noise))
    below = max(0, threshold - round(screen_noise))
    if mechanism.needs:
        sides = [(0, 2), (0, MANY_CLASSES), (tie, 2), (behind, 2)]
        sides += [(min(votes, k - 1), 2) for votes in (threshold, below)]
        return [Pair(same, k - same, classes) for same, classes in sides]
    other = _full(k, gamma) if swap else round(tie / gamma)
    every = [EMPTY, replace(EMPTY, num_classes=MANY_CLASSES)]
    every += [Pair(round(votes / gamma), other, 2) for votes in (tie, behind)]
    every += [Pair(round(votes / gamma), 0, 2) for votes in (threshold, below)]
    return [p for p in every if p.same_class + p.other_class <= MAX_RECORDS]


def _full(k: int, gamma: float) -> int:
    """Number of records of which a sample has k almost surely."""
    return k if gamma == 1 else math.ceil((k + 6 * math.sqrt(k) + 20) / gamma)


def votes(mechanism: Votes, unit: Unit) -> list[Case]:
    """The screening, the aggregation, and QUERIES composed queries with both."""
    k, needs = mechanism.max_votes, mechanism.needs
    linear: dict[str, Any] = {"classifier": "linear"}
    asked = replace(mechanism, **linear) if needs else mechanism  # the audit starts from the votes

    def side(pair: Pair, added: bool) -> Voters:
        voters = replace(of_unit(rows(pair, added), unit), landmarks=b"\x01")  # all are within
        return replace(voters, ensembles={k: ensemble(k, pair, added)}) if needs else voters

    near = pairs(mechanism, mechanism.require(mechanism.noise_field), mechanism.swap)
    return [
        drawn_case(
            asked, release, near, side, lambda values, _: values, caps, stages=stages, queries=q
        )
        for release, stages, caps, q in _parts(mechanism, joint=mechanism.screened)
    ]


def _parts(
    mechanism: Screened, joint: bool
) -> Iterator[tuple[str, tuple[str, ...], tuple[Release, ...], int]]:
    """(name, stages, what is paid for, queries of a trial) of each release."""
    for stage in mechanism.stages:
        asked = int(stage == SCREEN or not mechanism.screened)
        yield stage, (stage,), mechanism.releases(asked, int(stage != SCREEN)), 1
    if joint:
        yield JOINT, mechanism.stages, mechanism.releases(QUERIES, QUERIES), QUERIES


def rows(pair: Pair, added: bool) -> Voters:
    """One side of a pair before one query; the added record has id 0."""
    labels = pair.labels(added)
    ids = np.arange(0 if added else 1, len(labels) + (0 if added else 1))
    index = ExactIndex((ids > 0).astype(np.int8)[:, None], ids)  # id 0 alone is at distance 0
    return Voters(index, labels, pair.num_classes, np.zeros((1, 1), dtype=np.int8))


def ensemble(teachers: int, pair: Pair, added: bool) -> Ensemble:
    """Classifiers on shards with one record each (of class a) or none."""
    numbers = np.arange(1000 * min(teachers, pair.same_class + 2))
    _, first = np.unique(shard_numbers(numbers, _KEY, teachers), return_index=True)
    ids = np.sort(first)[: pair.same_class + added]
    labels = np.full(len(ids), pair.num_classes - 1)
    rows = np.zeros((len(ids), 1), dtype=np.int8)
    classes = pair.num_classes
    return train_ensemble(rows, labels, ids, num_classes=classes, teachers=teachers, key=_KEY)


def values(mechanism: Regression, unit: Unit) -> list[Case]:
    """Each release of a query for values."""
    noise, is_mean = mechanism.require(mechanism.noise_field), mechanism.aggregate == MEAN
    near = pairs(mechanism, noise if is_mean else 2 / noise, True)

    def side(pair: Pair, added: bool) -> Voters:
        voters = rows(pair, added)
        return of_unit(replace(voters, labels=voters.labels * STEPS, num_classes=1), unit)

    def codes(released: np.ndarray, pair: Pair) -> np.ndarray:
        if not is_mean:
            return released * mechanism.cells // (STEPS + 1)
        same = min(mechanism.rate * pair.same_class, mechanism.k)
        other = min(mechanism.rate * pair.other_class, mechanism.k - same)
        expected = round((same - other) * STEPS)  # about the sum without the record
        return sum_codes(released - expected, noise * RANGE)

    near = [pair for pair in near if pair.num_classes == 2]
    return [
        drawn_case(
            mechanism, release, near, side, (lambda b, _: b) if release == SCREEN else codes, caps
        )
        for release, _, caps, _ in _parts(mechanism, joint=False)
    ]


def batches_of_near(mechanism: BatchKnn, unit: Unit) -> list[Case]:
    """``batches`` with the record a little off, so that the radii depend on it.

    A radius is short below the record's distance, or in a grid below a step.
    """
    return batches(mechanism, unit, DISTANCE, 100 if mechanism.conversion == "grid" else DISTANCE)


def batches(mechanism: BatchMechanism, unit: Unit, distance: int = 0, short: int = 0) -> list[Case]:
    """One batch of each size in BATCH_SIZES: nobody against a single record.

    All queries stand at one point, so they form a clique and the record lies in every ball: it
    moves every answer, which tests the composition over the clique. A batch of one query shows the
    scale of the noise best. The statistic is the number of answers of the record's class, and that
    of radii below ``short``. ``distance``: of the record from the queries.
    """

    def side(pair: Pair, added: bool) -> Voters:
        features = np.array([[distance, 0]] * added, dtype=np.int8).reshape(-1, 2)
        index, query = ExactIndex(features, np.arange(added)), np.zeros((1, 2), dtype=np.int8)
        return of_unit(Voters(index, pair.labels(added), pair.num_classes, query), unit)

    def code(values: np.ndarray, pair: Pair) -> np.ndarray:
        winners, shorter = values[:, 0] == pair.num_classes - 1, values[:, 2] < short**2
        return np.array([winners.sum() * (len(values) + 1) + shorter.sum()])

    priced = mechanism.releases(1, 1)
    return [
        drawn_case(
            mechanism, f"{BATCH} of {n}", [EMPTY], side, code, priced, stages=(BATCH,), batch=n
        )
        for n in BATCH_SIZES
    ]


def cells(mechanism: ReverseKnn, unit: Unit) -> list[Case]:
    """Votes in cells: the first cells, which are nearest to the record at 0, have its votes."""
    return _histogram(mechanism, unit, range(mechanism.neighbours + 1))


def scores(mechanism: Score, unit: Unit) -> list[Case]:
    """Right and wrong predictions: the record at 0 is nearest to the last class, which it has."""
    outputs, _ = RECORD[mechanism.label_space]
    return _histogram(mechanism, unit, range(mechanism.query_form.shape(1, outputs)[0])[::-1])


def _histogram(mechanism: ReverseKnn | Score, unit: Unit, at: range) -> list[Case]:
    """One histogram, of nobody and of one record, which adds the same whatever the others are.

    ``at``: the cells' places.
    """
    (stage,), (outputs, label) = mechanism.stages, RECORD[mechanism.label_space]
    centers = np.minimum(at, 63).astype(np.int8)[None, :, None]

    def side(pair: Pair, added: bool) -> Voters:
        ids = np.arange(int(added))
        index = ExactIndex(np.zeros((len(ids), 1), dtype=np.int8), ids)
        voters = Voters(index, np.full(len(ids), label), outputs, centers)
        return of_unit(voters, unit, alike=True)

    (vector,) = mechanism.tally(side(EMPTY, True))

    def codes(counts: np.ndarray, pair: Pair) -> np.ndarray:
        return sum_codes(counts @ vector, mechanism.noise * float(np.linalg.norm(vector)))

    return [drawn_case(mechanism, stage, [EMPTY], side, codes, mechanism.releases(1, 1))]


def gradients(mechanism: LinearSums, unit: Unit) -> list[Case]:
    """One sum, of nobody and of one record whose features are so long that clipping shortens it.
    The next period's, too, where that record is new: less the period's before, so that noise which
    is used twice is gone. The past is fixed and without it, so one sum is the price.

    Two more outcomes are seen where an entry shows no noise: it is exactly what an empty data set
    or the record adds.
    """
    vector = of_record(mechanism)
    scale = mechanism.noise * float(np.linalg.norm(vector))

    def codes(values: np.ndarray, pair: Pair) -> np.ndarray:
        outcomes = sum_codes(values @ vector, scale)
        for code, noiseless in zip(WITHOUT_NOISE, (0, vector), strict=True):
            outcomes[(values == noiseless).any(axis=1)] = code
        return outcomes

    def side(pair: Pair, added: bool) -> Voters:
        return of_unit(records(mechanism, added), unit, alike=True)

    def periods(pair: Pair, added: bool, n: int, entropy: Entropy) -> np.ndarray:
        before, after = side(pair, False), side(pair, added)
        pieces, call = [], secrets.token_hex(8)
        for start in range(0, n, 1024):
            rows, drawn = range(start, min(start + 1024, n)), []
            for period, voters in enumerate((before, after)):
                keys = [f"{call}-{row}-{period}" for row in rows]
                asked = replace(voters, queries=np.repeat(voters.queries, len(rows), axis=0))
                drawn.append(mechanism.draw(SUM, asked, keys, entropy))
            pieces.append(codes(drawn[1] - drawn[0], pair))
        return np.concatenate(pieces)

    price = mechanism.releases(1, 1)
    first = drawn_case(mechanism, SUM, [EMPTY], side, codes, price)
    return [first, Case(NEXT_PERIOD, [EMPTY], periods, price)]


def records(mechanism: LinearSums, added: bool) -> Voters:
    """The record, if it is there, before weights that are 0."""
    outputs, label = RECORD[mechanism.label_space]
    ids = np.arange(int(added))
    weights = np.zeros((1, FEATURES.shape[1] + 1, outputs), dtype=np.int16)
    index = ExactIndex(FEATURES[: len(ids)], ids)
    return Voters(index, np.full(len(ids), label), outputs, weights, LENGTH)


def of_record(mechanism: LinearSums) -> np.ndarray:
    """A record's vector: int64 [(d + 1) * c + 1], about SENSITIVITY long, no entry 0."""
    (vector,) = mechanism.tally(records(mechanism, True))
    return vector


def attributes(mechanism: AttributeVotes, unit: Unit) -> list[Case]:
    """One query, on two pairs of data sets.

    Swap: the added record has tau attributes and displaces a voter with tau others, the worst case
    that clipping allows. Clip: it is the only record and has many more than tau attributes.
    """
    tau = min(mechanism.tau, MOST_ATTRIBUTES // 2)
    # the most records at one point that vote
    k, gamma = 1 if mechanism.needs else mechanism.max_votes, mechanism.rate
    full = _full(k, gamma)
    others = full if full <= MOST_OTHERS else 0
    swap, many = np.repeat([0, 1], tau), np.ones(min(8 * mechanism.tau, MOST_ATTRIBUTES), np.int64)
    # of the added record and of the others, and the direction on which counts are projected
    scenes = {
        Pair(0, others, len(swap)): (swap, 1 - swap, swap - (1 - swap) * (others > 0)),
        Pair(0, 0, len(many)): (many, 0 * many, many),
    }
    scale = mechanism.require("sigma_vote") * GRID

    def side(pair: Pair, added: bool) -> Voters:
        own, other, _ = scenes[pair]
        bits = np.array([other] * pair.other_class + [own] * added, dtype=np.int64)
        return of_unit(_voters(mechanism, bits.reshape(-1, len(own)), added), unit)

    def codes(counts: np.ndarray, pair: Pair) -> np.ndarray:
        _, other, direction = scenes[pair]
        voting = min(pair.other_class, k)  # without the added record
        base = (clipped(other[np.newaxis], mechanism.tau)[0] @ direction) * voting
        return sum_codes(counts @ direction - base, scale * math.sqrt(np.count_nonzero(direction)))

    return [drawn_case(mechanism, COUNTS, list(scenes), side, codes, mechanism.releases(1, 1))]


def _voters(mechanism: AttributeVotes, bits: np.ndarray, added: bool) -> Voters:
    """Records with attributes, int64 [n, c]; the added one, if it is there, is the last, and the
    nearest.
    """
    count, others, ids = bits.shape[1], len(bits) - added, np.arange(len(bits))
    features = np.array([OTHERS_AT] * others + [MAX_ENTRY] * added, dtype=np.int8).reshape(-1, 1)
    labels = pack(bits)
    ensembles = {}
    for _, teachers in mechanism.needs:
        if others:  # one shard holds both
            numbers = np.arange(1000 * teachers)
            ids = numbers[shard_numbers(numbers, _KEY, teachers) == 0][: 1 + added]
        present = unpack(labels, count)
        ensembles[teachers] = train_ensemble(
            features, present, ids, num_classes=count, teachers=teachers, key=_KEY
        )
    query = np.full((1, 1), MAX_ENTRY, dtype=np.int8)
    return replace(Voters(ExactIndex(features, ids), labels, count, query), ensembles=ensembles)
