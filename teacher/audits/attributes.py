"""The statistical audit of votes on attributes, on two pairs of neighbouring data sets.

"swap": the added record has tau attributes and displaces a voter with tau others, the worst case
that clipping allows. "clip": it is the only record and has many more than tau attributes. All
records stand at one point, except those that it displaces. The statistic is the noisy counts
projected on the direction in which they move. It is sufficient for faithful code, and also shows
noise that is too small, votes that are not clipped, and missing noise where nobody votes. Validity:
harness.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...wall.labels.attributes import MOST_ATTRIBUTES, pack, unpack
from ..classifiers.linear_ensemble import shard_numbers, train_ensemble
from ..mechanisms.attributes import COUNTS, GRID, AttributeVotes, clipped
from ..mechanisms.voters import Voters
from ..noise.entropy import Entropy, SystemEntropy
from ..search.cpu import ExactIndex
from ..search.int8_matmul import LARGEST
from .harness import (
    EmpiricalFinding,
    Pair,
    Part,
    audit_parts,
    fresh_keys,
    normal_law,
    sum_codes,
)
from .vote_laws import Poll

MAX_RIVALS = 4096  # drawing from more is slow; above this, the record displaces nobody
# The displaced records' feature: a ridge classifier of one of them finds its attributes present at
# LARGEST, until the added record joins its shard there.
RIVAL_FEATURE = 20
PAIRS = (SWAP, CLIP) = (f"{COUNTS}, swap", f"{COUNTS}, clip")
_QUERIES_PER_CALL = 1024
_KEY = bytes(32)


def audit_attributes(
    mechanism: AttributeVotes,
    *,
    delta: float,
    trials: int,
    confidence: float = 0.95,
    releases: Sequence[str] = (),
) -> EmpiricalFinding:
    """Audit one query on both PAIRS, or on those of ``releases``.

    ``trials``: queries drawn for each on each of the two data sets. Raises InvalidInput for fewer
    than 8 trials, or delta or confidence outside (0, 1).
    """

    def part(name: str) -> Part:
        scene = _swap(mechanism) if name == SWAP else _clip(mechanism)

        def run(added: bool, n: int) -> np.ndarray:
            return run_attributes(mechanism, scene, added, n, SystemEntropy())

        pair = Pair(0, scene.rivals, len(scene.added))
        return Part(name, pair, run, _laws(mechanism, scene))

    parts = [part(name) for name in releases or PAIRS]
    return audit_parts(mechanism, parts, delta=delta, trials=trials, confidence=confidence)


@dataclass(frozen=True, eq=False)
class Scene:
    """The added record, and ``rivals`` identical others.

    ``added``, ``rival``: their attributes, int64 [c] of 0 and 1; ``direction``: int64 [c], on which
    counts are projected.
    """

    added: np.ndarray
    rival: np.ndarray
    rivals: int
    direction: np.ndarray


def _voting_records(mechanism: AttributeVotes) -> tuple[int, float]:
    """(most records at one point that vote, probability that each is sampled)."""
    return (1 if mechanism.needs else mechanism.max_voters), mechanism.rate


def _swap(mechanism: AttributeVotes) -> Scene:
    tau = min(mechanism.tau, MOST_ATTRIBUTES // 2)
    added = np.repeat([0, 1], tau)
    k, gamma = _voting_records(mechanism)
    full = Poll(k, sampling_probability=gamma).full
    rivals = full if full <= MAX_RIVALS else 0
    return Scene(added, 1 - added, rivals, added - (1 - added) * (rivals > 0))


def _clip(mechanism: AttributeVotes) -> Scene:
    ones = np.ones(min(8 * mechanism.tau, MOST_ATTRIBUTES), dtype=np.int64)
    return Scene(ones, 0 * ones, 0, ones)


def run_attributes(
    mechanism: AttributeVotes, scene: Scene, added: bool, n: int, entropy: Entropy
) -> np.ndarray:
    """Codes 0..OUTCOMES of ``n`` independent queries by the mechanism's own draw: int64 [n]."""
    voters = _voters(mechanism, scene, added)
    codes = []
    voting = min(scene.rivals, _voting_records(mechanism)[0])  # without the added record
    base = (clipped(scene.rival[np.newaxis], mechanism.tau)[0] @ scene.direction) * voting
    for keys in fresh_keys(n, _QUERIES_PER_CALL):
        queries = np.full((len(keys), 1), LARGEST, dtype=np.int8)
        drawn = mechanism.draw(COUNTS, replace(voters, queries=queries), keys, entropy)
        codes.append(sum_codes(drawn @ scene.direction - base, _deviation(mechanism, scene)))
    return np.concatenate(codes)


def _voters(mechanism: AttributeVotes, scene: Scene, added: bool) -> Voters:
    count = len(scene.added)
    ids = np.append(np.arange(1, 1 + scene.rivals), 0)[: scene.rivals + added]
    features = np.array([RIVAL_FEATURE] * scene.rivals + [LARGEST] * added, dtype=np.int8).reshape(
        -1, 1
    )
    attributes = np.array([scene.rival] * scene.rivals + [scene.added] * added, dtype=np.int64)
    labels = pack(attributes.reshape(-1, count))
    ensembles = {}
    for teachers in (need.teachers for need in mechanism.needs):
        if scene.rivals:  # one shard holds both
            numbers = np.arange(1000 * teachers)
            ids = numbers[shard_numbers(numbers, _KEY, teachers) == 0][: 1 + added]
        bits = unpack(labels, count)
        ensembles[teachers] = train_ensemble(
            features, bits, ids, num_classes=count, teachers=teachers, key=_KEY
        )
    no_queries = np.zeros((0, 1), dtype=np.int8)
    return Voters(ExactIndex(features, ids), labels, count, no_queries, ensembles=ensembles)


def _deviation(mechanism: AttributeVotes, scene: Scene) -> float:
    return mechanism.require("sigma_vote") * GRID * math.sqrt(np.count_nonzero(scene.direction))


def _laws(mechanism: AttributeVotes, scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the codes without and with the record, float64 [OUTCOMES + 1] each.

    By the normal law, as GRID is fine enough.
    """
    _, gamma = _voting_records(mechanism)
    moved = clipped(np.stack([scene.added, scene.rival]), mechanism.tau) @ scene.direction
    shift = (moved[0] - moved[1] * (scene.rivals > 0)) / _deviation(mechanism, scene)
    absent, present = normal_law(np.array([0.0, shift]))
    return absent, (1 - gamma) * absent + gamma * present
