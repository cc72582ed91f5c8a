"""Batch mechanisms in whole runs: a charge a round, plans that mix pure and Renyi releases,
predictions, clear mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.experiment.config.settings import load_config
from labelwall.experiment.run.extractors import box_extractor
from labelwall.teacher.accounting.accountant import certificates
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.wall.datasets.sources import Task
from labelwall.wall.errors import InvalidInput
from labelwall.wall.labels.classes import ClassLabels
from tests.experiment import tiny
from tests.experiment.checks import PREDICT

CONFIG = """
data: {source: arrays, path: data.npz}
budget: {epsilon: 60.0, delta: 1.0e-5}
features: box
box: [[-5, 7]]
mechanism: {kind: radius, radius: 0.35}
rounds: [{queries: 12}, {queries: 12}]
student: {backbone: mlp, objective: supervised, steps: 5, batch_labelled: 16,
  batch_unlabelled: 16, doubtful_folds: 0}
batch_size: 5
threads: 1
workers: 1
"""
MIXED = """
mechanism: {kind: batch_knn, conversion: interactive, k: 15, records: 200, epsilon: 20}
rounds:
- {queries: 12}
- queries: 12
  mechanism: {kind: private_knn, k: 15, threshold: 4, sigma_screen: 3.0, sigma_vote: 3.0,
    sampling_probability: 0.2}
"""
RUN = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.write(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    kept = [line for line in CONFIG.splitlines() if not line.startswith(("mechanism", "rounds"))]
    (tmp_path / "mixed.yaml").write_text("\n".join(kept) + MIXED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_round_is_one_charge_and_resumes_for_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline.main(["plan", "--config", "config.yaml", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["certificates"]["pure_added"] == 60.0
    assert plan["epsilon"] <= 60.0
    assert [r["caps"] for r in plan["rounds"]] == [{"batch": 2}] * 2
    assert pipeline.main(RUN) == 0
    summary = json.loads((folder / "out/summary.json").read_text())
    assert summary["epsilon"] == plan["epsilon"]
    assert [r["answered"] for r in summary["rounds"]] == [12, 12]
    (folder / "out/round_2/metrics.json").unlink()  # as if killed before its end
    (folder / "out/round_2/answers.npz").unlink()
    assert pipeline.main(RUN) == 0
    finding = audit(folder / "out/ledger.sqlite")
    assert (finding.problems, finding.charged, finding.released) == (
        [],
        {"0/batch": 2},
        {"0/batch": 24},
    )
    assert pipeline.main(["report", "out"]) == 0


def test_a_mixed_plan_is_priced_run_and_audited(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = load_config(folder / "mixed.yaml").plan()
    found = {name: certificate.epsilon for name, certificate in certificates(plan).items()}
    alone = certificates(type(plan)(60.0, 1e-5, plan.slots[1:]))
    assert found["pure_added"] == pytest.approx(20 + alone["tight"].epsilon, rel=1e-9)
    assert pipeline.main([*RUN, "--config", "mixed.yaml"]) == 0
    assert pipeline.main(["audit", "out/ledger.sqlite", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["consistent"]
    assert shown["charged"]["0/batch"] == 1
    assert shown["charged"]["1/screen"] > 1


def test_predict_answers_a_file_as_one_batch(folder: Path) -> None:
    np.savez("q.npz", x=tiny.rows(30, 9)[0])
    command = [*PREDICT, "--custodian_dir", "custody", "--quiet"]
    assert pipeline.main(command) == 0
    receipt = json.loads(Path("a.receipt.json").read_text())
    assert (receipt["charged"], receipt["asked"]) == ({"batch": 1}, 30)
    assert 1 <= receipt["cliques"]["largest"] <= 30
    assert receipt["cliques"]["by_colouring"] <= 30
    labels = np.load("a.npz")["labels"]
    assert (labels >= 0).all()
    assert pipeline.main(command) == 0
    assert json.loads(Path("a.receipt.json").read_text())["cliques"] == receipt["cliques"]
    np.testing.assert_array_equal(np.load("a.npz")["labels"], labels)


MISTAKES = {
    "no box": (["--box", "[]"], "`box`"),
    "a box without its features": (["--features", "raw"], "`box`"),
    "a side without length": (["--box", "[[1, 1]]"], "low < high"),
    "sides of other vectors": (["--box", "[[0, 1], [0, 1]]"], "one side, or 8"),
    "radius": (["--mechanism.radius", "-1"], "mechanism.radius"),
    "too dear": (["--mechanism.epsilon", "40"], "budget.epsilon"),
    "shares of more than all": (
        [
            "--rounds",
            "[{queries: 3, share: 0.7}, {queries: 3, share: 0.7, mechanism: {kind: radius}}]",
        ],
        "rounds.share",
    ),
    "accounting": (["--mechanism.accounting", "cheap"], "accounting"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_line(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options, mentioned = MISTAKES[name]
    assert pipeline.main([*RUN, *options]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert mentioned in lines[0]


def test_each_side_of_the_box_has_its_own_scale() -> None:
    spec = box_extractor([[0.0, 2.0], [-1.0, 5.0]], Task(ClassLabels(("a", "b")), (2,)))
    assert (spec.mean, spec.std) == ((1.0, 2.0), (1.0, 3.0))
    with pytest.raises(InvalidInput, match="one side, or 3"):
        box_extractor([[0.0, 2.0], [-1.0, 5.0]], Task(ClassLabels(("a", "b")), (3,)))
