"""Methods by name on one's own rows: settings from public ones, the sum that they spend."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.experiment.commands.configured import parse_cells
from labelwall.teacher.mechanisms.votes import Gnmax
from tests.experiment import tiny
from tests.experiment.checks import QUICK, check_one_error

TABLES = shlex.split("compare --private a.csv --public b.csv --test c.csv --label kind")
QUICKLY = ["--student.steps", "60", *QUICK, "--threads", "1", "--workers", "1", "--out", "out"]
REFERENCES = ["private labels without privacy", "public labels alone"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    """Tables, and the same rows in v.npz."""
    arrays = {}
    for seed, (split, file) in enumerate((("private", "a"), ("public", "b"), ("test", "c")), 1):
        count = 240 if file == "a" else 120
        arrays |= zip((f"{split}_x", f"{split}_y"), tiny.rows(count, seed), strict=True)
        tiny.write_table(tmp_path / f"{file}.csv", count, seed)
    np.savez(tmp_path / "v.npz", **arrays)
    monkeypatch.setattr("labelwall.experiment.plan.candidates.CELLS", (10, 40))
    monkeypatch.setattr("labelwall.experiment.plan.planner.REFINED", 1)
    monkeypatch.setattr("labelwall.experiment.plan.planner.FINAL", 2)
    return tmp_path


def test_each_method_has_its_settings_and_what_privacy_costs_stands_beside_it(
    folder: Path, capsys
) -> None:
    methods = ["reverse_knn", "gnmax", "linear_noisy_sgd"]
    command = [*TABLES, "--epsilon", "20", "--methods", *methods, *QUICKLY]
    assert pipeline.main(command) == 0
    said = "3 releases of the same records spend the sum, epsilon 60 at delta 3e-05"
    assert said in capsys.readouterr().err
    assert said in (folder / "out/comparison.md").read_text()
    table = json.loads((folder / "out/comparison.json").read_text())["table"]
    assert [row["method"] for row in table] == [*methods, *REFERENCES]
    assert [row["epsilon"] is None for row in table] == [False] * 3 + [True] * 2
    right = {row["method"]: row["accuracy"] for row in table}
    assert all(right[name] > 0.7 for name in right if name != "gnmax"), right
    chosen = folder / "out/reverse_knn/epsilon_20/seed_0/run/candidates.json"
    assert {c["mechanism"]["kind"] for c in json.loads(chosen.read_text())["candidates"]} == {
        "reverse_knn"
    }
    assert len(list((folder / "out.custodian").rglob("ledger.sqlite"))) == 2  # one for each run
    assert not (folder / "a.csv.custodian").exists()
    assert (folder / "out").stat().st_mode & 0o077 == 0
    assert pipeline.main(command) == 0  # all of it is there


def test_a_method_that_the_budget_buys_nothing_of_is_a_row(folder: Path) -> None:
    methods = ["--methods", "private_knn", "--epsilon", "0.00001"]
    assert pipeline.main([*TABLES, *methods, *QUICKLY]) == 0
    line = "| private_knn | 1e-05 |  | nothing affordable |"
    assert line in Path("out/comparison.md").read_text()


def test_settings_follow_from_public_rows_and_the_budget(folder: Path) -> None:
    cells, _ = parse_cells(["--data", "v.npz", "--epsilon", "1", "30", "--out", "o"])
    assert [cell.method for cell in cells] == [
        *("auto", "auto", "private_knn", "private_knn", "gnmax", "gnmax"),
        *("linear_noisy_sgd", "linear_noisy_sgd"),
        *REFERENCES,
    ]
    auto, votes, few, gnmax, peer = (cells[place] for place in (1, 3, 4, 5, 7))
    assert auto.config.open
    assert votes.config.open
    assert isinstance(gnmax.config.mechanism, Gnmax)
    assert gnmax.config.mechanism.teachers == 6  # 20 of 120 records each, as many as public rows
    assert gnmax.config.rounds[0].queries > few.config.rounds[0].queries
    assert (peer.baseline.batch_size, peer.baseline.expected_records) == (30, 120)
    assert {cell.epsilon for cell in cells} == {1.0, 30.0, None}


MISTAKES = {
    "--methods nonsense": "`methods` must be some of auto",
    "--methods private_knn_median": "`methods` must be some of auto",
    "--methods noisy_sgd": "`methods` must be some of auto",  # of images
    "--epsilon -1": "epsilon",
    "--epsilon much": "--epsilon",
    "--custodian_dir there": "`custodian_dir` must be left out",
    "--data missing.npz": "`data` must be an existing file",
    "--private a.csv": "`private` must be left out with --data",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(folder: Path, words: str, capsys) -> None:
    own = [] if "--data" in words else ["--data", "v.npz"]
    check_one_error(["compare", *own, *words.split(), *QUICKLY], MISTAKES[words], capsys)
