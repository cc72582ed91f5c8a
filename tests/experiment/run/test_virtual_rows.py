"""What a student of vectors is taught beside the public rows, in whole runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from scipy.special import softmax

from labelwall.experiment.linear import model
from labelwall.experiment.linear.model import virtual_rows
from labelwall.experiment.run import training
from tests.experiment import tiny
from tests.experiment.checks import QUICK, run, stored

LINEAR = "--mechanism.kind=private_linear --mechanism.steps=2 --mechanism.noise_multiplier=0.5"
VOTES = "--mechanism.kind=reverse_knn --mechanism.centroids=6 --mechanism.sigma=0.5"
Taught = list[tuple[np.ndarray, np.ndarray, np.ndarray]]


@pytest.fixture
def taught(folder: Path, monkeypatch) -> Taught:
    """(inputs, labels, probabilities) that the training has seen."""
    tiny.configure(caps=None, rounds=[{}])
    monkeypatch.setattr(model, "VIRTUAL_ROWS", 500)
    found: Taught = []
    learns = training.train

    def note(config: Any, pool: Any, labels: np.ndarray, **rest: Any) -> Any:
        found.append((pool.inputs, labels, rest["soft"]))
        return learns(config, pool, labels, **rest)

    monkeypatch.setattr(training, "train", note)
    return found


@pytest.mark.parametrize("backbone", ["mlp", "linear"])
def test_a_student_of_vectors_learns_what_the_classifier_says_of_virtual_rows(
    taught: Taught, backbone: str
) -> None:
    assert run(*QUICK, *LINEAR.split(), "--student.steps=5", f"--student.backbone={backbone}") == 0
    ((inputs, labels, soft),) = taught  # once in a run
    public = tiny.rows(40, 2)[0]
    np.testing.assert_array_equal(inputs[:40], public)
    assert len(inputs) == len(labels) == len(soft) == 540
    rows = stored("out/round_1/answers.npz")["rows"]
    assert np.array_equal(soft[rows], np.load("out/round_1/probabilities.npy"))
    with safetensors.safe_open("out/round_1/linear.safetensors", "numpy") as file:
        weights, bias = file.get_tensor("weights"), float(file.metadata()["bias"])
    inputs = np.column_stack([tiny.integers(inputs[40:]), np.full(500, bias)])
    expected = softmax(inputs @ weights, axis=1)
    assert abs(soft[40:] - expected).max() < 0.05  # a rounded entry may be another
    assert np.median(abs(soft[40:] - expected)) < 1e-5
    assert np.array_equal(labels[40:], soft[40:].argmax(axis=1))


@pytest.mark.parametrize("settings", [f"{LINEAR} --student.soft=false", VOTES])
def test_other_students_see_the_public_rows_alone(taught: Taught, settings: str) -> None:
    assert run(*QUICK, *settings.split(), "--student.steps=5") == 0
    assert [len(part) for part in taught[0][:2]] == [40, 40]


def test_virtual_rows_are_public_ones_moved_by_parts_of_differences(
    monkeypatch,
) -> None:
    rows = np.array([[0.0, 5.0], [1.0, 5.0]], dtype=np.float32)
    found = virtual_rows(rows, 3)
    assert (found.shape, found.dtype) == ((model.VIRTUAL_ROWS, 2), np.float32)
    assert (found[:, 1] == 5).all()
    assert (found[:, 0].min(), found[:, 0].max()) == pytest.approx((-1, 2), abs=0.01)
    assert np.array_equal(found, virtual_rows(rows, 3))
    assert not np.array_equal(found, virtual_rows(rows, 4))
    monkeypatch.setattr(model, "MAX_VIRTUAL", 100)
    assert virtual_rows(rows, 3).shape == (50, 2)
