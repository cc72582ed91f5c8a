"""What a student of vectors is taught beside the public rows, in whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from scipy.special import softmax

from labelwall import pipeline
from labelwall.experiment.linear import model
from labelwall.experiment.linear.model import virtual_rows
from labelwall.experiment.run import training
from tests.experiment import tiny

CONFIG = """
data: {source: arrays, path: data.npz}
budget: {epsilon: 1000.0, delta: 1.0e-5}
mechanism: {kind: private_linear, steps: 2, noise_multiplier: 0.5}
rounds: [{}]
student:
  {backbone: mlp, objective: supervised, steps: 5, batch_labelled: 16, batch_unlabelled: 16,
   doubtful_folds: 0}
threads: 1
workers: 1
"""
RUN = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet"]
Taught = dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]]


@pytest.fixture
def taught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Taught:
    """(inputs, labels, probabilities) that a training, or a choice of a temperature, has seen."""
    tiny.write(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model, "VIRTUAL_ROWS", 500)
    found: Taught = {"train": [], "temperature": []}

    def noted(name: str) -> None:
        does = getattr(training, name)

        def note(config: Any, pool: Any, labels: np.ndarray, **rest: Any) -> Any:
            found[name].append((pool.inputs, labels, rest["soft"]))
            return does(config, pool, labels, **rest)

        monkeypatch.setattr(training, name, note)

    noted("train")
    noted("temperature")
    return found


@pytest.mark.parametrize("backbone", ["mlp", "linear"])
def test_a_student_of_vectors_learns_what_the_classifier_says_of_virtual_rows(
    taught: Taught, backbone: str
) -> None:
    assert pipeline.main([*RUN, "--student.backbone", backbone]) == 0
    ((inputs, labels, soft),) = taught["train"]
    public = tiny.rows(40, 2)[0]
    mean = public.mean(axis=0) if backbone == "linear" else np.zeros(public.shape[1])
    deviation = public.std(axis=0) if backbone == "linear" else np.ones(public.shape[1])
    plain = inputs * deviation + mean
    np.testing.assert_allclose(plain[:40], public, atol=1e-4)
    assert len(inputs) == len(labels) == len(soft) == 540
    with np.load("out/round_1/answers.npz") as stored:
        asked = stored["rows"]
    assert np.array_equal(soft[asked], np.load("out/round_1/probabilities.npy"))

    with safetensors.safe_open("out/round_1/linear.safetensors", "numpy") as file:
        weights, bias = file.get_tensor("weights"), float(file.metadata()["bias"])
    features = np.rint(63 * plain[40:] / np.linalg.norm(plain[40:], axis=1, keepdims=True))
    logits = np.column_stack([features, np.full(500, bias)]) @ weights
    expected = softmax(logits, axis=1)
    assert abs(soft[40:] - expected).max() < 0.05  # a rounded entry may be another
    assert np.median(abs(soft[40:] - expected)) < 1e-5
    assert np.array_equal(labels[40:], soft[40:].argmax(axis=1))

    assert len(taught["temperature"]) == 1  # of the same student
    for seen, other in zip(taught["temperature"][0], taught["train"][0], strict=True):
        assert np.array_equal(seen, other)


@pytest.mark.parametrize("settings", [["--student.soft", "false"], ["--config", "votes.yaml"]])
def test_other_students_see_the_public_rows_alone(taught: Taught, settings: list[str]) -> None:
    linear = "{kind: private_linear, steps: 2, noise_multiplier: 0.5}"
    votes = "{kind: reverse_knn, centroids: 6, sigma: 0.5}"
    Path("votes.yaml").write_text(CONFIG.replace(linear, votes))
    assert pipeline.main([*RUN, *settings]) == 0
    ((inputs, labels, _),) = taught["train"]
    assert len(inputs) == len(labels) == 40


def test_virtual_rows_are_public_ones_moved_by_parts_of_differences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = np.array([[0.0, 5.0], [1.0, 5.0]], dtype=np.float32)
    found = virtual_rows(rows, 3)
    assert found.shape == (model.VIRTUAL_ROWS, 2)
    assert found.dtype == np.float32
    assert (found[:, 1] == 5).all()
    assert found[:, 0].min() == pytest.approx(-1, abs=0.01)
    assert found[:, 0].max() == pytest.approx(2, abs=0.01)
    assert np.array_equal(found, virtual_rows(rows, 3))
    assert not np.array_equal(found, virtual_rows(rows, 4))
    monkeypatch.setattr(model, "MAX_VIRTUAL", 100)
    assert virtual_rows(rows, 3).shape == (50, 2)
