"""Benchmarks whose files others read run on few rows; all find what they import.

How often labels are right and how long it takes is chance, and is not asked here.
"""

import ast
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from labelwall.experiment.commands.configured import parse_cells
from labelwall.wall.datasets.sources import describe
from tests.benchmarks.conftest import ROOT


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


def test_radius_exports_arrays(load, run, tmp_path: Path) -> None:
    """200 rows in place of KEEL's."""
    _, tables, radius = load("figures", "tables", "radius")
    rows = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    kept = tables.TABLES["banana"], rows, (rows[:, 0] > 0).astype(np.int64)
    tables.TABLES["banana"] = replace(kept[0], read=lambda: kept[1:])
    run(radius, "--export {0}/banana.npz --fold 4", tmp_path)
    with np.load(tmp_path / "banana.npz") as stored:
        every = np.vstack([stored[f"{part}_x"] for part in ("private", "public", "test")])
        assert sorted(map(tuple, every)) == sorted(map(tuple, rows))
        assert {name: len(stored[name]) for name in stored.files} == {
            **dict.fromkeys(("private_x", "private_y", "private_id"), 160),
            **dict.fromkeys(("public_x", "public_y", "test_x", "test_y"), 20),
        }


def test_regression_exports_what_its_configuration_reads(load, tmp_path: Path) -> None:
    """400 rows in place of the diamonds."""
    (module,) = load("regression")
    x = np.random.default_rng(0).uniform(-1, 1, (400, 4)).astype(np.float32)
    values = 11.0 + 3.0 * x[:, 0].astype(np.float64)
    module.__dict__.update(diamonds=lambda: (x, values), PRIVATE=300, PUBLIC=60)
    module.export(tmp_path / "diamonds.npz")
    options = ["--config", str(ROOT / "configs" / "compare_diamonds.yaml"), "--out", "x"]
    cells, _ = parse_cells([*options, "--data.path", str(tmp_path / "diamonds.npz")])
    task = describe(cells[0].config.data)
    assert (task.input_shape, task.labels) == ((4,), module.SCALE)
    with np.load(tmp_path / "diamonds.npz") as stored:
        assert [len(stored[f"{name}_y"]) for name in ("private", "public", "test")] == [300, 60, 40]
