"""Labelled public rows as boosted trees: a whole run, continued, used and exported; what is offered
and said with and without labels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from labelwall import pipeline
from labelwall.experiment.config.config import Config
from labelwall.experiment.plan import search as auto
from labelwall.experiment.plan.planner import Goal
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student.asking import boosted as boosting
from labelwall.student.linear.tuning import FOLDS
from labelwall.student.round_files import CLASSIFIER, FEATURES
from labelwall.student.student_model import load_student
from labelwall.teacher.custody.groups import RoundConfig
from labelwall.teacher.mechanisms.registry import Auto
from labelwall.teacher.mechanisms.sums import PrivateLinear
from labelwall.wall import networks
from labelwall.wall.datasets.data_config import DataConfig, PublicData, Task
from labelwall.wall.label_kinds import label_space
from labelwall.wall.progress import no_progress
from tests.experiment import checks, tiny

LINEAR = {"kind": "private_linear", "steps": 6, "noise_multiplier": 2.0, "axes": 8}
SETTINGS = {"mechanism": LINEAR, "caps": None, "rounds": [{}], "custodian_dir": "custody"}
SETTINGS |= {"features": "trees", "public_labels": "train"}
PUBLIC = 240


def bent(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of two classes that no line parts: float32 [n, 8], int64 [n]."""
    x = np.random.default_rng(seed).normal(size=(n, tiny.DIMENSIONS)).astype(np.float32)
    return x, ((x[:, 0] > 0.3) != (x[:, 1] > -0.3)).astype(np.int64)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch) -> None:
    """Of the boosting, in a smaller network."""
    monkeypatch.setattr(boosting, "STEPS", 15)
    monkeypatch.setattr(networks, "TREES", (15 * FOLDS, networks.TREES[1]))


@pytest.fixture
def folder(folder: Path) -> Path:
    tiny.configure(**SETTINGS)
    rows = {f"{split}_{k}": v for split, n, seed in (
        ("private", 900, 1), ("public", PUBLIC, 2), ("test", 300, 3),
    ) for k, v in zip("xy", bent(n, seed), strict=True)}  # fmt: skip
    np.savez("data.npz", **rows)
    np.savez("q.npz", x=bent(30, 9)[0])
    return folder


def test_a_run_learns_bent_classes_and_is_continued_used_and_exported(folder: Path, capsys) -> None:
    assert pipeline.main(list(checks.RUN[:-1])) == 0
    said, told, out = capsys.readouterr().err, checks.summary(), RunFolder(Path("out"))
    assert "public labels alone: " in said
    assert told["test_accuracy"] > 0.85
    name, share = told["baselines"]["public"]
    assert name in ("boosted trees", "logistic regression on trees features")
    assert 0.8 < share < 1
    student, (x, y) = load_student("out"), bent(300, 3)
    assert student.info.backbone == "released/trees"
    assert (student.predict(x) == y).mean() == pytest.approx(told["test_accuracy"])
    export = ["export", "--student", "out", "--format", "onnx", "--out", "own.onnx"]
    assert pipeline.main(export) == 0
    session = onnxruntime.InferenceSession("own.onnx", providers=["CPUExecutionProvider"])
    (likely,) = session.run(None, {"inputs": x})
    np.testing.assert_allclose(likely, student.probabilities(x), rtol=1e-3, atol=1e-4)
    weights = (out.path / "student.safetensors").read_bytes()
    for file in ("metrics.json", "answers.npz", FEATURES, CLASSIFIER):  # killed after the charges
        (out.round(1) / file).unlink()
    out.summary.unlink()
    checks.check_known(told["ledger_head"])
    assert (out.path / "student.safetensors").read_bytes() == weights


def test_trees_without_labels_that_are_learned_are_one_line(folder: Path, capsys) -> None:
    for options in (["--public_labels", "metrics"], ["--mechanism", "{kind: auto}"]):
        with np.load("data.npz") as stored:
            rows = {name: stored[name] for name in stored if name != "public_y"}
        np.savez("data.npz", **rows)
        mentioned = "at least 100 labelled public rows of at most 128 columns"
        checks.check_one_error([*checks.RUN, *options], mentioned, capsys)
    assert not Path("custody", "ledger.sqlite").exists()


@pytest.mark.parametrize("learned", [True, False])
def test_trees_are_rehearsed_where_labels_are_learned_alone(learned: bool, monkeypatch) -> None:
    """Classes that no line parts, 15% of them wrong: no forecast is above what is possible."""
    few = {"AXES": (8,), "ONE_STEP_AXES": (), "WHITENED": (), "REFINED": 1, "FINAL": 2, "FRESH": 4}
    for name, tried in few.items():
        monkeypatch.setattr(f"labelwall.experiment.plan.tuning.{name}", tried)
    (x, y), (tx, ty) = bent(400, 2), bent(300, 3)
    y = y ^ (np.random.default_rng(0).random(len(y)) < 0.15)
    data = DataConfig("arrays", path="-")
    public = PublicData(inputs=x, labels=y, test_inputs=tx, test_labels=ty)
    config = Config(data=data, rounds=[RoundConfig()], mechanism=Auto())
    config = replace(config, public_labels="train" if learned else "metrics", features="auto")
    task = Task(label_space("class", ["a", "b"], []), x.shape[1:])
    goal = Goal(1.0, 1e-5, expected_records=2_000, queries=len(x), rounds=1)
    found = auto.search(config.public_side(), task, public, goal, [PrivateLinear()], no_progress)
    tried = {choice.view.features for choice in found.tried}
    assert tried == {"raw", "fourier", "bins", "box"} | ({"trees"} if learned else set())
    assert (found.chosen.view.features == "trees") is learned
    if learned:
        assert 0.7 < found.chosen.accuracy < 0.87
