"""The statistical audit of private_linear refutes planted faults, not the real mechanism.

A false alarm needs one of two bounds, each at confidence 1 - 2.5e-8, to be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.mechanisms.private_linear import gradient
from labelwall.teacher.mechanisms.private_linear.audit import audit_sums, of_record, probe_sums
from labelwall.teacher.mechanisms.private_linear.mechanism import PrivateLinear
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.statistical_audit import PROBE_DELTA
from labelwall.wall.weights import SENSITIVITY

TRIALS = 8000
SURE = 1 - 2.5e-8


class HalfTheNoise(PrivateLinear):
    """Draws noise of half the scale that is accounted."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        sums = voters.gradients(self.clip)
        return sums + entropy.discrete_gaussian(self._noise() / 2, keys, stage, sums.shape[1])


class CountedExactly(PrivateLinear):
    """No noise on the number of records."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        drawn = super().draw(stage, voters, keys, entropy)
        drawn[:, -1] = voters.gradients(self.clip)[:, -1]
        return drawn


class SilentFirst(PrivateLinear):
    """No noise on the first entry."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        drawn = super().draw(stage, voters, keys, entropy)
        drawn[:, 0] = voters.gradients(self.clip)[:, 0]
        return drawn


class Twice(PrivateLinear):
    """A record adds its part twice and is accounted for once."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        return super().draw(stage, voters, keys, entropy) + voters.gradients(self.clip)


def audit(mechanism: PrivateLinear) -> Any:
    return audit_sums(mechanism, delta=PROBE_DELTA, trials=TRIALS, confidence=SURE)


def test_the_record_is_as_long_as_the_limit_and_shows_in_every_entry() -> None:
    vector = of_record(PrivateLinear())
    assert 0.99 * SENSITIVITY < np.linalg.norm(vector) <= SENSITIVITY
    assert vector.all()


def test_the_real_mechanism_is_not_refuted_and_the_audit_sees_a_good_part_of_its_claim() -> None:
    found = audit(probe_sums(PrivateLinear(sigma=40.0)))
    assert not found.refuted, found.render()
    assert found.releases[0].expected > 0.3 * found.claim


@pytest.mark.parametrize("fault", [HalfTheNoise, CountedExactly, SilentFirst, Twice])
def test_a_planted_fault_is_caught(fault: type[PrivateLinear]) -> None:
    found = audit(fault(sigma=1.0))
    assert found.refuted, found.render()


def test_a_missing_clip_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient, "clipped", lambda residuals, squares: residuals)
    assert np.linalg.norm(of_record(PrivateLinear())) > 2 * SENSITIVITY
    assert audit(PrivateLinear(sigma=1.0)).refuted
