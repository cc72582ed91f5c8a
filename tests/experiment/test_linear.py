"""private_linear in whole runs: a noisy sum a step, resumption at every step with the same weights,
artefacts that follow from the sums, predictions for nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from scipy.special import softmax

from labelwall import pipeline
from labelwall.experiment.config.settings import load_config
from labelwall.experiment.linear.model import with_neighbours
from labelwall.teacher.mechanisms.private_linear.mechanism import PrivateLinear
from labelwall.wall.messages import Outcome
from tests import ledgers
from tests.experiment import tiny

CONFIG = """
data: {source: arrays, path: data.npz}
budget: {epsilon: 1000.0, delta: 1.0e-5}
mechanism: {kind: private_linear, steps: 2, sigma: 0.5}
rounds: [{}, {}]
student:
  {backbone: mlp, objective: supervised, steps: 20, batch_labelled: 16, batch_unlabelled: 16,
   doubtful_folds: 2, doubtful_steps: 5}
batch_size: 16
threads: 1
workers: 1
"""
RUN = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.write(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def entries(kind: str, ledger: str = "out/ledger.sqlite") -> list[dict]:
    return ledgers.contents(Path(ledger), kind)


def test_two_rounds_end_to_end_planned_audited_and_resumed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["plan", "--config", "config.yaml", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [r["caps"] for r in plan["rounds"]] == [{"sum": 4}] * 2
    assert pipeline.main(RUN) == 0
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["epsilon"] == plan["epsilon"]
    charges = [(c["release"], c["count"]) for c in entries("charge")]
    assert charges == [("sum", 1)] * 4
    for number in (1, 2):
        with np.load(f"out/round_{number}/answers.npz") as stored:
            labels, rows = stored["labels"], stored["rows"]
        chances = np.load(f"out/round_{number}/probabilities.npy")
        assert chances.dtype == np.float32
        assert chances.shape == (40, tiny.CLASSES)
        assert np.array_equal(chances.argmax(axis=1), labels)
        np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-6)
        right = tiny.rows(40, 2)[1][rows] == labels
        assert right.mean() > 0.5  # three classes

    (folder / "out/round_2/metrics.json").unlink()  # as if killed before its end
    (folder / "out/round_2/answers.npz").unlink()
    assert pipeline.main(RUN) == 0
    assert len(entries("charge")) == 4  # the same weights: nothing is paid twice
    assert pipeline.main(["audit", "out/ledger.sqlite", "--json"]) == 0
    assert pipeline.main(["report", "out"]) == 0


def test_a_classifier_file_and_public_rows_are_enough_for_the_labels(folder: Path) -> None:
    assert pipeline.main(RUN) == 0
    with safetensors.safe_open("out/round_1/linear.safetensors", "numpy") as file:
        weights, metadata = file.get_tensor("weights"), file.metadata()
    assert metadata["extractor"] == entries("extractor")[0]["sha256"]
    with np.load("out/round_1/answers.npz") as stored:
        labels, rows = stored["labels"], stored["rows"]
    x = tiny.rows(40, 2)[0].astype(np.float64)[rows]
    features = np.clip(np.rint(63 * x / np.linalg.norm(x, axis=1, keepdims=True)), -63, 63)
    inputs = np.column_stack([features, np.full(len(x), float(metadata["bias"]))])
    chances = softmax(inputs @ weights, axis=1)
    nearest = with_neighbours(lambda _: chances, features.astype(np.int8))
    assert np.array_equal(nearest(features.astype(np.int8)).argmax(axis=1), labels)


def test_predictions_after_a_run_are_free_and_before_it_pay_its_steps(folder: Path) -> None:
    queries, labels = tiny.rows(30, 9)
    np.savez("q.npz", x=queries)
    predict = ["predict", "--config", "config.yaml", "--queries", "q.npz", "--quiet"]
    custody = ["--custodian_dir", "custody"]
    assert pipeline.main([*predict, "--out", "a.npz", *custody]) == 0
    first = json.loads(Path("a.receipt.json").read_text())
    assert (first["asked"], first["charged"]) == (2, {"sum": 2})
    with np.load("a.npz") as stored:
        before = stored["labels"]
        assert (before == labels).mean() > 0.5
        assert (stored["outcomes"] == Outcome.ANSWERED).all()
    assert pipeline.main([*RUN, *custody]) == 0
    shutil.rmtree("a.fit")
    assert pipeline.main([*predict, "--out", "b.npz", *custody]) == 0
    again = json.loads(Path("b.receipt.json").read_text())
    assert (again["served"], again["charged"]) == (2, {"sum": 0})
    assert again["left"] == {"sum": 0}
    with np.load("b.npz") as stored:
        assert np.array_equal(stored["labels"], before)


def test_rounds_of_several_mechanisms_and_a_budget_that_is_solved(folder: Path) -> None:
    """A sigma that is left out is solved, and is what the folder of a run has recorded."""
    solved = load_config(Path("config.yaml"))
    solved = replace(solved, mechanism=PrivateLinear())
    assert solved.plan().slots[0].mechanism["sigma"] > 0  # type: ignore[operator]
    own = "rounds: [{}, {mechanism: {kind: reverse_knn, cells: 6, sigma: 1.0}}]"
    Path("config.yaml").write_text(CONFIG.replace("rounds: [{}, {}]", own))
    several = [*RUN[:-2], "several", "--quiet"]
    assert pipeline.main(several) == 0
    charges = [c["release"] for c in entries("charge", "several/ledger.sqlite")]
    assert charges == ["sum", "sum", "histogram"]
    assert pipeline.main([*several, "--mechanism.sigma", "null"]) == 0
    assert len(entries("charge", "several/ledger.sqlite")) == 3


def test_a_cap_that_ends_the_steps_leaves_the_classifier_of_those_before(folder: Path) -> None:
    Path("config.yaml").write_text(CONFIG.replace("rounds: [{}, {}]", "rounds: [{}]"))
    assert pipeline.main([*RUN, "--caps.asked", "1"]) == 0
    assert Path("out/round_1/linear.safetensors").exists()
    metrics = json.loads(Path("out/round_1/metrics.json").read_text())
    assert (metrics["answered"], metrics["cap_reached"]) == (40, 0)
