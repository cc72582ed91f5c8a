"""The statistical audit of reverse kNN refutes planted faults, not the real mechanism.

These tests depend on chance. A false alarm needs one of two bounds, each at confidence 1 - 2.5e-8,
to be wrong. The fault that is hardest to see, half the noise, is caught by a wide margin: in 4,000
simulations from its exact law at these settings the smallest bound was 3.21 for a claim of 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.audits.harness import PROBE_DELTA
from labelwall.teacher.audits.reverse_knn import audit_cells, probe_cells
from labelwall.teacher.mechanisms.reverse_knn import ReverseKnn
from labelwall.teacher.noise.entropy import Entropy
from labelwall.wall.errors import InvalidInput

pytestmark = pytest.mark.fresh_noise
TRIALS = 20000
SURE = 1 - 2.5e-8


class HalfTheNoise(ReverseKnn):
    """Draws noise of half the scale that is accounted."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        votes = voters.cell_votes(self.neighbours)
        return votes + entropy.discrete_gaussian(self.sigma / 2, keys, stage, votes.shape[1])


class SilentWhenEmpty(ReverseKnn):
    """No noise on entries for which nobody voted."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        return np.where(
            voters.cell_votes(self.neighbours) == 0, 0, super().draw(stage, voters, keys, entropy)
        )


class EveryCell(ReverseKnn):
    """A record votes ten times in its nearest cell and is accounted for once."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        return super().draw(stage, voters, keys, entropy) + 9 * voters.cell_votes(self.neighbours)


def audit(mechanism: ReverseKnn, **options: Any) -> Any:
    return audit_cells(
        mechanism, **{"delta": PROBE_DELTA, "trials": TRIALS, "confidence": SURE, **options}
    )


@pytest.mark.parametrize("neighbours", [1, 3])
def test_the_real_mechanism_is_not_refuted_and_the_audit_sees_a_good_part_of_its_claim(
    neighbours: int,
) -> None:
    found = audit(probe_cells(ReverseKnn(neighbours=neighbours, sigma=44.0)))
    assert not found.refuted, found.render()
    assert found.releases[0].expected > 0.3 * found.claim


@pytest.mark.parametrize("fault", [HalfTheNoise, SilentWhenEmpty, EveryCell])
def test_a_planted_fault_is_caught(fault: type[ReverseKnn]) -> None:
    found = audit(fault(cells=3, neighbours=1, sigma=1.0))
    assert found.refuted, found.render()


@pytest.mark.parametrize("wrong", [{"trials": 7}, {"delta": 0.0}, {"confidence": 1.0}])
def test_bad_settings_are_refused(wrong: dict) -> None:
    with pytest.raises(InvalidInput):
        audit(ReverseKnn(sigma=44.0), **wrong)
