"""The auditor's own value of the smoothed certificate: pure releases beside Gaussian ones."""

from __future__ import annotations

from typing import Any

import pytest

from labelwall.teacher.ledger.auditor.gaussians import smoothed

DELTA = 1e-5


def gaussian() -> dict[str, Any]:
    parameters = {"sigma": 40.0, "sensitivity": 1.0, "sampling_probability": 1.0}
    return {"curve": "gaussian", "parameters": parameters, "cap": 100}


def pure(epsilon: float) -> dict[str, Any]:
    return {"curve": "pure", "parameters": {"epsilon": epsilon}, "cap": 1}


@pytest.mark.parametrize("epsilon", [0.999, 1.0, 1.001])
def test_a_pure_release_costs_its_epsilon_beside_gaussian_ones(epsilon: float) -> None:
    """Also at 1, which is no sampling probability."""
    alone = smoothed([gaussian()], DELTA)
    both = smoothed([gaussian(), pure(epsilon)], DELTA)
    assert alone is not None
    assert both is not None
    assert alone + 0.5 * epsilon < both <= alone + epsilon + 1e-3


def test_pure_releases_alone_are_priced() -> None:
    found = smoothed([pure(1.0)], DELTA)
    assert found is None or 0.99 < found <= 1.001
