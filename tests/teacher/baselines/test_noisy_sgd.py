"""NoisySGD baselines: epsilon by an independent accountant, learning, clipping, empty batches."""

from typing import Any

import pytest
import torch
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant

from labelwall.teacher.baselines import noisy_sgd
from labelwall.teacher.baselines.baseline_settings import LinearNoisySgd, NoisySgd
from labelwall.teacher.baselines.noisy_sgd import calibrate, train_privately
from labelwall.wall.errors import InvalidInput

D, CLASSES = 6, 3


def data(n):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % CLASSES
    return torch.randn(n, D, generator=generator) + 3 * torch.eye(CLASSES, D)[labels], labels


def linear(**changes):
    settings: dict[str, Any] = {"batch_size": 100, "expected_records": 600, "epochs": 10}
    return LinearNoisySgd(**{**settings, "clip": 1.0, "learning_rate": 0.5, **changes})


def train(config, x, y, epsilon=8.0):
    return train_privately(config, x, y, num_classes=CLASSES, epsilon=epsilon, delta=1e-5, seed=0)


@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(1.0, 0.01, 500), (0.2, 0.05, 100)])
def test_the_price_is_another_accountants_too(epsilon, rate, steps):
    multiplier, by_prv = calibrate(epsilon, 1e-5, rate, steps)
    oracle = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    oracle.compose(
        SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), steps)
    )
    # Opacus adds its error bound of 0.01.
    assert oracle.get_epsilon(1e-5) <= by_prv <= oracle.get_epsilon(1e-5) + 0.0101
    assert 0.9 * epsilon < by_prv <= epsilon


def test_a_linear_model_learns_and_keeps_its_budget():
    x, y = data(600)
    model = train(linear(), x, y)
    assert (model.predict(x) == y.numpy()).mean() > 0.9
    assert model.epsilon <= 8.0
    assert model.steps == 60


def test_images_go_through_a_network():
    x = torch.randn(60, 1, 28, 28)
    config = NoisySgd(batch_size=20, expected_records=60, epochs=1)
    model = train(config, x, torch.arange(60) % CLASSES)
    assert model.predict(x).shape == (60,)
    assert model.steps == 3


def test_the_same_steps_are_made_whatever_the_number_of_records():
    """Rate, steps and noise come from public settings; no record at all still trains on noise."""
    x, y = data(600)
    models = [train(linear(), x[:n], y[:n], epsilon=1.0) for n in (0, 1, 600)]
    assert len({(m.steps, m.noise_multiplier, m.epsilon) for m in models}) == 1
    assert all(torch.isfinite(next(m.network.parameters())).all() for m in models)


def test_one_records_pull_is_bounded_by_the_clip(monkeypatch):
    """One record more moves the weights of a step by lr clip / batch, without noise."""
    monkeypatch.setattr(noisy_sgd, "calibrate", lambda *_: (0.0, 0.0))
    config = linear(batch_size=600, epochs=1, clip=0.3)
    x, y = data(50)
    x[0] *= 1000  # a gradient that has to be clipped
    weights = []
    for rows in (slice(1, None), slice(None)):
        model = train(config, x[rows], y[rows])
        weights.append(torch.cat([p.detach().flatten() for p in model.network.parameters()]))
    moved = float((weights[1] - weights[0]).norm())
    assert moved == pytest.approx(0.5 * 0.3 / 600, rel=1e-3)


@pytest.mark.parametrize("wrong", [{"batch_size": 601}, {"clip": 0.0}])
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InvalidInput, match=rf"`baseline\.{next(iter(wrong))}` must be "):
        linear(**wrong)
