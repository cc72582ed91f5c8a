"""Reverse kNN in whole runs: a histogram a round, resumption with the same cells, artefacts that
show no more than the counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.experiment.run.matrices import cluster
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.experiment.run.training import released_labels
from labelwall.wall.errors import InvalidInput
from labelwall.wall.matrices import inherit, nearest_cells
from labelwall.wall.messages import Outcome
from tests import ledgers
from tests.experiment import tiny
from tests.experiment.checks import QUICK
from tests.programs import PROGRAMS, environment

CELLS = 6
CONFIG = """
data: {source: arrays, path: data.npz}
budget: {epsilon: 1000.0, delta: 1.0e-5}
mechanism: {kind: reverse_knn, cells: 6, neighbours: 1, sigma: 0.5, margin: 3}
rounds: [{}, {}]
student:
  {backbone: mlp, objective: supervised, steps: 20, batch_labelled: 16, batch_unlabelled: 16,
   doubtful_folds: 2, doubtful_steps: 5}
batch_size: 16
threads: 1
workers: 1
"""
RUN = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet"]


def write(folder: Path, extra: tuple[np.ndarray, int, int] | None = None) -> None:
    tiny.write(folder, extra)
    (folder / "config.yaml").write_text(CONFIG)


def entries(folder: Path, kind: str) -> list[dict]:
    return ledgers.contents(folder / "out/ledger.sqlite", kind)


def test_two_rounds_end_to_end_planned_audited_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert pipeline.main(["plan", "--config", "config.yaml", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [r["caps"] for r in plan["rounds"]] == [{"histogram": 2}] * 2
    assert pipeline.main(RUN) == 0
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert summary["epsilon"] == plan["epsilon"]
    # The reading's own bound is not the smallest here
    assert summary["epsilon"] < plan["certificates"]["tight"]
    assert [r["epsilon_reading"] <= summary["epsilon"] for r in summary["rounds"]] == [True, True]
    for number, r in enumerate(summary["rounds"], start=1):
        with np.load(tmp_path / f"out/round_{number}/answers.npz") as stored:
            # Every round covers all public rows
            assert sorted(stored["rows"].tolist()) == list(range(40))
            assert r["answered"] == (stored["labels"] >= 0).sum() > 20
        assert (r["asked"], r["cap_reached"]) == (40, 0)
        assert r["answered"] + r["abstained"] == 40
        # No noise exceeds 3 but once in 10^12, and the cells lead by far more than 6
        assert r["label_accuracy"] > 0.5
    charges = [(c["release"], c["count"]) for c in entries(tmp_path, "charge")]
    assert charges == [("histogram", 1)] * 2

    (tmp_path / "out/round_2/metrics.json").unlink()  # as if killed before its end
    (tmp_path / "out/round_2/answers.npz").unlink()
    assert pipeline.main(RUN) == 0
    assert len(entries(tmp_path, "charge")) == 2  # the same cells: nothing is paid twice
    assert pipeline.main(["audit", "out/ledger.sqlite", "--json"]) == 0
    assert pipeline.main(["report", "out"]) == 0


@pytest.mark.parametrize("reach", [1, 3])
def test_answers_follow_from_the_ledgers_counts_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reach: int
) -> None:
    """Recomputed from public things: cells, public rows under the round's features, released
    counts, margin and reach."""
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert pipeline.main([*RUN, *QUICK, "--mechanism.reach", str(reach)]) == 0
    (value,) = entries(tmp_path, "release")[0]["results"].values()
    counts = np.array(value).reshape(CELLS, tiny.CLASSES)
    x = tiny.rows(40, 2)[0].astype(np.float64)
    features = np.clip(np.rint(63 * x / np.linalg.norm(x, axis=1, keepdims=True)), -63, 63).astype(
        np.int8
    )
    with np.load("out/round_1/cells.npz") as stored:
        cells = nearest_cells(features, stored["centers"], reach)
    with np.load("out/round_1/answers.npz") as stored:
        np.testing.assert_array_equal(
            stored["labels"], inherit(counts, cells, 3)[0][stored["rows"]]
        )


def on_the_tape(*folders: Path) -> None:
    driver = PROGRAMS / "tape_run.py"
    done = subprocess.run(
        [sys.executable, driver, "7", *folders],
        env=environment(PYTHONHASHSEED="0"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_an_added_record_shows_in_one_count_and_in_nothing_that_does_not_follow_from_it(
    tmp_path: Path,
) -> None:
    """Same noise, one record more, before all others: its class's count in its cell is one larger,
    in each round.

    The record sits where its class leads by far, so no label changes; then nothing but counts and
    hashes may.
    """
    extra = (3 * np.eye(1, tiny.DIMENSIONS, dtype=np.float32)[0], 0, 1)
    write(tmp_path / "without")
    write(tmp_path / "with", extra)
    on_the_tape(tmp_path / "without", tmp_path / "with")
    counts = [
        [np.array(*e["results"].values()) for e in entries(tmp_path / name, "release")]
        for name in ("without", "with")
    ]
    for without, added in zip(*counts, strict=True):
        difference = added - without
        assert sorted(difference.tolist()) == [0] * (CELLS * tiny.CLASSES - 1) + [1]
        assert int(difference.argmax()) % tiny.CLASSES == 0
    names = [
        {p.relative_to(tmp_path / n / "out") for p in (tmp_path / n / "out").rglob("*")}
        for n in ("without", "with")
    ]
    assert names[0] == names[1]
    for name in ("cells.npz", "answers.npz", "student.safetensors", "extractor.json"):
        for number in (1, 2):
            pair = [
                (tmp_path / n / f"out/round_{number}/{name}").read_bytes()
                for n in ("without", "with")
            ]
            assert pair[0] == pair[1], (name, number)


def test_clusters_of_public_rows() -> None:
    rng = np.random.default_rng(0)
    middles = np.array([[40, 0], [-40, 0], [0, 50]])
    features = (np.repeat(middles, 30, axis=0) + rng.integers(-3, 4, (90, 2))).astype(np.int8)
    centers = cluster(features, 3, seed=1)
    assert centers.dtype == np.int8
    assert sorted(np.rint(centers / 10).astype(int).tolist()) == [[-4, 0], [0, 5], [4, 0]]
    np.testing.assert_array_equal(centers, cluster(features, 3, seed=1))
    # Fewer places than cells
    assert cluster(np.ones((8, 2), dtype=np.int8), 5, seed=0).tolist() == [[1, 1]] * 5
    with pytest.raises(InvalidInput, match=r"mechanism\.cells"):
        cluster(features[:4], 5, seed=1)


def test_a_later_rounds_abstention_counts(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_answers(1, np.array([0, 1, 2]), np.array([1, 2, 0]), np.zeros(3, dtype=np.uint8))
    outcomes = np.array([Outcome.ABSTAINED, Outcome.ANSWERED, Outcome.CAP_REACHED], dtype=np.uint8)
    folder.save_answers(2, np.array([2, 1, 0]), np.array([-1, 1, -1]), outcomes)
    # Row 0 was refused: its label stays
    assert released_labels(folder, 2, 4).tolist() == [
        1,
        1,
        -1,
        -1,
    ]


@pytest.mark.parametrize(
    ("options", "mentioned"),
    [
        (["--mechanism.cells", "41"], "at most 40"),
        (["--mechanism.neighbours", "0"], "mechanism.neighbours"),
        (["--mechanism.margin", "nan"], "mechanism.margin"),
        (["--mechanism.reach", "0"], "mechanism.reach"),
        (["--mechanism.kind", "private_knn"], "rounds.queries"),
        (["--caps.asked", "1", "--rounds", "[{queries: 0}]"], "rounds.queries"),
    ],
)
def test_a_mistake_is_one_clear_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    mentioned: str,
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert pipeline.main([*RUN, *options]) == 2
    captured = capsys.readouterr().err.strip().splitlines()
    assert len(captured) == 1
    assert mentioned in captured[0]


def test_past_the_cap_a_round_learns_nothing_new_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    options = ["--caps.asked", "1", "--rounds", "[{}, {queries: 7}]", *QUICK]
    assert pipeline.main([*RUN, *options]) == 0
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert [r["cap_reached"] for r in summary["rounds"]] == [0, 7]
