"""Lengths of steps, the steps that count, and how sure a classifier is: by their definitions."""

from dataclasses import replace

import numpy as np
import pytest

from labelwall.student.linear.descent import Momentum, descend, rate
from labelwall.student.linear.fit_classes import doubt
from labelwall.student.linear.measure import FitSettings, Measurements
from labelwall.student.linear.tuning import LOGIT_NOISE, MAX_RATE, MOMENTUM
from labelwall.wall.matrices import COUNT


@pytest.mark.parametrize("steps", [20, 60])
def test_noise_alone_moves_a_logit_by_the_deviations_that_are_allowed(steps: int) -> None:
    """Weights of pure noise, if no step is taken back: momentum's last steps are not yet whole."""
    rng, deviation = np.random.default_rng(0), 0.02
    zeros = np.zeros((1, 20_000))
    moving = Momentum(weights=zeros, velocity=zeros, largest=1e9)
    for _ in range(steps):
        moving.follow(rng.normal(0, deviation, zeros.shape), rate(steps, deviation))
    assert 0.8 * LOGIT_NOISE < moving.weights.std() < LOGIT_NOISE


def test_a_step_without_noise_has_a_limit_and_weights_stay_in_range() -> None:
    assert rate(20, 1e-30) == MAX_RATE
    moving = Momentum(weights=np.zeros((1, 2)), velocity=np.zeros((1, 2)), largest=2.0)
    for _ in range(2):
        moving.follow(np.array([[1.0, -4.0]]), 1.0)
    np.testing.assert_allclose(moving.velocity, (1 + MOMENTUM) * np.array([[1.0, -4.0]]))
    np.testing.assert_allclose(np.abs(moving.weights).max(), 2.0)  # shrunk alike
    np.testing.assert_allclose(moving.weights[0, 1] / moving.weights[0, 0], -4.0)


@pytest.mark.parametrize(("steps", "counted"), [(1, 1), (2, 1), (3, 2), (4, 3), (9, 6), (20, 11)])
def test_the_later_half_of_the_steps_counts(steps: int, counted: int) -> None:
    """Each sum is of ten records and a gradient that tells its step."""
    how = FitSettings("attributes", 1, 63.0, 1.0, 0.1, steps)

    def ask(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return weights, np.append(np.full(3, step), 10 * COUNT)

    path = descend(Measurements(ask, how), np.ones((4, 3)), how)
    assert path is not None
    assert len(path.asked) == counted
    assert not path.first.weights.any()
    assert (path.first is path.asked[0]) == (steps == 1)
    assert path.deviation == pytest.approx(path.asked[-1].deviation / counted**0.5)


@pytest.mark.parametrize("longer", [0.5, 1.0, 2.0])
def test_doubt_finds_the_factor_that_makes_logits_true(longer: float) -> None:
    """Gradients of the true probabilities at weights that are so many times too long."""
    rng, n = np.random.default_rng(1), 4_000
    x = np.pad(rng.normal(size=(n, 4)), ((0, 0), (0, 1)), constant_values=1.0)
    true = rng.normal(size=(5, 3))
    true -= true.mean(axis=1, keepdims=True)
    likely = np.exp(x @ true)
    likely /= likely.sum(axis=1, keepdims=True)
    how = FitSettings("class", 3, 63.0, 1.0, 0.1, 1)
    path = descend(Measurements(lambda _, w: (w, np.zeros(w.size + 1)), how), x, how)
    assert path is not None
    steps = []
    for _ in range(8):
        weights = longer * true
        p = np.exp(x @ weights)
        p /= p.sum(axis=1, keepdims=True)
        mean = x.T @ (p - likely) / n
        steps.append(replace(path.first, weights=weights, mean=mean, deviation=1e-4, clip=np.inf))
    found = doubt(replace(path, asked=steps), 1.0)
    assert found is not None
    best, least, most = found
    assert best == pytest.approx(1 / longer, rel=0.01)
    assert least <= best <= most
    hidden = [replace(step, deviation=1e3) for step in steps]
    assert doubt(replace(path, asked=hidden), 1.0) is None
