"""Each benchmark runs on few rows: its tables name every method, its plots are drawn.

How often labels are right and how long it takes is chance, and is not asked here.
"""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.experiment.compare.arguments import parse_cells
from labelwall.wall.datasets.sources import describe
from tests.benchmarks.conftest import ACCURACY, CHUNK, ROOT


def rows(printed: str, start: str = "| ") -> list[list[str]]:
    """The cells of a printed table's lines."""
    lines = [line for line in printed.splitlines() if line.startswith(start)]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_epsilon_curve(load, tmp_path: Path) -> None:
    """The picture in the documentation is that of the table beside the script."""
    _, curve = load("figures", "epsilon_curve")
    table = tmp_path / "table.csv"
    table.write_text("method,epsilon,accuracy\na,0.1,90\na,0.1,92\na,1,95\nb,1,80\n")
    assert curve.points(table) == {"a": {0.1: [90.0, 92.0], 1.0: [95.0]}, "b": {1.0: [80.0]}}
    drawn = tmp_path / "mnist_by_epsilon.svg"
    curve.draw(curve.points(curve.TABLE), drawn)
    assert drawn.read_text() == (ROOT / "docs" / "figures" / drawn.name).read_text()


def test_ind_knn(load, run) -> None:
    (benchmark,) = load("ind_knn")
    printed = run(benchmark, "--records 800 --dimensions 40 --batch 8 --rounds 1 --threads 1")
    names = [row[0].split(",")[0] for row in rows(printed) if "method" not in row[0]]
    assert names == ["exact", "hashed 30 x 8", "the paper's loop in numpy"]
    assert printed.splitlines()[-1].startswith("ledger:")


