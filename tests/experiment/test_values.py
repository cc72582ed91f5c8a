"""Rows with a real value in whole runs: answers, student, report, resumption, predictions, a
comparison, the custodian's side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.experiment.report.report import write_report
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student.train import predict
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.wall.labels.values import STEPS, ValueLabels, errors
from tests.experiment import tiny
from tests.experiment.checks import (
    ask_twice,
    check_baselines_are_refused,
    check_one_error,
    classified,
)

CONFIG = """
data: {source: arrays, labels: value, bounds: [-10, 30], path: data.npz}
budget: {epsilon: 3000.0, delta: 1.0e-5}
mechanism: {kind: private_knn_mean, k: 15, sampling_probability: 0.5, sigma_mean: 0.3}
rounds:
  - queries: 12
  - queries: 12
    mechanism: {kind: private_knn_median, k: 15, sampling_probability: 0.5, epsilon: 9.0,
      threshold: 4, sigma_screen: 2.0}
student: {backbone: mlp, objective: uda, steps: 60, batch_labelled: 16, batch_unlabelled: 16}
custodian_dir: custody
batch_size: 5
threads: 1
workers: 1
"""
COMPARISON = """
data: {source: arrays, labels: value, bounds: [-10, 30], path: data.npz}
seeds: [0]
student: {backbone: mlp, objective: vat, steps: 80, batch_labelled: 16, batch_unlabelled: 16,
  vat_epsilon: 0.5}
threads: 1
workers: 1
methods:
  - name: mean
    points:
      - epsilon: 3000.0
        mechanism: {kind: private_knn_mean, k: 15, sampling_probability: 0.5, sigma_mean: 0.3}
        rounds: [{queries: 12}]
  - name: all private values
    reference: non_private
  - name: true values
    reference: true_labels
