"""Benchmarks whose files others read run on few rows; all find what they import.

How often labels are right and how long it takes is chance, and is not asked here.
"""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.experiment.commands.configured import parse_cells
from labelwall.wall.datasets.sources import describe
from tests.benchmarks.conftest import ROOT


def rows(printed: str, start: str = "| ") -> list[list[str]]:
    lines = [line for line in printed.splitlines() if line.startswith(start)]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_what_benchmarks_import_is_there() -> None:
    """Also inside functions, and of those that no test runs."""
    paths = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "docs").glob("*.py")]
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("labelwall"):
                module = import_module(str(node.module))
                for name in (entry.name for entry in node.names):
                    there = hasattr(module, name) or find_spec(f"{node.module}.{name}")
                    assert there, (path.name, node.module, name)
    assert len(paths) > 35


def test_epsilon_curve(load, tmp_path: Path) -> None:
    """The picture in the documentation is that of the table beside the script."""
    _, curve = load("figures", "epsilon_curve")
    table = tmp_path / "table.csv"
    table.write_text("method,epsilon,accuracy\na,0.1,90\na,0.1,92\na,1,95\nb,1,80\n")
    assert curve.points(table) == {"a": {0.1: [90.0, 92.0], 1.0: [95.0]}, "b": {1.0: [80.0]}}
    drawn = tmp_path / "mnist_by_epsilon.svg"
    curve.draw(curve.points(curve.TABLE), drawn)
    assert drawn.read_text() == (ROOT / "docs" / "figures" / drawn.name).read_text()


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


def test_scale(load: Any, run, monkeypatch, tmp_path: Path) -> None:
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
