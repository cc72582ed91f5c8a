"""Every objective learns from released labels of each kind: classes, partly said attributes, noisy
steps between bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from labelwall.student.config import StudentConfig
from labelwall.student.data import Steps
from labelwall.student.train import check, predict
from labelwall.wall.errors import InvalidInput
from labelwall.wall.label_kinds import STEPS
from labelwall.wall.networks import build, to_safetensors
from tests.student import cases
from tests.student.cases import ATTRIBUTES, CONFIG, SCALE, TASKS

LEARN = [  # kind of label, objective, changed settings, whether only slow tests do it
    ("classes", "supervised", {"class_prior": "uniform"}, False),
    ("classes", "vat", {}, False),
    ("classes", "uda", {}, False),
    ("classes", "supervised", {}, True),
    ("classes", "vat", {"class_prior": "uniform"}, True),
    ("classes", "uda", {"class_prior": "uniform"}, True),
    ("attributes", "supervised", {"loss": "gce"}, False),
    ("attributes", "vat", {"loss": "cross_entropy"}, False),
    ("attributes", "uda", {"loss": "gce"}, False),
    ("attributes", "supervised", {"loss": "cross_entropy"}, True),
    ("attributes", "vat", {"loss": "gce"}, True),
    ("attributes", "uda", {"loss": "cross_entropy"}, True),
    *(("values", objective, {"vat_epsilon": 0.3}, False) for objective in ("supervised", "vat")),
    ("values", "uda", {}, False),
]
SURE = {"classes": 0.85, "attributes": 0.8}  # 70% of attributes are right by the frequent answer


@pytest.mark.parametrize(
    ("kind", "objective", "changed"),
    [pytest.param(*case, marks=[pytest.mark.slow] if slow else []) for *case, slow in LEARN],
)
def test_every_objective_learns(kind: str, objective: str, changed: dict, tmp_path: Path) -> None:
    task = TASKS[kind]
    trained = task.train(tmp_path, replace(CONFIG, objective=objective, **changed))
    predicted, last = task.predicted(trained), trained.history[-1]
    assert predicted.shape == task.test_y.shape
    if kind == "values":
        rmse = float(np.sqrt(((predicted - task.test_y) ** 2).mean()))
        assert predicted.dtype == np.float64
        assert rmse < 0.5 * task.test_y.std()
        assert last["rmse/test"] == pytest.approx(rmse, rel=1e-4)
        assert last["r2/test"] == pytest.approx(1 - rmse**2 / task.test_y.var(), abs=1e-4)
    else:
        accuracy = float((predicted == task.test_y).mean())
        assert accuracy > SURE[kind]
        assert last["accuracy/test"] == pytest.approx(accuracy, abs=1e-6)
    assert [row["step"] for row in trained.history] == [100, 200, 230]
    json.dumps(trained.history, allow_nan=False)


def test_a_last_batch_of_one_test_row_counts_like_the_others(tmp_path: Path) -> None:
    """Test rows come in batches of 500, and of one row alone there is no R2."""
    x, y = cases.values(7, 501)
    task = replace(TASKS["values"], test_x=x, test_y=y)
    trained = task.train(tmp_path, replace(CONFIG, steps=1))
    expected = 1 - ((task.predicted(trained) - task.test_y) ** 2).mean() / task.test_y.var()
    assert trained.history[-1]["r2/test"] == pytest.approx(expected, abs=1e-4)


def test_outputs_outside_the_bounds_are_clipped() -> None:
    # Far out a network is almost linear
    x = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32) * 1e4
    torch.manual_seed(0)
    weights = to_safetensors(build("mlp", input_shape=(5,), num_classes=1))
    predicted = predict(TASKS["values"].pool.spec("mlp", weights), x, SCALE)
    assert predicted.min() >= SCALE.low
    assert predicted.max() <= SCALE.high
    assert {SCALE.low, SCALE.high} & set(predicted.tolist())


def test_a_batch_holds_rows_with_a_label_for_some_attribute() -> None:
    task = TASKS["attributes"]
    for x, y, everyone in Steps(task.pool, task.labels, CONFIG, seed=0, first=0, count=5):
        assert (y.shape, x.shape, everyone.shape) == ((16, ATTRIBUTES), (16, 6), (24, 6))
        assert (y >= 0).any(dim=1).all()
        assert (y == -1).any()


def test_rows_with_values_do_not_take_turns() -> None:
    """A rare step is not asked more often than others: of 400 draws from 10 rows a row of its own
    class would have half."""
    labels = np.full(240, -1)
    labels[:10] = [7, *[STEPS] * 9]
    steps = Steps(TASKS["values"].pool, labels, CONFIG, seed=0, first=0, count=25)
    drawn = [y for _, y, _ in steps]
    assert all(y.shape == (16,) for y in drawn)
    assert 10 < sum(int((y == 7).sum()) for y in drawn) < 90


@pytest.mark.parametrize("kind", ["attributes", "values"])
def test_a_class_prior_is_for_classes(kind: str) -> None:
    pool = TASKS[kind].pool
    with pytest.raises(InvalidInput, match=r"student\.class_prior"):
        check(replace(CONFIG, class_prior="uniform"), pool.inputs.shape[1:], pool.labels)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("entropy_weight", -1),
        ("doubtful_folds", 1),
        ("calibration_folds", 1),
    ],
)
def test_configuration_names_the_broken_rule(field: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=rf"student\.{field}"):
        replace(StudentConfig(), **{field: value})
