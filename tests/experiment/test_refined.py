"""Whole runs in which a pretrained student's features make the next round's labels."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import labelwall as lw
from labelwall.experiment.config.settings import config_of
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.experiment.use.export import export
from labelwall.experiment.whole_run import run
from labelwall.student.fine_tuning import Layer
from labelwall.student.linear.stored import stored_layer
from labelwall.student.module import Student
from labelwall.student.round_files import CLASSIFIER
from labelwall.student.student_model import outputs, penultimate_features
from labelwall.wall.console import Console
from labelwall.wall.errors import InvalidInput
from labelwall.wall.networks import without_head
from labelwall.wall.preprocessing import Preprocessing
from tests.seeded_noise import SeededNoise

MODEL, SHAPE, CLASSES = "test_efficientnet", (16, 16, 3), 3
COLOURS = np.array([[180, 110, 110], [110, 180, 110], [110, 110, 180]])
STUDENT = {
    "backbone": "pretrained",
    "objective": "fixmatch",
    "augment": "natural",
    "steps": 110,
    "batch_labelled": 8,
    "learning_rate": 3e-3,
    "image_side": 32,
    "trained_blocks": 2,
    "kept_views": 4,
}


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng, labels = np.random.default_rng(seed), np.arange(count) % CLASSES
    noise = rng.integers(-60, 60, (count, *SHAPE))
    return (COLOURS[labels][:, None, None] + noise).astype(np.uint8), labels


@pytest.fixture
def settings(tmp_path: Path) -> dict:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = without_head(f"pretrained/{MODEL}", SHAPE, CLASSES).train()
        with torch.no_grad():
            for _ in range(5):
                network(Preprocessing((0.5,) * 3, (0.25,) * 3)(images(16, 9)[0]))
    inner = network.trunk.get_submodule("network").state_dict()
    weights = {name: tensor.contiguous() for name, tensor in inner.items()}
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    arrays = {}
    for seed, (name, count) in enumerate({"private": 90, "public": 420, "test": 40}.items()):
        arrays[f"{name}_x"], arrays[f"{name}_y"] = images(count, seed)
    del arrays["public_y"]
    np.savez(tmp_path / "data.npz", **arrays)
    mechanism = {"kind": "private_linear", "steps": 3, "axes": 8}
    return {
        "data": {"source": "arrays", "path": str(tmp_path / "data.npz")},
        "budget": {"epsilon": 200.0, "delta": 1e-5},
        "rounds": [{"mechanism": mechanism}, {"mechanism": mechanism}],
        "features": f"timm/{MODEL}",
        "weights": str(tmp_path / "model.safetensors"),
        "expected_records": 90,
        "threads": 1,
        "student": STUDENT,
    }


def ran(settings: dict, folder: Path) -> dict:
    run(config_of(settings), folder, entropy=SeededNoise(1), console=Console(quiet=True))
    return json.loads((folder / "summary.json").read_text())


def test_a_loop_that_is_killed_in_the_training_ends_with_the_same_student(
    settings: dict, tmp_path: Path, monkeypatch
) -> None:
    whole, original = ran(settings, tmp_path / "whole"), Student.training_step
    first, second = whole["rounds"]
    beside = f"beside/pretrained/{MODEL}@32"
    assert [first["extractor"], second["extractor"]] == [f"pretrained/{MODEL}", beside]
    assert [first["taught"], second["taught"]] == [True, False]
    assert second["features_of"] == 1
    assert whole["test_accuracy"] > 0.9

    def killed(self: Student, batch: object, index: int) -> torch.Tensor:
        if self.global_step == 105:
            raise InterruptedError
        return original(self, batch, index)

    monkeypatch.setattr(Student, "training_step", killed)
    with pytest.raises(InterruptedError):
        ran(settings, tmp_path / "killed")
    assert (tmp_path / "killed/round_1/views.npy").exists()
    monkeypatch.setattr(Student, "training_step", original)
    ran(settings, tmp_path / "killed")
    files = ["round_1/student.safetensors", "round_2/student.safetensors"]
    for file in files:
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    left = {path.name for path in (tmp_path / "killed").rglob("*")}
    assert not left & {"views.npy", "views.part", "checkpoints"}

    run_folder, rows = RunFolder(tmp_path / "whole"), images(30, 7)[0]
    asked = run_folder.extractor(second["features"])
    taught = run_folder.load_extractor(1).without_mirror()
    plain = partial(penultimate_features, taught)
    with np.load(tmp_path / "data.npz") as data:
        stored = stored_layer(run_folder.round(2) / CLASSIFIER)
        assert stored is not None
        layer = Layer.released(stored, asked, plain(data["public_x"]))

    def expected(seen: np.ndarray) -> np.ndarray:
        return (plain(seen) @ layer.weights + layer.constant + outputs(taught, seen)) / 2

    said, both = outputs(run_folder.load_extractor(2), rows), (rows, rows[:, :, ::-1].copy())
    np.testing.assert_allclose(said, np.mean([*map(expected, both)], 0), rtol=1e-3, atol=1e-3)

    student = lw.load(tmp_path / "whole").student
    assert student.info.backbone == f"beside/mirrored/pretrained/{MODEL}@32"
    assert (student.predict(images(30, 7)[0]) == images(30, 7)[1]).mean() > 0.9
    assert "8 rows" in export(student, tmp_path / "whole", "onnx", tmp_path / "x.onnx", "uint8")


def test_a_student_that_forgot_its_labels_is_not_kept(settings, tmp_path) -> None:
    """The next round asks with the first features again."""
    forgets = settings | {"student": STUDENT | {"learning_rate": 0.5}}
    first, second = ran(forgets, tmp_path / "forgets")["rounds"]
    assert not first["taught"]
    assert second["features_of"] == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"features": "hog", "weights": None}, r"student\.backbone"),
        ({"student": STUDENT | {"image_side": 8}}, r"student\.image_side"),
        ({"student": STUDENT | {"kept_views": 0}}, r"student\.kept_views"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_asked(
    settings, tmp_path, changed, message
) -> None:
    with pytest.raises(InvalidInput, match=message):
        ran(settings | changed, tmp_path / "out")
    assert not (tmp_path / "out/ledger.sqlite").exists()


def test_labels_by_votes_teach_it_and_its_features_vote(settings, tmp_path: Path) -> None:
    """Their doubtful ones are judged by the features as they are."""
    votes = {"kind": "reverse_knn", "centroids": 12}
    settings |= {"mechanism": votes, "rounds": [{}, {}]}
    told = ran(settings | {"student": STUDENT | {"steps": 40}}, tmp_path / "votes")
    assert [entry["taught"] for entry in told["rounds"]] == [True, True]
    assert told["rounds"][1]["features_of"] == 1
    assert told["test_accuracy"] > 0.6
