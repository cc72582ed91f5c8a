"""The statistical audit of votes on attributes: their own draws on two pairs of neighbouring data sets.

"swap": the added record has tau attributes and takes the place of a voter with tau others, the worst that clipping allows.
"clip": it is alone and has many more than tau attributes. All stand at one place, except those that it displaces. What is told
apart is the noisy counts along the direction in which they move, a sufficient statistic of faithful code; it also shows noise
that is too small, votes that are not clipped, silence where nobody votes. Validity and the rest: teacher/mechanisms/vote_audit.py.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.attributes.mechanism import (
    COUNTS,
    GRID,
    GnmaxAttributes,
    PrivateKnnAttributes,
    clipped,
)
from labelwall.teacher.mechanisms.pate.linear_ensemble import Ensemble, shards, trained
from labelwall.teacher.mechanisms.reverse_knn.audit import OUTCOMES, code
from labelwall.teacher.mechanisms.vote_audit import (
    EXPLORED,
    EmpiricalFinding,
    ReleaseFinding,
    bound_pair,
    check_audit,
    expected_bound,
)
from labelwall.teacher.mechanisms.vote_laws import Pair
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.int8_matmul import LARGEST
from labelwall.wall.labels.attributes import MOST_ATTRIBUTES, pack, unpack

Attributes = PrivateKnnAttributes | GnmaxAttributes
MOST_RIVALS = 4096  # larger crowds take too long to draw from; the record then displaces nobody
AWAY = 20  # where the displaced stand: a ridge classifier of one of them finds its attributes present at LARGEST, until joined there
PAIRS = (SWAP, CLIP) = ("swap", "clip")
_TOGETHER = 1024
_KEY = bytes(32)


def probe_attributes(mechanism: Attributes) -> Attributes:
    """The same code with noise so small that faults show in seconds."""
    few = replace(mechanism, tau=1, sigma_vote=1.5)
    if isinstance(few, PrivateKnnAttributes):
        return replace(few, k=1, sampling_probability=0.5)
    return replace(few, teachers=2)


def audit_attributes(
    mechanism: Attributes,
    *,
    delta: float,
    trials: int,
    confidence: float = 0.95,
    pairs: Sequence[str] = PAIRS,
) -> EmpiricalFinding:
    """Audit one query on both pairs, or one of them. ``trials``: queries drawn for each on each of the two data sets.

    Raises InvalidInput for fewer than 8 trials, or delta or confidence outside (0, 1).
    """
    check_audit(delta, trials, confidence, 1)
    claim, found = (
        certified_epsilon(Plan(1.0, delta, (Slot(mechanism.fields(), mechanism.releases(1, 1)),))),
        [],
    )
    error = (1 - confidence) / len(pairs)
    for name in pairs:
        scene = _swap(mechanism) if name == SWAP else _clip(mechanism)
        pair = Pair(0, scene.rivals, len(scene.added))
        bound = bound_pair(
            lambda at, added, n, scene=scene: run_attributes(
                mechanism, scene, added, n, SystemEntropy()
            ),  # type: ignore[misc]
            pair,
            queries=1,
            trials=trials,
            delta=delta,
            error=error,
        )
        expected = expected_bound(
            *_laws(mechanism, scene), trials - trials // EXPLORED, delta, error
        )
        found.append(ReleaseFinding(f"{COUNTS}, {name}", 1, trials, pair, bound, expected, claim))
    return EmpiricalFinding(mechanism.fields(), delta, confidence, tuple(found))


@dataclass(frozen=True, eq=False)
class Scene:
    """``added``, ``rival``: attributes of the added record and of each of ``rivals`` others, int64 [c] of 0 and 1; ``direction``:
    int64 [c], along which counts are read."""

    added: np.ndarray
    rival: np.ndarray
    rivals: int
    direction: np.ndarray


def _swap(mechanism: Attributes) -> Scene:
    tau = min(mechanism.tau, MOST_ATTRIBUTES // 2)
    added, rivals = np.repeat([0, 1], tau), 1
    if isinstance(mechanism, PrivateKnnAttributes):
        k, gamma = mechanism.k, mechanism.sampling_probability
        full = k if gamma == 1 else math.ceil((k + 6 * math.sqrt(k) + 20) / gamma)
        rivals = full if full <= MOST_RIVALS else 0
    return Scene(added, 1 - added, rivals, added - (1 - added) * (rivals > 0))


def _clip(mechanism: Attributes) -> Scene:
    everything = np.ones(min(8 * mechanism.tau, MOST_ATTRIBUTES), dtype=np.int64)
    return Scene(everything, 0 * everything, 0, everything)


def run_attributes(
    mechanism: Attributes, scene: Scene, added: bool, n: int, entropy: Entropy
) -> np.ndarray:
    """Codes 0..OUTCOMES of ``n`` independent queries through the mechanism's own draw: int64 [n]."""
    voters, call, codes = _voters(mechanism, scene, added), secrets.token_hex(8), []
    base = (clipped(scene.rival[np.newaxis], mechanism.tau)[0] @ scene.direction) * _voting(
        mechanism, scene
    )
    for start in range(0, n, _TOGETHER):
        keys = [f"{call}-{row}" for row in range(start, min(start + _TOGETHER, n))]
        queries = np.full((len(keys), 1), LARGEST, dtype=np.int8)
        drawn = mechanism.draw(COUNTS, replace(voters, queries=queries), keys, entropy)
        codes.append(code(drawn @ scene.direction - base, _deviation(mechanism, scene)))
    return np.concatenate(codes)


