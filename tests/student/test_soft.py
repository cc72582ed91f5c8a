"""Probabilities in the place of labels: learned by every objective and resumed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from labelwall.student.config import StudentConfig
from labelwall.student.data import Pool, targets
from labelwall.student.train import TrainedStudent, outputs, train
from labelwall.wall.label_kinds import ClassLabels
from tests.student import cases

POOL = Pool(cases.VECTORS, ClassLabels.of(cases.CLASSES))
NONE = np.full(len(cases.VECTORS), -1)
CONFIG = replace(cases.CONFIG, backbone="linear", objective="supervised", batch_labelled=32)
TEACHER = cases.VECTORS @ np.random.default_rng(5).normal(size=(8, cases.CLASSES)) / 2
SOFT = torch.from_numpy(TEACHER).softmax(dim=1).numpy().astype(np.float32)  # a linear one's, [n, c]


def _train(
    run_dir: Path, config: StudentConfig = CONFIG, soft: np.ndarray | None = SOFT, **changed: object
) -> TrainedStudent:
    arguments: dict = {"pool": POOL, "labels": NONE, "seed": 4}
    return train(config, run_dir=run_dir, soft=soft, **(arguments | changed))


def _probabilities(trained: TrainedStudent, backbone: str = "linear") -> np.ndarray:
    logits = outputs(POOL.spec(backbone, trained.weights), cases.VECTORS)
    return torch.from_numpy(logits).softmax(dim=1).numpy()


def test_a_linear_student_becomes_its_linear_teacher(tmp_path: Path) -> None:
    """Its probabilities, not its labels alone; gce, the default loss, would sharpen them."""
    config = replace(CONFIG, steps=300, learning_rate=2e-2)
    learned = _probabilities(_train(tmp_path / "soft", config))
    assert np.abs(learned - SOFT).mean() < 0.03
    hard = _train(tmp_path / "hard", config, soft=None, labels=SOFT.argmax(axis=1))
    assert np.abs(_probabilities(hard) - SOFT).mean() > 0.1


@pytest.mark.parametrize(
    ("objective", "backbone"), [("supervised", "linear"), ("vat", "mlp"), ("uda", "linear")]
)
def test_every_objective_learns_probabilities(
    objective: str, backbone: str, tmp_path: Path
) -> None:
    # The teacher's border is where many rows are: neither entropy nor a wide margin fits it.
    config = replace(CONFIG, learning_rate=2e-2, vat_epsilon=0.3, entropy_weight=0.0)
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
    given = {"labels": cases.LABELS}
    usual = _train(tmp_path / "usual", soft=None, **given).weights
    unwanted = _train(tmp_path / "unwanted", replace(CONFIG, soft=False), **given).weights
    assert usual == unwanted
    assert usual != _train(tmp_path / "soft", **given).weights
    assert (tmp_path / "usual" / "checkpoints" / "last.ckpt").exists()


def test_a_training_never_continues_one_that_learned_others(tmp_path: Path) -> None:
    _train(tmp_path / "folder")
    others = SOFT[:, ::-1].copy()
    again = _train(tmp_path / "folder", soft=others)
    assert again.weights == _train(tmp_path / "fresh", soft=others).weights
