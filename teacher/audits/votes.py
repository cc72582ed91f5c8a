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
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ...wall.guarantee import Unit
from ...wall.label_kinds import STEPS
from ..accounting.plan import Release
from ..classifiers.linear_ensemble import Ensemble, shard_numbers, train_ensemble
from ..mechanisms.batch import BATCH, BatchKnn, BatchMechanism
from ..mechanisms.values import MEAN, RANGE, Regression
from ..mechanisms.voters import Voters
from ..mechanisms.votes import AGGREGATE, SCREEN, Screened, Votes
from ..search.cpu import ExactIndex
from .harness import EMPTY, Case, Pair, drawn_case, of_unit, sum_codes

JOINT = f"{SCREEN}+{AGGREGATE}"  # a whole query: abstained, or a class
QUERIES = 4  # of a trial of JOINT
MANY_CLASSES = 10  # a contest among many, where class a rarely wins without the record
MAX_RECORDS = 8192  # drawing from more takes too long
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
    k, needs = mechanism.max_votes, mechanism.needs
    linear: dict[str, Any] = {"classifier": "linear"}
    asked = replace(mechanism, **linear) if needs else mechanism  # the audit starts from the votes

    def side(pair: Pair, added: bool) -> Voters:
        voters = replace(of_unit(rows(pair, added), unit), landmarks=b"\x01")  # all are within
        return replace(voters, ensembles={k: ensemble(k, pair, added)}) if needs else voters

    near = pairs(mechanism, mechanism.require(mechanism.noise_field), mechanism.swap)
    return [
        drawn_case(
            asked, part, near, side, lambda values, _: values, caps, stages=stages, queries=q
        )
        for part, stages, caps, q in _parts(mechanism, joint=mechanism.screened)
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
    ids = np.arange(len(labels)) + (not added)
    index = ExactIndex((ids > 0).astype(np.int8)[:, None], ids)  # id 0 alone is at distance 0
    return Voters(index, labels, pair.num_classes, np.zeros((1, 1), dtype=np.int8))


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
        drawn_case(mechanism, part, near, side, (lambda b, _: b) if part == SCREEN else codes, caps)
        for part, _, caps, _ in _parts(mechanism, joint=False)
    ]


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
