"""Every objective learns from released labels of each kind: classes, partly said attributes, noisy
steps between bounds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.student.data import Steps
from labelwall.student.train import check
from labelwall.wall.errors import InvalidInput
from tests.student import cases
from tests.student.cases import ATTRIBUTES, CONFIG, TASKS

LEARN = [  # kind of label, objective, changed settings
    ("classes", "supervised", {"class_prior": "uniform"}),
    ("classes", "vat", {"class_prior": "uniform"}),
    ("classes", "uda", {}),
    ("attributes", "supervised", {"loss": "gce"}),
    ("attributes", "vat", {"loss": "cross_entropy"}),
    ("attributes", "uda", {"loss": "gce"}),
    ("values", "supervised", {}),
    ("values", "vat", {"vat_epsilon": 0.3}),
    ("values", "uda", {}),
]
SURE = {"classes": 0.85, "attributes": 0.8}  # 70% of attributes are right by the frequent answer


@pytest.mark.parametrize(("kind", "objective", "changed"), LEARN)
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


def test_a_batch_holds_rows_with_a_label_for_some_attribute() -> None:
    task = TASKS["attributes"]
    for x, y, everyone in Steps(task.pool, task.labels, CONFIG, seed=0, first=0, count=5):
        assert (y.shape, x.shape, everyone.shape) == ((16, ATTRIBUTES), (16, 6), (24, 6))
        assert (y >= 0).any(dim=1).all()
        assert (y == -1).any()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("steps", 0), ("learning_rate", 0.0), ("learning_rate", float("nan"))),
        *(("entropy_weight", -1), ("doubtful_folds", 1), ("class_prior", "uniform")),
    ],
)
def test_configuration_names_the_broken_rule(field: str, value: float) -> None:
    pool = TASKS["attributes"].pool  # a class prior is for classes
    with pytest.raises(InvalidInput, match=rf"student\.{field}"):
        check(replace(CONFIG, **{field: value}), pool.inputs.shape[1:], pool.labels)
