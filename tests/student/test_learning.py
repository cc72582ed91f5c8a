"""Every objective learns from released labels of each kind, and from probabilities."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from labelwall.student.batches import Lesson, Pool, Steps, targets
from labelwall.student.student_config import StudentConfig
from labelwall.student.student_model import outputs
from labelwall.student.train import check
from labelwall.wall.errors import InvalidInput
from labelwall.wall.label_kinds import ClassLabels
from tests.student import cases
from tests.student.cases import ATTRIBUTES, CONFIG, TASKS, TrainedStudent

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
    for x, y, everyone in Steps(task.lesson, CONFIG, 0, range(5)):
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


POOL = Pool(cases.VECTORS, ClassLabels.of(cases.CLASSES))
NONE = np.full(len(cases.VECTORS), -1)
LINEAR = replace(cases.CONFIG, backbone="linear", objective="supervised", batch_labelled=32)
TEACHER = cases.VECTORS @ np.random.default_rng(5).normal(size=(8, cases.CLASSES)) / 2
SOFT = torch.from_numpy(TEACHER).softmax(dim=1).numpy().astype(np.float32)  # a linear one's, [n, c]


def _train(
    run_dir: Path,
    config: StudentConfig = LINEAR,
    soft: np.ndarray | None = SOFT,
    labels: np.ndarray = NONE,
) -> TrainedStudent:
    lesson = Lesson(pool=POOL, labels=labels, chances=soft)
    return cases.trained(config, lesson, run_dir=run_dir, seed=4)


def _probabilities(trained: TrainedStudent, backbone: str = "linear") -> np.ndarray:
    logits = outputs(POOL.spec(backbone, trained.weights), cases.VECTORS)
    return torch.from_numpy(logits).softmax(dim=1).numpy()


def test_a_linear_student_becomes_its_linear_teacher(tmp_path: Path) -> None:
    """Its probabilities, not its labels alone; gce, the default loss, would sharpen them."""
    config = replace(LINEAR, steps=300, learning_rate=2e-2)
    learned = _probabilities(_train(tmp_path / "soft", config))
    assert np.abs(learned - SOFT).mean() < 0.03
    hard = _train(tmp_path / "hard", config, soft=None, labels=SOFT.argmax(axis=1))
    assert np.abs(_probabilities(hard) - SOFT).mean() > 0.1


@pytest.mark.parametrize(("objective", "backbone"), [("vat", "mlp"), ("uda", "linear")])
def test_other_objectives_learn_probabilities(objective, backbone, tmp_path: Path) -> None:
    # The teacher's border is where many rows are: neither entropy nor a wide margin fits it.
    config = replace(LINEAR, learning_rate=2e-2, vat_epsilon=0.3, entropy_weight=0.0)
    config = replace(config, objective=objective, backbone=backbone)
    learned = _probabilities(_train(tmp_path, config), backbone)
    assert (learned.argmax(axis=1) == SOFT.argmax(axis=1)).mean() > 0.85


def test_probabilities_replace_labels_row_by_row() -> None:
    soft = SOFT[:4].copy()
    soft[[1, 2]] = np.nan
    labels, shares = targets(np.array([2, 1, -1, -1]), soft)
    most_probable = SOFT[:4].argmax(axis=1)
    np.testing.assert_array_equal(labels, [most_probable[0], 1, -1, most_probable[3]])
    assert shares.dtype == np.float32
    np.testing.assert_array_equal(shares[[0, 3]], SOFT[[0, 3]])
    np.testing.assert_array_equal(shares[1], [0, 1, 0])


def test_without_probabilities_nothing_changes(tmp_path: Path) -> None:
    labels = cases.LABELS
    usual = _train(tmp_path / "usual", soft=None, labels=labels).weights
    unwanted = _train(tmp_path / "unwanted", replace(LINEAR, soft=False), labels=labels).weights
    assert usual == unwanted
    assert usual != _train(tmp_path / "soft", labels=labels).weights
    assert (tmp_path / "usual" / "checkpoints" / "last.ckpt").exists()


def test_a_training_never_continues_one_that_learned_others(tmp_path: Path) -> None:
    _train(tmp_path / "folder")
    others = SOFT[:, ::-1].copy()
    again = _train(tmp_path / "folder", soft=others)
    assert again.weights == _train(tmp_path / "fresh", soft=others).weights
