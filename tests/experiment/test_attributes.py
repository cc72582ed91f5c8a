"""Rows with attributes in whole runs: answers, student, report, resumption, predictions, a
comparison, a teacher elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.experiment.config.settings import load_config
from labelwall.experiment.report.report import write_report
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student.train import predict
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.wall.errors import InvalidInput
from labelwall.wall.labels.attributes import AttributeLabels
from tests.experiment import tiny
from tests.experiment.checks import (
    QUICK,
    ask_twice,
    check_baselines_are_refused,
    check_one_error,
    classified,
)

CONFIG = """
data: {source: arrays, labels: attributes, path: data.npz, classes: [left, "up & <b>", far]}
budget: {epsilon: 3000.0, delta: 1.0e-5}
mechanism: {kind: private_knn_attributes, tau: 2, k: 15,
  sampling_probability: 0.5, sigma_vote: 0.5, threshold: 0.4}
rounds: [{queries: 12}, {queries: 12}]
student: {backbone: mlp, objective: uda, steps: 20, batch_labelled: 16, batch_unlabelled: 16,
  doubtful_folds: 2, doubtful_steps: 10}
custodian_dir: custody
batch_size: 5
threads: 1
workers: 1
"""
COMPARISON = """
data: {source: arrays, labels: attributes, path: data.npz}
seeds: [0]
student: {backbone: mlp, objective: vat, steps: 20, batch_labelled: 16, batch_unlabelled: 16,
  doubtful_folds: 0}
threads: 1
workers: 1
methods:
  - name: GNMAX
    points:
      - {epsilon: 3000.0, mechanism: {kind: gnmax_attributes, tau: 2, teachers: 3,
          sigma_vote: 0.5}, rounds: [{queries: 12}]}
  - name: all private labels
    reference: non_private
"""
COUNT = 3
RUN = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet"]


def bits(labels: np.ndarray) -> np.ndarray:
    """Three attributes of tiny's three classes: 1, 1 and 2 of them present."""
    return np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1]])[labels]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.write(tmp_path)
    with np.load(tmp_path / "data.npz") as stored:
        arrays = {
            name: bits(stored[name]) if name.endswith("_y") else stored[name]
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
    assert summary["epsilon"] == plan["epsilon"] <= 3000
    assert [(r["asked"], r["answered"]) for r in summary["rounds"]] == [(12, 12)] * 2
    kept = summary["best_round"]  # noise decides which
    metrics = json.loads((folder / f"out/round_{kept}/metrics.json").read_text())
    counts = np.array(metrics["confusion"])
    assert counts.shape == (COUNT, 2, 2)
    assert counts.trace(axis1=1, axis2=2).sum() / counts.sum() == pytest.approx(
        summary["test_accuracy"]
    )
    assert metrics["history"][-1]["accuracy/test"] == pytest.approx(
        summary["test_accuracy"], abs=1e-4
    )
    with np.load(folder / "out/round_1/answers.npz") as stored:
        assert stored["labels"].shape == (12, COUNT)
        right = stored["labels"] == bits(tiny.rows(40, 2)[1])[stored["rows"]]
        assert right.mean() == pytest.approx(summary["rounds"][0]["label_accuracy"])
    finding = audit(folder / "out/ledger.sqlite", expect_head=summary["ledger_head"])
    assert (finding.problems, finding.released) == ([], {"0/counts": 24})
    page = (folder / "out/report.html").read_text()
    assert "Attributes of the test split" in page
    assert "up & <b>" not in page
    assert write_report(folder / "out").read_text() == page
    spec = RunFolder(folder / "out").load_extractor(kept)
    x, y = tiny.rows(30, 3)
    assert (predict(spec, x, AttributeLabels.of(COUNT)) == bits(y)).mean() == pytest.approx(
        summary["test_accuracy"]
    )
    lines = classified(x)
    names = ["left", "up & <b>", "far"]
    said = np.array([[float(line[name]) > 0.5 for name in names] for line in lines])
    assert (said == bits(y)).mean() == pytest.approx(summary["test_accuracy"])
    texts = [", ".join(name for name, bit in zip(names, row, strict=True) if bit) for row in said]
    assert [line["label"] for line in lines] == [text or "none of them" for text in texts]
    assert pipeline.main(RUN) == 0
    assert json.loads((folder / "out/summary.json").read_text()) == summary


def test_a_file_of_queries_is_answered_by_attribute(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = ask_twice(folder, capsys)
    assert stored["labels"].shape == (9, COUNT)


def test_a_comparison_counts_accuracies_over_attributes(folder: Path) -> None:
    assert pipeline.main(["compare", "--config", "compare.yaml", "--out", "table"]) == 0
    rows = {
        row["method"]: row
        for row in json.loads((folder / "table/comparison.json").read_text())["table"]
    }
    assert rows["GNMAX"]["labels"] == 12
    assert rows["all private labels"]["accuracy"] > 0.6  # no noise: the same in every run


def test_a_teacher_in_another_process_answers_alike(folder: Path) -> None:
    assert pipeline.main([*RUN, *QUICK, "--rounds", "[{queries: 12}]", "--isolate"]) == 0
    with np.load(folder / "out/round_1/answers.npz") as stored:
        assert stored["labels"].shape == (12, COUNT)
    assert audit(folder / "out/ledger.sqlite").consistent


def test_the_custodians_commands_know_attributes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["data", "--config", "config.yaml"]) == 0
    assert "200 usable" in capsys.readouterr().out
    assert pipeline.main([*RUN, *QUICK]) == 0
    x, y = tiny.rows(4, 8)
    np.savez("more.npz", private_x=x, private_y=bits(y), private_id=np.arange(7000, 7004))
    assert pipeline.main(["records", "add", "--config", "config.yaml", "--rows", "more.npz"]) == 0
    assert "4 added" in capsys.readouterr().out


MISTAKES = {
    "a mechanism for classes": (
        "kind: private_knn_attributes, tau: 2, k: 15",
        "kind: naive_knn, k: 15",
        "mechanism.kind",
    ),
    "rows of one class": ("labels: attributes, ", "", "mechanism.kind"),
    "a class prior": ("doubtful_folds: 2", "class_prior: uniform", "student.class_prior"),
    "no sampling at all": (
        "sampling_probability: 0.5",
        "sampling_probability: 0",
        "mechanism.sampling_probability",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_error(
    folder: Path, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, name = MISTAKES[mistake]
    text = CONFIG.replace(old, new)
    assert text != CONFIG
    if "naive" in new:
        text = text.replace(
            "sampling_probability: 0.5, sigma_vote: 0.5, threshold: 0.4", "sigma_vote: 0.5"
        )
    Path("config.yaml").write_text(text)
    check_one_error(RUN, name, capsys)


def test_a_baseline_for_classes_is_refused_before_anything_is_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_baselines_are_refused(COMPARISON, capsys)


def test_planning_for_attributes_is_by_hand(folder: Path) -> None:
    from labelwall.experiment.plan.auto import planners_for

    with pytest.raises(InvalidInput, match="private_knn, private_radius, ind_knn"):
        planners_for(load_config(folder / "config.yaml"))
