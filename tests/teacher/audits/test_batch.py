"""The statistical audit of batches refutes planted faults, not the real mechanisms.

These tests depend on chance. A false alarm needs one of two bounds, at joint confidence 1 - 5e-8,
to be wrong. With a fault that leaves out noise, one side never shows an outcome that the other
shows in half of the trials or more: bounds of at least 2.3 for a claim of 2. Half the noise on a
single query has an expected bound of 2.86 (exact laws, 3,375 trials); a miss needs twice the
expected number of outcomes on the unlikely side, more than ten deviations away. Cliques that are
not paid for have an expected bound of 3.5, and the same holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.audits import batch as empirical_batch
from labelwall.teacher.audits.batch import audit_batch
from labelwall.teacher.audits.cases import audit_mechanisms, probes
from labelwall.teacher.audits.harness import PROBE_DELTA, EmpiricalFinding
from labelwall.teacher.mechanisms import batch_knn, radius
from labelwall.teacher.mechanisms.batch import BatchMechanism
from labelwall.teacher.mechanisms.batch_knn import BatchKnn
from labelwall.teacher.mechanisms.overlap import Bounds
from labelwall.teacher.mechanisms.radius import RadiusNeighbours
from labelwall.wall.errors import InvalidInput

pytestmark = pytest.mark.fresh_noise
TRIALS = 600
SURE = 1 - 5e-8


def audit(mechanism: BatchMechanism, trials: int = TRIALS) -> EmpiricalFinding:
    if isinstance(mechanism, BatchKnn) and mechanism.conversion == "grid":
        trials = 250  # a grid a batch
    ((probe, _),) = probes(mechanism)
    assert isinstance(probe, BatchMechanism)
    return audit_batch(probe, delta=PROBE_DELTA, trials=trials, confidence=SURE)


class Halved:
    """An entropy with half the noise, and twice the rate, that are accounted."""

    unsafe = False

    def __init__(self, entropy: Any) -> None:
        self._entropy = entropy

    def discrete_laplace(self, scale: float, *args: Any) -> np.ndarray:
        return self._entropy.discrete_laplace(scale / 2, *args)

    def choose(self, losses: np.ndarray, rates: Sequence[Any], *args: Any) -> np.ndarray:
        return self._entropy.choose(losses, [2 * rate for rate in rates], *args)


class HalfTheNoise(RadiusNeighbours):
    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Any) -> np.ndarray:
        return super().draw(stage, voters, keys, Halved(entropy))


class SilentWhenEmpty(RadiusNeighbours):
    """Nobody voted: class 0, without noise."""

    def draw(self, stage: str, voters: Any, keys: Sequence[str], entropy: Any) -> np.ndarray:
        drawn = super().draw(stage, voters, keys, entropy)
        drawn[voters.ball_votes(drawn[:, 3]).sum(axis=1) == 0, 0] = 0
        return drawn


@pytest.mark.parametrize(
    "mechanism",
    [  # DMKD17's algorithms, as published where that is another thing, and ours
        pytest.param(RadiusNeighbours(noise="laplace", accounting="queries"), id="algorithm 1"),
        pytest.param(
            RadiusNeighbours(noise="exponential_paper", accounting="queries"), id="algorithm 2"
        ),
        pytest.param(RadiusNeighbours(noise="laplace", accounting="component"), id="algorithm 3"),
        pytest.param(
            RadiusNeighbours(noise="laplace", accounting="local"),
            id="algorithm 3 by own clique",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            RadiusNeighbours(noise="exponential", accounting="component"),
            id="algorithm 3 by exponential noise",
        ),
        pytest.param(BatchKnn(conversion="none"), id="algorithm 4"),
        pytest.param(
            BatchKnn(conversion="interactive"),
            id="algorithms 5 and 6 by own clique",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            BatchKnn(
                conversion="interactive", candidate_accounting="queries", accounting="component"
            ),
            id="algorithms 5 and 6",
        ),
        pytest.param(BatchKnn(conversion="grid"), id="algorithms 5 and 7"),
    ],
)
def test_the_real_mechanisms_are_not_refuted(mechanism: BatchMechanism) -> None:
    found = audit(mechanism)
    assert not found.refuted, found.render()
    assert (
        found.releases[0].expected > 0
        or isinstance(mechanism, BatchKnn)
        or mechanism.accounting == "queries"
    )


@pytest.mark.parametrize(("fault", "trials"), [(HalfTheNoise(), 4500), (SilentWhenEmpty(), TRIALS)])
def test_a_planted_fault_is_caught(
    fault: RadiusNeighbours, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(empirical_batch, "BATCH_SIZES", (1,))
    found = audit(fault, trials)
    assert found.refuted, found.render()


@pytest.mark.parametrize("noise", ["laplace", pytest.param("exponential", marks=pytest.mark.slow)])
def test_a_clique_that_is_not_paid_for_is_caught(
    noise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every query spends the whole epsilon, as if no balls overlapped."""

    def alone(queries: np.ndarray, *args: Any) -> Bounds:
        return Bounds(np.ones(len(queries), dtype=np.int64), np.ones(len(queries), dtype=bool))

    monkeypatch.setattr(radius, "clique_bounds", alone)
    monkeypatch.setattr(empirical_batch, "BATCH_SIZES", (4,))
    found = audit(RadiusNeighbours(noise=noise), 3000)
    assert found.refuted, found.render()


@pytest.mark.parametrize(
    "conversion", ["interactive", pytest.param("grid", marks=pytest.mark.slow)]
)
def test_radii_without_noise_are_caught(conversion: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Exact:
        """Radii as they are, labels with their noise."""

        unsafe = False

        def __init__(self, entropy: Any) -> None:
            self._entropy = entropy

        def discrete_laplace(
            self, scale: float, keys: Sequence[str], release: str, width: int
        ) -> np.ndarray:
            drawn = self._entropy.discrete_laplace(scale, keys, release, width)
            return np.zeros_like(drawn) if release == batch_knn.RADIUS_NOISE else drawn

        def choose(self, losses: np.ndarray, rates: Any, keys: Any, release: str) -> np.ndarray:
            return (
                losses.argmin(axis=1)
                if release == batch_knn.RADIUS_NOISE
                else self._entropy.choose(losses, rates, keys, release)
            )

    real = BatchKnn.draw
    monkeypatch.setattr(
        BatchKnn,
        "draw",
        lambda self, stage, voters, keys, e: real(self, stage, voters, keys, Exact(e)),
    )
    found = audit(BatchKnn(conversion=conversion))
    assert found.refuted, found.render()


def test_a_plans_batches_are_attacked_as_configured_and_with_little_noise() -> None:
    found = audit_mechanisms(
        [RadiusNeighbours(epsilon=0.5)], delta=1e-5, trials=60, confidence=SURE
    )
    assert [(f.mechanism["epsilon"], f.delta) for f in found] == [(0.5, 1e-5), (2.0, PROBE_DELTA)]
    assert [r.release for r in found[0].releases] == ["batch of 1", "batch of 4"]
    with pytest.raises(InvalidInput, match="trials"):
        audit_mechanisms([RadiusNeighbours(epsilon=0.5)], delta=1e-5, trials=7, confidence=SURE)