"""
SCALE = ValueLabels(-10, 30)
RUN = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet"]


def target(x: np.ndarray) -> np.ndarray:
    """A value that tiny's vectors decide, far inside the bounds: float64 [n]."""
    return 8.0 + 4.0 * x[:, 0].astype(np.float64) - 3.0 * x[:, 1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.write(tmp_path)
    with np.load(tmp_path / "data.npz") as stored:
        arrays = {
            name: target(stored[name[:-1] + "x"]) if name.endswith("_y") else stored[name]
            for name in stored.files
        }
    np.savez(tmp_path / "data.npz", **arrays)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "compare.yaml").write_text(COMPARISON)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_answers_learns_reports_and_resumes_for_nothing(
    folder: Path, drawn: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """What depends on chance is compared with itself; that students learn, tests/student says."""
    assert pipeline.main(["plan", "--config", "config.yaml", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert pipeline.main(RUN) == 0
    summary = json.loads((folder / "out/summary.json").read_text())
    assert (
        f"test RMSE {summary['test_errors']['rmse']:.4g}, R2 {summary['test_errors']['r2']:.3f} at"
        in capsys.readouterr().out
    )
    assert summary["epsilon"] == plan["epsilon"] <= 3000
    assert summary["test_accuracy"] is None
    assert [r["asked"] for r in summary["rounds"]] == [12, 12]
    assert summary["rounds"][0]["answered"] == 12
    kept = summary["best_round"]  # noise decides which
    metrics = json.loads((folder / f"out/round_{kept}/metrics.json").read_text())
    assert np.array(metrics["confusion"]).sum() == 30
    assert metrics["history"][-1]["rmse/test"] == pytest.approx(
        summary["test_errors"]["rmse"], rel=1e-3
    )
    with np.load(folder / "out/round_1/answers.npz") as stored:
        released, rows = SCALE.decode(stored["labels"]), stored["rows"]
    off = released - target(tiny.rows(40, 2)[0])[rows]
    assert np.sqrt((off**2).mean()) == pytest.approx(summary["rounds"][0]["label_errors"]["rmse"])
    finding = audit(folder / "out/ledger.sqlite", expect_head=summary["ledger_head"])
    assert finding.problems == []
    assert finding.released["0/mean"] == finding.released["1/screen"] == 12
    page = (folder / "out/report.html").read_text()
    assert "Values of the test split" in page
    assert f"R² = {summary['test_errors']['r2']:.4g}" in page
    assert write_report(folder / "out").read_text() == page
    found = predict(RunFolder(folder / "out").load_extractor(kept), tiny.rows(30, 3)[0], SCALE)
    assert errors(found, target(tiny.rows(30, 3)[0])) == pytest.approx(summary["test_errors"])
    written = [float(line["value"]) for line in classified(tiny.rows(30, 3)[0])]
    np.testing.assert_allclose(written, found, rtol=1e-5)
    assert pipeline.main(RUN) == 0
    assert json.loads((folder / "out/summary.json").read_text()) == summary


def test_a_file_of_queries_is_answered_with_values(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = ask_twice(folder, capsys)
    assert ((stored["labels"] >= 0) & (stored["labels"] <= STEPS)).all()
    np.testing.assert_allclose(stored["values"], -10 + stored["labels"] * 40 / STEPS)


def test_a_comparison_scores_by_errors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["compare", "--config", "compare.yaml", "--out", "table"]) == 0
    assert (
        "| method | epsilon | labels | labels' RMSE | test RMSE | MAE | R2, median (range) |"
        in capsys.readouterr().out
    )
    rows = {
        row["method"]: row
        for row in json.loads((folder / "table/comparison.json").read_text())["table"]
    }
    assert rows["mean"]["labels"] == 12
    assert rows["mean"]["label_errors"]["rmse"] > 0
    for reference in ("all private values", "true values"):
        found = rows[reference]
        assert found["errors"]["r2"] > 0.6  # no noise: the same in every run
        assert found["low"] == found["high"] == found["errors"]["r2"]
    assert b"R2 on the test split" in (folder / "table/accuracy_by_epsilon.svg").read_bytes()


def test_the_custodians_commands_know_values(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["data", "--config", "config.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "200 usable" in shown
    counts = np.histogram(np.clip(target(tiny.rows(200, 1)[0]), -10, 30), bins=10, range=(-10, 30))[
        0
    ]
    listed = re.findall(r"^  (-?\d+) to (-?\d+) +(\d+)$", shown, re.MULTILINE)
    assert [tuple(map(int, line[:2])) for line in listed] == [
        (-10 + 4 * i, -6 + 4 * i) for i in range(10)
    ]
    shift = np.cumsum([int(line[2]) for line in listed]) - np.cumsum(counts)
    assert abs(shift).max() <= 1  # a row less than a step from an edge may count on either side
    assert shift[-1] == 0
    np.savez("q.npz", x=tiny.rows(2, 7)[0])
    assert (
        pipeline.main(
            ["predict", "--config", "config.yaml", "--queries", "q.npz", "--out", "a.npz"]
        )
        == 0
    )
    x, _ = tiny.rows(4, 8)
    np.savez(
        "more.npz",
        private_x=x,
        private_y=[1.5, 400.0, np.nan, -3.0],
        private_id=np.arange(7000, 7004),
    )
    assert pipeline.main(["records", "add", "--config", "config.yaml", "--rows", "more.npz"]) == 0
    assert "3 added" in capsys.readouterr().out


MISTAKES = {
    "a mechanism for classes": (
        "private_knn_mean, k: 15, sampling_probability: 0.5, sigma_mean: 0.3",
        "gnmax",
        "mechanism.kind",
    ),
    "rows of one class": ("labels: value, bounds: [-10, 30], ", "", "mechanism.kind"),
    "no bounds": (", bounds: [-10, 30]", "", "data.bounds"),
    "bounds the wrong way": ("[-10, 30]", "[30, -10]", "data.bounds"),
    "a class prior": ("steps: 60", "class_prior: uniform", "student.class_prior"),
    "no noise": ("sigma_mean: 0.3", "sigma_mean: 0", "mechanism.sigma_mean"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_error(
    folder: Path, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, name = MISTAKES[mistake]
    assert old in CONFIG
    Path("config.yaml").write_text(CONFIG.replace(old, new))
    check_one_error(RUN, name, capsys)


def test_a_baseline_for_classes_is_refused_before_anything_is_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_baselines_are_refused(COMPARISON, capsys)
