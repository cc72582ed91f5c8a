"""Attacks on noisy votes, and on neighbours' values.

The curve of a release is a supremum over the votes of the other records (accounting/curves.py); the
pairs here put the votes where it is attained, or nearly. The added record is the nearest and has
the last class, a, which loses ties. Then come records of class a, then of class 0. Their numbers
determine the plurality, and whether the sample is full, so that the record displaces another
(e_a - e_0) or joins (e_a). Values are votes for two classes, the largest value and the smallest:
the largest number in a window is the plurality, and a sum moves by its full sensitivity.

PATE's k shards all vote: the shards of class a have one record each, the others are empty and vote
for class 0. The added record lies in one of these.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...wall.guarantee import Unit
from ...wall.label_kinds import STEPS
from ..classifiers.linear_ensemble import Ensemble, shard_numbers, train_ensemble
from ..mechanisms.batch import BATCH, BatchKnn, BatchMechanism
from ..mechanisms.values import MEAN, RANGE, Regression
from ..mechanisms.voters import Voters
from ..mechanisms.votes import AGGREGATE, SCREEN, Screened, Votes
from ..noise.entropy import Entropy
from ..search.cpu import ExactIndex
from .harness import EMPTY, Case, Pair, drawn, fresh_keys, of_unit, sum_codes

JOINT = f"{SCREEN}+{AGGREGATE}"  # a whole query: abstained, or a class
QUERIES = 4  # of a trial of JOINT
MANY_CLASSES = 10  # a contest among many, where class a rarely wins without the record
MAX_RECORDS = 8192  # drawing from more takes too long
BITS_PER_CALL = 1 << 22  # inclusion bits
BATCH_SIZES = (1, 4)  # queries
DISTANCE = 10  # of k-NN's record from the queries, in integer units


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
    # so many records that a sample is full almost surely
    full = k if gamma == 1 else math.ceil((k + 6 * math.sqrt(k) + 20) / gamma)
    other = full if swap else round(tie / gamma)
    every = [EMPTY, replace(EMPTY, num_classes=MANY_CLASSES)]
    every += [Pair(round(votes / gamma), other, 2) for votes in (tie, behind)]
    every += [Pair(round(votes / gamma), 0, 2) for votes in (threshold, below)]
    return [p for p in every if p.same_class + p.other_class <= MAX_RECORDS]


def votes(mechanism: Votes, unit: Unit) -> list[Case]:
    """The screening, the aggregation, and QUERIES composed queries with both."""
    parts = (*mechanism.stages, JOINT) if mechanism.screened else mechanism.stages
    return [_vote(mechanism, part, unit) for part in parts]


def _vote(mechanism: Votes, part: str, unit: Unit) -> Case:
    queries = QUERIES if part == JOINT else 1
    alone = part == AGGREGATE and mechanism.screened
    caps = 0 if alone else queries, 0 if part == SCREEN else queries

    def trials(pair: Pair, added: bool, n: int, entropy: Entropy) -> np.ndarray:
        return run(mechanism, part, pair, added, n * queries, entropy, unit)

    near = pairs(mechanism, mechanism.require(mechanism.noise_field), mechanism.swap)
    return Case(part, near, trials, mechanism.releases(*caps), queries)


def run(
    mechanism: Votes,
    part: str,
    pair: Pair,
    added: bool,
    n: int,
    entropy: Entropy,
    unit: Unit = "row",
) -> np.ndarray:
    """Outcomes of ``n`` independent queries on one side of a pair, by the mechanism's own draws.

    int64 [n]: a bit for SCREEN, a class for AGGREGATE (drawn as after a screening that passed),
    label + 1 for JOINT.
    """
    voters = replace(of_unit(side(pair, added), unit), landmarks=b"\x01")  # all are within
    if mechanism.needs:  # the audit starts from the votes
        linear: dict[str, Any] = {"classifier": "linear"}
        k, mechanism = mechanism.max_votes, replace(mechanism, **linear)
        voters = replace(voters, ensembles={k: ensemble(k, pair, added)})
    block = max(1, min(1024, BITS_PER_CALL // max(1, len(voters.labels))))
    pieces = [_settled(mechanism, part, voters, keys, entropy) for keys in fresh_keys(n, block)]
    return np.concatenate(pieces)


def side(pair: Pair, added: bool) -> Voters:
    """One side of a pair before one query; the added record has id 0."""
    labels = pair.labels(added)
    ids = np.arange(len(labels)) + (not added)
    index = ExactIndex((ids > 0).astype(np.int8)[:, None], ids)  # id 0 alone is at distance 0
    return Voters(index, labels, pair.num_classes, np.zeros((1, 1), dtype=np.int8))


def _settled(
    mechanism: Votes, part: str, voters: Voters, keys: Sequence[str], entropy: Entropy
) -> np.ndarray:
    """Outcomes of copies of a query, taken through the stages as by a teacher: int64 [n_keys]."""
    results: list[dict[str, int]] = [{SCREEN: 1} if part == AGGREGATE else {} for _ in keys]
    for stage in mechanism.stages[:1] if part == SCREEN else mechanism.stages:
        due = [i for i, known in enumerate(results) if mechanism.next_stage(known) == stage]
        if due:
            asked = replace(voters, queries=np.repeat(voters.queries, len(due), axis=0))
            values = mechanism.draw(stage, asked, [keys[i] for i in due], entropy)
            for i, value in zip(due, values.tolist(), strict=True):
                results[i][stage] = value
    if part == JOINT:
        return np.array([mechanism.outcome(known)[1] for known in results], dtype=np.int64) + 1
    return np.array([known[part] for known in results], dtype=np.int64)


def ensemble(teachers: int, pair: Pair, added: bool) -> Ensemble:
    """Classifiers on shards with one record each (of class a) or none."""
    key, numbers = bytes(32), np.arange(1000 * min(teachers, pair.same_class + 2))
    _, first = np.unique(shard_numbers(numbers, key, teachers), return_index=True)
    ids = np.sort(first)[: pair.same_class + added]
    labels = np.full(len(ids), pair.num_classes - 1)
    rows = np.zeros((len(ids), 1), dtype=np.int8)
    classes = pair.num_classes
    return train_ensemble(rows, labels, ids, num_classes=classes, teachers=teachers, key=key)


def values(mechanism: Regression, unit: Unit) -> list[Case]:
    """Each release of a query for values."""
    noise = mechanism.require(mechanism.noise_field)
    near = pairs(mechanism, noise if mechanism.aggregate == MEAN else 2 / noise, True)
    near = [pair for pair in near if pair.num_classes == 2]
    return [_value(mechanism, stage, near, unit) for stage in mechanism.stages]


def _value(mechanism: Regression, stage: str, near: list[Pair], unit: Unit) -> Case:
    unscreened = replace(mechanism, threshold=None)

    def trials(pair: Pair, added: bool, n: int, entropy: Entropy) -> np.ndarray:
        rows = side(pair, added)
        voters = of_unit(replace(rows, labels=rows.labels * STEPS, num_classes=1), unit)
        released = np.concatenate(list(drawn(mechanism, stage, voters, n, entropy)))
        if stage == SCREEN:
            return released
        if mechanism.aggregate != MEAN:
            return released * mechanism.cells // (STEPS + 1)
        same = min(mechanism.rate * pair.same_class, mechanism.k)
        other = min(mechanism.rate * pair.other_class, mechanism.k - same)
        expected = round((same - other) * STEPS)  # about the sum without the record
        return sum_codes(released - expected, mechanism.require("sigma_mean") * RANGE)

    priced = mechanism.releases(1, 0) if stage == SCREEN else unscreened.releases(1, 1)
    return Case(stage, near, trials, priced)


def batches(mechanism: BatchMechanism, unit: Unit) -> list[Case]:
    """One batch of each size in BATCH_SIZES: nobody against a single record.

    All queries stand at one point, so they form a clique and the record lies in every ball: it
    moves every answer, which tests the composition over the clique; a batch of one query shows the
    scale of the noise best. For k-NN the record stands a little off, so that the radii depend on
    it. The statistic is the number of answers of the record's class and that of short radii.
    """
    distance, short = 0, 0
    if isinstance(mechanism, BatchKnn):  # a radius is short below the record's distance, or a step
        distance, short = DISTANCE, 100 if mechanism.conversion == "grid" else DISTANCE

    def case(size: int) -> Case:
        def run(pair: Pair, added: bool, n: int, entropy: Entropy) -> np.ndarray:
            features = np.array([[distance, 0]] * added, dtype=np.int8).reshape(-1, 2)
            index, query = ExactIndex(features, np.arange(added)), np.zeros((1, 2), dtype=np.int8)
            rows = of_unit(Voters(index, pair.labels(added), pair.num_classes, query), unit)
            codes = []
            for values in drawn(mechanism, BATCH, rows, n * size, entropy, batch=size):
                winners, shorter = values[:, 0] == pair.num_classes - 1, values[:, 2] < short**2
                codes.append(winners.sum() * (size + 1) + shorter.sum())
            return np.array(codes, dtype=np.int64)

        return Case(f"{BATCH} of {size}", [EMPTY], run, mechanism.releases(1, 1))

    return [case(size) for size in BATCH_SIZES]
