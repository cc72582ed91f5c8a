"""private_linear in whole runs: a noisy sum a step, resumption at every step with the same weights,
artefacts that follow from the sums, predictions for nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from labelwall import pipeline
from labelwall.experiment.config.settings import load_config
from labelwall.experiment.run.fitted import Question
from labelwall.experiment.run.linear_model import LinearModel
from labelwall.experiment.run.linear_round import fit_weights
from labelwall.experiment.run.smoothing import with_neighbours
from labelwall.teacher.mechanisms.private_linear import PrivateLinear
from labelwall.wall.matrix import Matrix, NoisyCounts
from labelwall.wall.messages import ABSTAINED, Outcome, Receipt
from labelwall.wall.weights import CLIP, COUNT, Weights, residual_unit
from tests import ledgers
from tests.experiment import tiny

CONFIG = """
data: {source: arrays, path: data.npz}
budget: {epsilon: 1000.0, delta: 1.0e-5}
mechanism: {kind: private_linear, steps: 2, sigma: 0.5}
rounds: [{}, {}]
student:
  {backbone: mlp, objective: supervised, steps: 20, batch_labelled: 16, batch_unlabelled: 16,
   prune_folds: 2, prune_steps: 5}
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


class Killed(BaseException):
    """As if the process ended here."""


def question(folder: Path, count: Callable[[Matrix], NoisyCounts]) -> Question:
    x, _ = tiny.rows(60, 3)
    features = np.rint(63 * x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.int8)
    asked = PrivateLinear(steps=3, sigma=0.5).query_form
    return Question(count, features, 63.0, tiny.CLASSES, asked, 0, 0, "e" * 64, folder)


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
def test_a_round_that_is_killed_at_any_step_sends_the_same_weights_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, answered: bool
) -> None:
    """Before the teacher is asked, and after it answered but before the answer is used.

    Later the same weights would come out otherwise.
    """
    sent: list[bytes] = []
    killed = False

    def count(matrix: Matrix) -> NoisyCounts:
        nonlocal killed
        at = len(set(sent)) + 1
        if at == step and not killed and not answered:
            killed = True
            raise Killed
        sent.append(matrix.entries.tobytes())
        if at == step and not killed:
            killed = True
            raise Killed
        sums = np.random.default_rng(list(sent[-1])).integers(-(10**8), 10**8, (1, 28))
        return NoisyCounts(sums, Receipt(1, 0, {"sum": 1}, {"sum": 9}, 1, ""))

    with pytest.raises(Killed):
        fit_weights(question(tmp_path, count))
    inner = LinearModel.next_weights
    monkeypatch.setattr(LinearModel, "next_weights", lambda self: inner(self) // 2 + 1)
    receipt = fit_weights(question(tmp_path, count)).receipt
    assert (receipt.asked, receipt.charged) == (3, {"sum": 3})
    assert len(set(sent)) == 3
    assert len(sent) == 2 + step + answered


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


def test_rows_abstain_within_the_margin() -> None:
    chances = np.array([[0.5, 0.3, 0.2], [0.4, 0.35, 0.25], [0.5, 0.5, 0.0]], dtype=np.float32)
    model = LinearModel(np.zeros((1, 2), dtype=np.int8), 3, 63.0, 1.0, 0.1, 30)
    labels, outcomes = model.labels(chances, 0.1)
    assert labels.tolist() == [0, ABSTAINED, ABSTAINED]
    assert outcomes.tolist() == [Outcome.ANSWERED, Outcome.ABSTAINED, Outcome.ABSTAINED]
    assert model.labels(chances, 0.0)[0].tolist() == [0, 0, ABSTAINED]


def test_a_model_of_exact_sums_fits_its_rows_and_stays_in_range() -> None:
    """Also where a sum is absurd: what comes back is noise where there are no records."""
    x, labels = tiny.rows(300, 3)
    features = np.rint(63 * x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.int8)
    model = LinearModel(features, tiny.CLASSES, 63.0, 0.001, 0.1, 30)
    inputs = np.pad(features.astype(float), ((0, 0), (0, 1)), constant_values=16)
    for _ in range(30):
        weights = model.next_weights()
        unit = residual_unit(weights, 0.1, 63.0)
        residuals = softmax(inputs @ weights / 2**16, axis=1) - np.eye(tiny.CLASSES)[labels]
        lengths = np.linalg.norm(residuals, axis=1, keepdims=True)
        residuals *= np.minimum(1, 0.1 / np.maximum(lengths, 1e-9))
        if not weights.any():  # the first step: see residual_unit
            residuals *= lengths / 0.1
        model.add(np.append(np.rint(unit * (inputs.T @ residuals)), 300 * COUNT).astype(np.int64))
    oracle = LogisticRegression(C=1e3, max_iter=2000).fit(features / 63, labels)
    found = model.says(features)
    assert (found.argmax(axis=1) == oracle.predict(features / 63)).mean() > 0.96
    assert np.abs(found - oracle.predict_proba(features / 63)).mean() < 0.03
    for extreme in (10**6 * CLIP, -(10**6) * CLIP):
        sums = np.full(model.weights.size + 1, extreme)
        sums[::2] *= -1
        model.add(sums)
        Weights(model.next_weights())
        assert np.isfinite(model.says(features)).all()
