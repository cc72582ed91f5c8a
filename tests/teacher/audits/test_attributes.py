"""The statistical audit of votes on attributes refutes planted faults, not the real mechanisms.

These tests depend on chance. A false alarm needs one of eight bounds, each at confidence
1 - 1.25e-8, to be wrong. Power: see ``test_a_planted_fault_is_caught``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.audits.attributes import (
    CLIP,
    SWAP,
    audit_attributes,
)
from labelwall.teacher.audits.cases import audit as run_audit
from labelwall.teacher.audits.cases import audit_mechanisms, probes
from labelwall.teacher.audits.harness import PROBE_DELTA
from labelwall.teacher.mechanisms.attributes import (
    COUNTS,
    GRID,
    AttributeVotes,
    GnmaxAttributes,
    PrivateKnnAttributes,
)
from labelwall.teacher.noise.entropy import Entropy
from labelwall.wall.errors import InvalidInput
from labelwall.wall.labels.attributes import unpack
from tests.teacher.audits.faults import HalfScale

pytestmark = pytest.mark.fresh_noise
SURE = 1 - 2.5e-8
KINDS = (PrivateKnnAttributes, GnmaxAttributes)


@pytest.mark.parametrize("kind", KINDS)
def test_the_real_mechanism_is_not_refuted_and_the_audit_sees_a_good_part_of_its_claim(
    kind: type[AttributeVotes],
) -> None:
    mechanism = kind(sigma_vote=50.0)
    findings = audit_mechanisms([mechanism], delta=1e-5, trials=800, confidence=SURE)
    assert [found.refuted for found in findings] == [False, False]
    assert [release.release for release in findings[1].releases] == [
        f"{COUNTS}, swap",
        f"{COUNTS}, clip",
    ]
    ((probe, _),) = probes(kind())
    seen = run_audit(probe, delta=PROBE_DELTA, trials=5000, confidence=0.95, releases=(SWAP,))
    assert seen.releases[0].expected > 0.3 * seen.claim  # of the exact laws: no chance in it


def halved(kind: type) -> Any:
    """Draws noise of half the scale that is accounted."""

    class Halved(kind):
        def draw(
            self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy
        ) -> np.ndarray:
            return super().draw(stage, voters, keys, HalfScale(entropy))

    return Halved


class Unclipped(PrivateKnnAttributes):
    """A neighbour votes for all its attributes, however many."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        votes = unpack(voters.labels, voters.num_classes) * GRID
        counts = voters.votes(self.k, self.sampling_probability, keys, stage, entropy, votes)
        return counts + entropy.discrete_gaussian(
            self.sigma_vote * GRID, keys, stage, voters.num_classes
        )


class CoarseNoise(PrivateKnnAttributes):
    """Noise in the grid's unit instead of in votes."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        noise = entropy.discrete_gaussian(self.sigma_vote, keys, stage, voters.num_classes)
        return super().draw(stage, voters, keys, _Nothing(entropy)) + noise


class SilentWhenEmpty(PrivateKnnAttributes):
    """No noise on attributes for which nobody voted."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        drawn = super().draw(stage, voters, keys, entropy)
        return np.where(len(voters.labels) == 0, 0, drawn)


class _Nothing:
    """The sample as drawn, and no noise."""

    def __init__(self, entropy: Entropy) -> None:
        self.inclusion = entropy.inclusion

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        return np.zeros((len(keys), width), dtype=np.int64)


FAULTS = [
    (halved(PrivateKnnAttributes), SWAP, 40000),
    (halved(GnmaxAttributes), SWAP, 40000),
    (Unclipped, CLIP, 40000),
    (CoarseNoise, SWAP, 5000),
    (SilentWhenEmpty, CLIP, 5000),
]


@pytest.mark.parametrize(
    ("fault", "pair", "trials"),
    FAULTS,
    ids=["half, kNN", "half, PATE", "unclipped", "coarse", "silent"],
)
def test_a_planted_fault_is_caught(fault: type, pair: str, trials: int) -> None:
    """In repetitions the bounds were at least 2.3 for a claim of 1.55: eight deviations of 0.1."""
    ((probe, _),) = probes(fault())
    weak = replace(probe, sigma_vote=2.0)  # a smaller claim is refuted by a factor in fewer trials
    if isinstance(weak, PrivateKnnAttributes):
        weak = replace(weak, sampling_probability=1.0)  # sampling would only dilute the fault
    found = audit_attributes(
        weak, delta=PROBE_DELTA, trials=trials, confidence=SURE, releases=[pair]
    )
    assert found.refuted, found.render()


@pytest.mark.parametrize("wrong", [{"trials": 7}, {"delta": 0.0}, {"confidence": 1.0}])
def test_bad_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(InvalidInput):
        audit_attributes(
            PrivateKnnAttributes(sigma_vote=100.0),
            **{"delta": PROBE_DELTA, "trials": 100, "confidence": SURE, **wrong},
        )