def _voters(mechanism: Attributes, scene: Scene, added: bool) -> Voters:
    count = len(scene.added)
    ids = np.append(np.arange(1, 1 + scene.rivals), 0)[: scene.rivals + added]
    if isinstance(mechanism, GnmaxAttributes) and scene.rivals:  # one shard holds both
        numbers = np.arange(1000 * mechanism.teachers)
        ids = numbers[shards(numbers, _KEY, mechanism.teachers) == 0][: 1 + added]
    features = np.array([AWAY] * scene.rivals + [LARGEST] * added, dtype=np.int8).reshape(-1, 1)
    labels = pack(
        np.array([scene.rival] * scene.rivals + [scene.added] * added, dtype=np.int64).reshape(
            -1, count
        )
    )
    made = dict[int, Ensemble]()
    if isinstance(mechanism, GnmaxAttributes):
        bits = unpack(labels, count)
        made[mechanism.teachers] = trained(
            features, bits, ids, num_classes=count, teachers=mechanism.teachers, key=_KEY
        )
    nobody = np.zeros((0, 1), dtype=np.int8)
    return Voters(ExactIndex(features, ids), labels, count, nobody, ensembles=made)


def _voting(mechanism: Attributes, scene: Scene) -> int:
    """How many rivals vote without the added record."""
    return min(scene.rivals, mechanism.k if isinstance(mechanism, PrivateKnnAttributes) else 1)


def _deviation(mechanism: Attributes, scene: Scene) -> float:
    return mechanism.sigma_vote * GRID * math.sqrt(np.count_nonzero(scene.direction))


def _laws(mechanism: Attributes, scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the codes without and with the record, float64 [OUTCOMES + 1] each, by the normal law: GRID is fine."""
    gamma = mechanism.sampling_probability if isinstance(mechanism, PrivateKnnAttributes) else 1.0
    moved = clipped(np.stack([scene.added, scene.rival]), mechanism.tau) @ scene.direction
    shift = (moved[0] - moved[1] * (scene.rivals > 0)) / _deviation(mechanism, scene)
    edges = 8 * (np.arange(1, OUTCOMES + 1) - OUTCOMES // 2) / OUTCOMES  # in deviations
    still, away = (np.diff(np.concatenate([[0.0], ndtr(edges - s), [1.0]])) for s in (0.0, shift))
    return still, (1 - gamma) * still + gamma * away
