"""Attacks on noisy sums: of votes for attributes, of votes in cells, of gradients.

Noise has the same law on every entry, so the statistic is the released sum projected on the
direction in which it moves. It is sufficient for faithful code, and also shows noise that is too
small or missing, and votes or gradients that are not clipped.
"""

import math
from dataclasses import replace

import numpy as np

from ...wall.guarantee import Unit
from ...wall.label_kinds import MOST_ATTRIBUTES, STEPS, pack, unpack
from ..classifiers.linear_ensemble import shard_numbers, train_ensemble
from ..mechanisms.attributes import COUNTS, GRID, AttributeVotes, clipped
from ..mechanisms.sums import SUM, LinearSums, ReverseKnn, Score
from ..mechanisms.voters import Voters
from ..search.cpu import ExactIndex
from ..search.kernels import LARGEST
from .harness import EMPTY, OUTCOMES, Case, Pair, drawn_case, of_unit, sum_codes

SCORES = "score", "score_attributes", "score_value"
# (outputs, the record's label) by label space: the last class, all attributes, the upper bound.
RECORD = {"class": (2, 1), "attributes": (8, (1 << 8) - 1), "value": (1, STEPS)}
FEATURES = np.full((1, 8), 63, dtype=np.int8)  # of the record: almost three times as long
LENGTH = 63.0  # as a unit vector is
WITHOUT_NOISE = OUTCOMES + 1, OUTCOMES + 2  # codes: an entry is as of no record, or as of this one
MOST_OTHERS = 4096  # drawing from more is slow; above this, a record with attributes displaces none
# The displaced records' feature: a ridge classifier of one of them finds its attributes present at
# LARGEST, until the added record joins its shard there.
OTHERS_AT = 20
_KEY = bytes(32)


def cells(mechanism: ReverseKnn | Score, unit: Unit) -> list[Case]:
    """One histogram, of nobody and of one record, which adds the same whatever the others are."""
    (stage,), (outputs, label) = mechanism.stages, RECORD[mechanism.label_space]
    # the record is at 0: the first cells have its votes, or the last class's if it is right there
    score = isinstance(mechanism, Score)
    count = outputs if isinstance(mechanism, Score) else mechanism.neighbours + 1
    centers = np.minimum(np.arange(count), 63).astype(np.int8)[None, :: -1 if score else 1, None]

    def side(pair: Pair, added: bool) -> Voters:
        ids = np.arange(int(added))
        index = ExactIndex(np.zeros((len(ids), 1), dtype=np.int8), ids)
        voters = Voters(index, np.full(len(ids), label), outputs, centers)
        return of_unit(voters, unit, alike=True)

    record, grid = side(EMPTY, True), mechanism.grid
    if isinstance(mechanism, Score):
        (vector,) = record.right_votes(mechanism.label_space, grid)
    else:
        (vector,) = record.cell_votes(mechanism.neighbours, grid)

    def codes(counts: np.ndarray, pair: Pair) -> np.ndarray:
        return sum_codes(counts @ vector, mechanism.noise * float(np.linalg.norm(vector)))

    return [drawn_case(mechanism, stage, [EMPTY], side, codes, mechanism.releases(1, 1))]


def gradients(mechanism: LinearSums, unit: Unit) -> list[Case]:
    """One sum, of nobody and of one record whose features are so long that clipping shortens it.

    Two more outcomes are seen where an entry shows no noise: it is exactly what an empty data set
    or the record adds.
    """
    vector = of_record(mechanism)
    scale = mechanism.noise * float(np.linalg.norm(vector))

    def codes(values: np.ndarray, pair: Pair) -> np.ndarray:
        known = sum_codes(values @ vector, scale)
        for code, noiseless in zip(WITHOUT_NOISE, (0, vector), strict=True):
            known[(values == noiseless).any(axis=1)] = code
        return known

    def side(pair: Pair, added: bool) -> Voters:
        return of_unit(records(mechanism, added), unit, alike=True)

    return [drawn_case(mechanism, SUM, [EMPTY], side, codes, mechanism.releases(1, 1))]


def records(mechanism: LinearSums, added: bool) -> Voters:
    """The record, if it is there, before weights that are 0."""
    outputs, label = RECORD[mechanism.label_space]
    ids = np.arange(int(added))
    weights = np.zeros((1, FEATURES.shape[1] + 1, outputs), dtype=np.int16)
    index = ExactIndex(FEATURES[: len(ids)], ids)
    return Voters(index, np.full(len(ids), label), outputs, weights, LENGTH)


def of_record(mechanism: LinearSums) -> np.ndarray:
    """What the record adds: int64 [(d + 1) * c + 1], about SENSITIVITY long, no entry 0."""
    how = mechanism.clip, mechanism.label_space, mechanism.gain or 1
    vector: np.ndarray = records(mechanism, True).gradients(*how)[0]
    return vector


def attributes(mechanism: AttributeVotes, unit: Unit) -> list[Case]:
    """One query, on two pairs of data sets.

    Swap: the added record has tau attributes and displaces a voter with tau others, the worst case
    that clipping allows. Clip: it is the only record and has many more than tau attributes.
    """
    tau = min(mechanism.tau, MOST_ATTRIBUTES // 2)
    # the most records at one point that vote
    k, gamma = 1 if mechanism.needs else mechanism.max_voters, mechanism.rate
    full = k if gamma == 1 else math.ceil((k + 6 * math.sqrt(k) + 20) / gamma)
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
    features = np.array([OTHERS_AT] * others + [LARGEST] * added, dtype=np.int8).reshape(-1, 1)
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
    query = np.full((1, 1), LARGEST, dtype=np.int8)
    return replace(Voters(ExactIndex(features, ids), labels, count, query), ensembles=ensembles)
