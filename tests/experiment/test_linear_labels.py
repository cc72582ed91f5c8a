"""Noisy gradients of attributes and of values in whole runs: planned, run, resumed, predicted,
compared, at no more than the plan's charges."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors

from labelwall import pipeline
from labelwall.experiment.config.settings import load_config
from labelwall.wall.labels.values import STEPS, ValueLabels
from labelwall.wall.messages import ABSTAINED
from tests.experiment import test_attributes, test_values, tiny
from tests.experiment.test_linear import entries

CONFIG = """
data: {DATA, source: arrays, path: data.npz}
budget: {epsilon: 1000.0, delta: 1.0e-5}
mechanism: {kind: KIND, steps: 2, sigma: 0.5}
rounds: [{}, {}]
student: {backbone: mlp, objective: supervised, steps: 20, batch_labelled: 16, batch_unlabelled: 16,
  doubtful_folds: 0}
custodian_dir: custody
threads: 1
workers: 1
"""
COMPARISON = """
data: {DATA, source: arrays, path: data.npz}
seeds: [0]
student: {backbone: mlp, objective: supervised, steps: 20, batch_labelled: 16, batch_unlabelled: 16,
  doubtful_folds: 0}
threads: 1
workers: 1
methods:
  - name: linear
    points: [{epsilon: 50.0, mechanism: {kind: KIND}, rounds: [{}]}]
"""
DATA = {
    "private_linear_attributes": "labels: attributes",
    "private_linear_value": "labels: value, bounds: [-10, 30]",
}
RUN = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet"]
SCALE = ValueLabels(-10, 30)


def truth(kind: str, x: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return test_values.target(x) if "value" in kind else test_attributes.bits(classes)


@pytest.fixture(params=DATA)
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    found = str(request.param)
    tiny.write(tmp_path)
    with np.load(tmp_path / "data.npz") as stored:
        arrays = dict(stored)
    for name in [name for name in arrays if name.endswith("_y")]:
        arrays[name] = truth(found, arrays[name.replace("_y", "_x")], arrays[name])
    np.savez(tmp_path / "data.npz", **arrays)
    for file, text in (("config.yaml", CONFIG), ("compare.yaml", COMPARISON)):
        (tmp_path / file).write_text(text.replace("KIND", found).replace("DATA", DATA[found]))
    monkeypatch.chdir(tmp_path)
    return found


def good(kind: str, labels: np.ndarray, x: np.ndarray, classes: np.ndarray) -> bool:
    """Whether labels say most of the truth."""
    true = truth(kind, x, classes)
    assert (labels != ABSTAINED).all()
    if "value" in kind:
        assert labels.min() >= 0
        assert labels.max() <= STEPS
        missed = SCALE.decode(labels) - true
        return bool(missed.var() < 0.5 * true.var())
    return bool((labels == true).mean() > 0.75)


def test_a_run_is_planned_audited_resumed_and_predicts_for_nothing(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["plan", "--config", "config.yaml", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [r["caps"] for r in plan["rounds"]] == [{"sum": 4}] * 2
    assert pipeline.main(RUN) == 0
    assert json.loads(Path("out/summary.json").read_text())["epsilon"] == plan["epsilon"]
    assert len(entries("charge")) == 4
    x, classes = tiny.rows(40, 2)
    for number in (1, 2):
        with np.load(f"out/round_{number}/answers.npz") as stored:
            assert good(kind, stored["labels"], x[stored["rows"]], classes[stored["rows"]])
        metrics = json.loads(Path(f"out/round_{number}/metrics.json").read_text())
        assert metrics["estimate"]["by"] in ("probabilities", "noisy moments")
        assert not Path(f"out/round_{number}/probabilities.npy").exists()
    with safetensors.safe_open("out/round_1/linear.safetensors", "numpy") as file:
        assert file.metadata()["labels"] == load_config(Path("config.yaml")).data.labels

    Path("out/round_2/metrics.json").unlink()  # as if killed before its end
    Path("out/round_2/answers.npz").unlink()
    assert pipeline.main(RUN) == 0
    assert len(entries("charge")) == 4
    assert pipeline.main(["audit", "out/ledger.sqlite", "--json"]) == 0
    assert pipeline.main(["report", "out"]) == 0

    x, classes = tiny.rows(30, 9)
    np.savez("q.npz", x=x)
    predict = ["predict", "--config", "config.yaml", "--queries", "q.npz", "--out", "a.npz"]
    assert pipeline.main([*predict, "--quiet"]) == 0
    with np.load("a.npz") as stored:
        assert good(kind, stored["labels"], x, classes)
    assert json.loads(Path("a.receipt.json").read_text())["charged"] == {"sum": 0}


def test_a_cap_before_the_first_step_leaves_no_label(kind: str) -> None:
    """Refused rows have the shape of this label space."""
    assert pipeline.main([*RUN, "--caps.asked", "2"]) == 0
    with np.load("out/round_2/answers.npz") as stored:
        assert (stored["labels"] == ABSTAINED).all()
        assert stored["labels"].ndim == (1 if "value" in kind else 2)


def test_a_comparison_solves_the_noise_from_the_budget(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["compare", "--config", "compare.yaml", "--out", "c"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| linear")]
    assert 49.5 < float(line.split("|")[2]) <= 50.0
