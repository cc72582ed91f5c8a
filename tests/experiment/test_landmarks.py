"""private_radius in whole runs: landmarks of public rows, resumption, audit, predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.wall.wire import SAFETENSORS, decode_extractor
from tests.experiment import tiny
from tests.experiment.checks import PREDICT

RADIUS = (
    "mechanism: {kind: private_radius, share: 0.3, threshold: 4, sigma_screen: 3.0, "
    "sigma_vote: 3.0, sampling_probability: 0.5}"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.write(tmp_path)
    lines = tiny.CONFIG.splitlines()
    lines = [RADIUS if line.startswith("mechanism") else line for line in lines]
    (tmp_path / "config.yaml").write_text("\n".join([*lines, "custodian_dir: custody\n"]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run() -> int:
    return pipeline.main(["run", "--config", "config.yaml", "--run_dir", "run", "--quiet"])


def test_a_run_asks_with_landmarks_resumes_and_passes_the_audit(folder: Path) -> None:
    assert run() == 0
    kept = [
        decode_extractor(path.read_bytes(), SAFETENSORS, path.stat().st_size)
        for path in sorted((folder / "run").rglob("*.safetensors"))
        if "features" in path.name
    ]
    rows = [spec.landmark_rows(len(spec.landmarks) // 40) for spec in kept]  # all public rows
    assert len(kept) == 2
    assert rows[0].shape == (40, tiny.DIMENSIONS)
    finding = audit(folder / "run" / "ledger.sqlite")
    assert finding.problems == []
    charged = finding.released
    next((folder / "run").glob("*2/metrics.json")).unlink()
    assert run() == 0
    assert audit(folder / "run" / "ledger.sqlite").released == charged


def test_a_prediction_measures_by_the_public_rows(folder: Path) -> None:
    x, truth = tiny.rows(30, 9)
    np.savez(folder / "q.npz", x=x)
    assert pipeline.main([*PREDICT, "--quiet"]) == 0
    found = np.load("a.npz")
    answered = found["outcomes"] == 0
    assert answered.sum() >= 20
    assert (found["labels"][answered] == truth[answered]).mean() > 0.6
