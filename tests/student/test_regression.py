"""The student of real values: squared losses, learning from noisy steps, errors in the values' own
unit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from labelwall.student import losses
from labelwall.student.config import StudentConfig
from labelwall.student.data import Pool, Steps
from labelwall.student.drop_doubtful import drop_doubtful
from labelwall.student.export import export
from labelwall.student.train import check, predict, train
from labelwall.wall.errors import InvalidInput
from labelwall.wall.labels.values import STEPS, ValueLabels

SCALE = ValueLabels(-50.0, 150.0)
CONFIG = StudentConfig(
    backbone="mlp",
    steps=250,
    batch_labelled=16,
    batch_unlabelled=24,
    vat_epsilon=0.3,
)


def _rows(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors, and a bent function of two of their entries."""
    x = np.random.default_rng(seed).normal(size=(n, 5)).astype(np.float32)
    return x, 40.0 + 30.0 * np.tanh(x[:, 0].astype(np.float64)) + 15.0 * x[:, 1]


PUBLIC_X, PUBLIC_Y = _rows(0, 240)
TEST_X, TEST_Y = _rows(1, 200)
POOL = Pool(PUBLIC_X, SCALE)
NOISY = SCALE.steps(PUBLIC_Y + np.random.default_rng(2).normal(size=240) * 8)
LABELS = np.where(np.arange(240) < 120, NOISY, -1)


@pytest.mark.parametrize("objective", ["supervised", "vat", "uda"])
def test_every_objective_learns_from_noisy_steps(objective: str, tmp_path: Path) -> None:
    config = replace(CONFIG, objective=objective)
    trained = train(config, POOL, LABELS, run_dir=tmp_path, seed=4, test_x=TEST_X, test_y=TEST_Y)
    found = predict(export(POOL, "mlp", trained.weights), TEST_X, SCALE)
    rmse = float(np.sqrt(((found - TEST_Y) ** 2).mean()))
    assert found.dtype == np.float64
    assert rmse < 0.5 * TEST_Y.std()
    assert trained.history[-1]["rmse/test"] == pytest.approx(rmse, rel=1e-4)
    assert trained.history[-1]["r2/test"] == pytest.approx(1 - rmse**2 / TEST_Y.var(), abs=1e-4)


def test_a_last_batch_of_one_test_row_counts_like_the_others(tmp_path: Path) -> None:
    """Test rows come in batches of 500, and of one row alone there is no R2."""
    x, y = _rows(7, 501)
    trained = train(
        replace(CONFIG, steps=1), POOL, LABELS, run_dir=tmp_path, seed=4, test_x=x, test_y=y
    )
    found = predict(export(POOL, "mlp", trained.weights), x, SCALE)
    assert trained.history[-1]["r2/test"] == pytest.approx(
        1 - ((found - y) ** 2).mean() / y.var(), abs=1e-4
    )


def test_outputs_outside_the_bounds_are_clipped() -> None:
    # Far out a network is almost linear
    x = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32) * 1e4
    from labelwall.wall.networks.architectures import build, to_safetensors

    torch.manual_seed(0)
    weights = to_safetensors(build("mlp", input_shape=(5,), num_classes=1))
    found = predict(POOL.spec("mlp", weights), x, SCALE)
    assert found.min() >= SCALE.low
    assert found.max() <= SCALE.high
    assert {SCALE.low, SCALE.high} & set(found.tolist())


def test_batches_hold_released_steps_and_rows_do_not_take_turns() -> None:
    """A rare step is not asked more often than others: of 400 draws from 10 rows a row of its own
    class would have half."""
    labels = np.full(240, -1)
    labels[:10] = [7, *[STEPS] * 9]
    drawn = [y for _, y, _ in Steps(POOL, labels, CONFIG, seed=0, first=0, count=25)]
    assert all(y.shape == (16,) for y in drawn)
    assert 10 < sum(int((y == 7).sum()) for y in drawn) < 90


def test_the_squared_difference_is_what_virtual_adversarial_training_raises() -> None:
    """Of a linear map the worst direction is its own: the loss is (epsilon |w|)^2."""
    w = torch.tensor([[3.0, 4.0, 0.0]])
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    value = losses.virtual_adversarial_loss(
        lambda rows: rows @ w.T,
        x,
        x @ w.T,
        epsilon=0.5,
        xi=0.1,
        iterations=1,
        directions=torch.randn(6, 3, generator=torch.Generator().manual_seed(1)),
        divergence=losses.squared_difference,
    )
    torch.testing.assert_close(value, torch.tensor(0.25 * 25.0), rtol=1e-4, atol=1e-4)
    assert losses.squared_difference(x, x + 2.0) == pytest.approx(4 * 18)


def test_values_are_not_pruned_and_have_no_class_prior() -> None:
    np.testing.assert_array_equal(drop_doubtful(CONFIG, POOL, LABELS, seed=3).labels, LABELS)
    with pytest.raises(InvalidInput, match=r"student\.class_prior"):
        check(replace(CONFIG, class_prior="uniform"), (5,), SCALE)