def test_ind_knn_accuracy(load, run, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    features, *_, accuracy = load(*ACCURACY)
    monkeypatch.setattr(features, "CHUNK", CHUNK)
    options = "--cache {0} --private 1000 --validation 100 --queries 20 --sets 2 --epsilons 40"
    options += " --epochs 1 --results {0}/results --out {0}/epsilon.svg"
    printed = run(accuracy, options, cache)
    assert (cache / "epsilon.svg").read_text().count("<path") > 10
    monkeypatch.setattr(accuracy, "ask_ind_knn", None)  # what was measured is not measured again
    assert run(accuracy, options, cache) == printed
    table = rows(printed, "| 40")
    assert [len(row) for row in table] == [9, 5]
    assert all(float(table[0][place].split()[0]) > 50 for place in (1, 3)), table
    assert all(float(table[0][place]) <= 40 for place in (4, 6))


def test_ind_knn_ablations(load, run, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    features, *_, ablations = load(*ACCURACY, "ind_knn_ablations")
    monkeypatch.setattr(features, "CHUNK", CHUNK)
    for name, few in (("LEVELS", (0.3, 0.5)), ("COPIES", (1, 2)), ("TABLES", (3,))):
        monkeypatch.setattr(ablations, name, few)
    options = "--cache {0} --private 300 --validation 100 --pool 40 --asked 10 20 30 --sets 2"
    options += " --results {0}/kept --out {0}"
    printed = run(ablations, options, cache)
    first = [line.split("|")[1].strip() for line in printed.splitlines()[2:]]
    starts = {"queries": 3, "for": 2, "records": 2, "threshold": 4, "exact": 3, "3 tables": 3}
    assert {s: len([row for row in first if row.startswith(s)]) for s in starts} == starts
    for part in ablations.PARTS:
        assert (cache / f"ind_knn_{part}.svg").read_text().startswith("<?xml")
    monkeypatch.setattr(ablations, "ask_ind_knn", None)
    assert run(ablations, options, cache) == printed


def test_retraining(load, run, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    *_, retraining = modules = load(*ACCURACY, "retraining")
    monkeypatch.setattr(modules[0], "CHUNK", CHUNK)
    monkeypatch.setattr(retraining, "MOVED", 30)
    monkeypatch.setattr(retraining, "RATES", (1.0,))
    options = "--cache {0} --private 1000 --validation 90 --queries 50 --every 20 --epochs 1"
    options += " --epsilon 8 --epsilons 1 --results {0}/kept --out {0}"
    _, *table = rows(run(retraining, options, cache))
    assert [row[0] for row in table] == ["Ind-KNN", "Ind-KNN-Hash 30 x 8", "NoisySGD"]
    assert [row[4:] for row in table[:2]] == [["8", "8"]] * 2
    assert float(table[2][4]) <= 1 < float(table[2][5])  # a retraining pays again
    for name in ("retraining_seconds.svg", "retraining_epsilon.svg"):
        assert (cache / name).read_text().count("<path") > 10
    assert "CUSTODIAN ONLY" in (cache / "retraining_epsilon.svg").read_text()


def test_noise(load, run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (benchmark,), out = load("noise"), tmp_path / "table.md"
    benchmark.__dict__.update(SECONDS=0.0)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    printed = run(benchmark, "--batches 1 30 --rounds 2 --out {0}", out)
    assert out.read_text() == printed
    table = [row for row in rows(printed)[1:] if set(row[0]) != {"-"}]
    laws = [(benchmark.named(*law), n) for law in benchmark.LAWS for n in ("1", "30")]
    assert [(row[0], row[2]) for row in table] == laws


@pytest.mark.parametrize(
    ("figures", "file"), [("radius conversion", "dmkd17_radius.svg"), ("knn", "dmkd17_knn.svg")]
)
def test_radius(radius, run, tmp_path: Path, figures: str, file: str) -> None:
    printed = run(radius, "--out {0} --figures {1}", tmp_path, figures)
    names = [line.split("|")[1].strip() for line in printed.splitlines() if "±" in line]
    assert "non-private" in names
    assert {path.name for path in tmp_path.iterdir()} == {file}
    if figures != "knn":
        assert names == ["non-private", *radius.CLASSIFIERS]
        assert printed.count(" / ") > 3


def test_radius_exports_arrays(radius, run, tmp_path: Path) -> None:
    run(radius, "--export {0}/banana.npz --fold 4", tmp_path)
    with np.load(tmp_path / "banana.npz") as stored:
        every = np.vstack([stored[f"{part}_x"] for part in ("private", "public", "test")])
        assert sorted(map(tuple, every)) == sorted(map(tuple, radius.TABLES["banana"].read()[0]))
        assert {name: len(stored[name]) for name in stored.files} == {
            **dict.fromkeys(("private_x", "private_y", "private_id"), 160),
            **dict.fromkeys(("public_x", "public_y", "test_x", "test_y"), 20),
        }


def test_rivals(load, radius, run, tmp_path: Path) -> None:
    (rivals,) = load("rivals")
    assert rivals.folds is radius.folds  # the small data set's
    rivals.__dict__.update(EPSILONS=(1.0,), QUERIES=9, K=5)
    printed = run(rivals, "--out {0}", tmp_path)
    names = [line.split("|")[1].strip() for line in printed.splitlines() if "±" in line]
    assert names == list(rivals.methods(1.0, 160, 0.1))
    assert {path.name for path in tmp_path.iterdir()} == {"dmkd17_rivals.svg"}


def test_regression(load, tmp_path: Path) -> None:
    """400 rows in place of the diamonds, few queries; its configuration reads its export."""
    (module,) = load("regression")
    x = np.random.default_rng(0).uniform(-1, 1, (400, 4)).astype(np.float32)
    values = 11.0 + 3.0 * x[:, 0].astype(np.float64)
    module.__dict__.update(diamonds=lambda: (x, values), PRIVATE=300, PUBLIC=60, QUERIES=20)
    module.__dict__.update(MEANS=module.MEANS[:1], MEDIANS=module.MEDIANS[:1])
    head, _, reference, *rest = list(module.lines(1))
    assert head == "| answers to 20 queries | epsilon | answered | RMSE | MAE | R2 |"
    assert float(reference.split("|")[4]) < 1.0  # without privacy; the values' deviation is 1.7
    names = [line.split("|")[1].strip() for line in rest]
    assert names[:3] == ["mean", "median", "median, screened"]
    assert len(names) == 7  # a linear regression at four budgets
    assert all(line.split("|")[3].strip() == "100%" for line in rest[:2])
    module.export(tmp_path / "diamonds.npz")
    options = ["--config", str(ROOT / "configs" / "compare_diamonds.yaml"), "--out", "x"]
    cells, _ = parse_cells([*options, "--data.path", str(tmp_path / "diamonds.npz")])
    task = describe(cells[0].config.data)
    assert (task.input_shape, task.labels) == ((4,), module.SCALE)
    with np.load(tmp_path / "diamonds.npz") as stored:
        assert [len(stored[f"{name}_y"]) for name in ("private", "public", "test")] == [300, 60, 40]


def test_scale(load: Any, run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In one process here, so that it takes seconds."""
    _, _, measures, scale = load("figures", "scale_model", "scale_measures", "scale")
    measures.__dict__.update(BLOCK=1000, SECONDS=0, BATCH=4)
    scale.__dict__.update(BATCH=4)

    def here(work: str, scratch: str | None = None, **fields: Any) -> dict[str, float]:
        if work == "echoed":  # a Ray worker
            return {"100": 2.0, "2513": 26.13}
        folder = tmp_path / "-".join([work, *map(str, fields.values())])
        return measures.WORKS[work](folder, **fields)

    monkeypatch.setattr(scale, "in_process", here)
    sizes = "--rows 3000 6000 --dimensions 32 --batches 3 --shards 2 --ray --ray_rows 3000"
    sizes += " --rounds 1 --threads 1 --results {0}/kept --out {0}"
    printed = run(scale, sizes, tmp_path)
    lists = [row for row in rows(printed) if row[-1] in ("yes", "NO")]
    assert [row[0] for row in lists] == ["3000", "6000", "32", "3", "2"]
    assert all(row[-1] == "yes" for row in lists)
    assert "1000000000 records on 100 machines" in printed
    assert "2 shards in one process" in printed
    for name in ("rows", "parts"):
        assert (tmp_path / f"scale_{name}.svg").read_text().count("<path") > 10
    monkeypatch.setattr(measures, "brute_force", lambda features, query, m: None)
    assert measures.one_size(tmp_path / "wrong", 300, 8, 2, 1, 1)["right"] == 0


def test_search(load, run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("KMP_BLOCKTIME", "0")
    (limits, benchmark), out = load("limits", "search"), tmp_path / "table.md"
    limits.__dict__.update(SIZES={"cpu": (64, 128)}, COPIED_BYTES=1 << 20)
    printed = run(benchmark, "--records 9000 --threads 1 --rounds 1 --batches 2 --out {0}", out)
    text = out.read_text()
    assert text in printed
    names = {row[0] for row in rows(text, "|")}
    assert len([name for name in names if "labelwall" in name]) == 3
    assert {benchmark.FAISS, "ledger: charge", "ledger: record", "votes", "noise", "all"} <= names


def test_student_speed(load, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (speed,) = load("student_speed")
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 12, 12, 1), dtype=np.uint8), np.arange(60) % 10
    monkeypatch.setattr(speed, "released", lambda _: (images, labels, labels, images, labels))
    few = {name: speed.VARIANTS[name] for name in ("float32", "bf16-mixed")}
    monkeypatch.setattr(speed, "VARIANTS", few)
    speed.main(["--steps", "12", "--repetitions", "2", "--objectives", "uda", "vat"])
    printed = capsys.readouterr().out
    assert len(re.findall(r"\| float32 \| [\d.]+ \| 1\.00 \| ", printed)) == 2
    assert printed.count("| bf16-mixed | ") == 1  # not for vat
    assert "cosine of VAT's directions" in printed
