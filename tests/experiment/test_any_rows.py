"""Rows that are not as they were guessed: other numbers, other distributions, other shares."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.experiment.linear import shift
from labelwall.experiment.run.run_folder import COUNTED, FEATURES, RunFolder
from labelwall.student.model import load
from tests.experiment import tiny
from tests.experiment.checks import PREDICT

LINEAR = """mechanism: {kind: private_linear, steps: 12, noise_multiplier: 14.0, axes: 3}
expected_records: 20
custodian_dir: custody
"""
RUN = ["run", "--config", "config.yaml", "--run_dir", "run", "--quiet"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kept = [
        x for x in tiny.CONFIG.splitlines() if not x.startswith(("mechanism", "caps", "rounds"))
    ]
    monkeypatch.setattr(tiny, "CONFIG", "\n".join([*kept, "rounds: [{}]", LINEAR]))
    tiny.write(tmp_path)
    np.savez(tmp_path / "q.npz", x=tiny.rows(30, 9)[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_wrong_guess_of_the_records_is_seen_in_the_first_sum(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other axes are asked with, once: a resumed run and predictions are answered for nothing."""
    assert pipeline.main(RUN[:-1]) == 0
    assert "not about 20 records (expected_records), so 8 axes" in capsys.readouterr().err
    run = RunFolder(Path("run"))
    first, counted = (
        run.features(lambda: pytest.fail("built again"), 1, f) for f in (FEATURES, COUNTED)
    )
    assert [spec.projection().shape for spec in (first, counted)] == [(8, 3), (8, 8)]  # type: ignore[union-attr]
    summary = json.loads(run.summary.read_text())
    for name in ("metrics.json", "answers.npz", COUNTED):  # killed after the ledger's last charge
        (run.round(1) / name).unlink()
    run.summary.unlink()
    assert pipeline.main(RUN) == 0
    assert json.loads(run.summary.read_text())["ledger_head"] == summary["ledger_head"]
    assert pipeline.main([*PREDICT, "--quiet"]) == 0
    receipt = json.loads(Path("a.receipt.json").read_text())
    assert receipt["charged"] == {"sum": 0}
    assert receipt["ledger_head"] == summary["ledger_head"]


def test_foreign_public_rows_leave_the_released_classifier(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the model in the file, alone, with its features inside; nothing is said of labels."""
    monkeypatch.setattr(shift, "LEFT", -1.0)
    monkeypatch.setattr(shift, "PART", -1e9)
    assert pipeline.main(RUN[:-1]) == 0
    assert "its released classifier is taken for the student" in capsys.readouterr().err
    summary = json.loads(Path("run/summary.json").read_text())
    estimate = summary["rounds"][0]["estimate"]
    assert estimate["why"].startswith("no shares of the classes explain")
    assert estimate["few"]  # of about 67 records each, under 81
    Path("alone").mkdir()
    student = load(shutil.copy("run/student.safetensors", "alone"))
    assert student.info.backbone == "released/linear"
    x, y = tiny.rows(30, 3)
    assert (student.predict(x) == y).mean() == pytest.approx(summary["test_accuracy"])


@pytest.mark.parametrize("shares", ["test", "estimate", "shares.json"])
def test_rows_are_classified_by_the_shares_of_their_classes(folder: Path, shares: str) -> None:
    assert pipeline.main(RUN) == 0
    Path("shares.json").write_text(json.dumps({"0": 1, "1": 0, "2": 0}))
    x, y = tiny.rows(300, 9)
    np.save("new.npy", x)
    command = ["classify", "--student", "run", "--vectors", "new.npy", "--out", "labels.csv"]
    assert pipeline.main([*command, "--shares", shares]) == 0
    with Path("labels.csv").open(newline="") as file:
        labels = np.array([int(row["label"]) for row in csv.DictReader(file)])
    if shares == "shares.json":
        assert (labels == 0).mean() > 0.9
    else:
        assert (labels == y).mean() > 0.6


@pytest.mark.parametrize("shares", ["nothing.json", "half.json", "list.json"])
def test_shares_that_name_no_classes_are_refused_in_one_line(
    folder: Path, shares: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(RUN) == 0
    Path("half.json").write_text('{"0": 1}')
    Path("list.json").write_text("[1, 2, 3]")
    np.save("new.npy", tiny.rows(3, 9)[0])
    command = ["classify", "--student", "run", "--vectors", "new.npy", "--out", "labels.csv"]
    capsys.readouterr()
    assert pipeline.main([*command, "--shares", shares]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "a JSON file with a number for each class: 0, 1, 2" in line
    assert not Path("labels.csv").exists()
