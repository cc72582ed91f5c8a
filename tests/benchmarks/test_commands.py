"""Benchmarks run on few rows, and what they compute. How often labels are right is not asked."""

import ast
import json
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from labelwall.benchmarks.accuracy import radius, regression
from labelwall.benchmarks.figures import epsilon_curve as curve
from labelwall.benchmarks.shared import image_features, tables
from labelwall.benchmarks.speed import scale_model as model
from labelwall.experiment.commands.configured import parse_cells
from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.sources import describe, read_public
from tests.benchmarks.conftest import ROOT


def test_what_benchmarks_import_is_there() -> None:
    """Also inside functions, and of those that no test runs; another benchmark by its full name."""
    benchmarks = [*(ROOT / "benchmarks").rglob("*.py")]
    ours = {path.stem for path in benchmarks}
    for path in [*benchmarks, *(ROOT / "docs").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not ours & {entry.name for entry in node.names}, path
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ours, (path, node.module)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("labelwall"):
                module = import_module(str(node.module))
                for name in (entry.name for entry in node.names):
                    there = hasattr(module, name) or find_spec(f"{node.module}.{name}")
                    assert there, (path.name, node.module, name)
    assert len(ours) > 35


def test_epsilon_curve(tmp_path: Path) -> None:
    """The picture in the documentation is that of the table beside the script."""
    table = tmp_path / "table.json"
    rows = [["a", 0.1, 90.0], ["a", 0.1, 92.0]], [["a", 1, 95.0], ["b", 1, 80.0]]
    table.write_text(json.dumps({"runs": [{"rows": each} for each in rows]}))
    assert curve.points(table) == {"a": {0.1: [90.0, 92.0], 1.0: [95.0]}, "b": {1.0: [80.0]}}
    drawn = tmp_path / "mnist_by_epsilon.svg"
    curve.draw(curve.points(curve.TABLE), drawn)
    assert drawn.read_text() == (ROOT / "docs" / "figures" / drawn.name).read_text()


def test_radius_exports_arrays(run, tmp_path: Path, monkeypatch) -> None:
    """200 rows in place of KEEL's."""
    rows = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    kept = tables.TABLES["banana"], rows, (rows[:, 0] > 0).astype(np.int64)
    monkeypatch.setitem(tables.TABLES, "banana", replace(kept[0], read=lambda: kept[1:]))
    run(radius, "--export {0}/banana.npz --fold 4", tmp_path)
    with np.load(tmp_path / "banana.npz") as stored:
        every = np.vstack([stored[f"{part}_x"] for part in ("private", "public", "test")])
        assert sorted(map(tuple, every)) == sorted(map(tuple, rows))
        assert {name: len(stored[name]) for name in stored.files} == {
            **dict.fromkeys(("private_x", "private_y", "private_id"), 160),
            **dict.fromkeys(("public_x", "public_y", "test_x", "test_y"), 20),
        }


def test_regression_exports_what_its_configuration_reads(tmp_path: Path, monkeypatch) -> None:
    """400 rows in place of the diamonds."""
    x = np.random.default_rng(0).uniform(-1, 1, (400, 4)).astype(np.float32)
    values = 11.0 + 3.0 * x[:, 0].astype(np.float64)
    for name, value in {"diamonds": lambda: (x, values), "PRIVATE": 300, "PUBLIC": 60}.items():
        monkeypatch.setattr(regression, name, value)
    regression.export(tmp_path / "diamonds.npz")
    options = ["--config", str(ROOT / "configs" / "compare_diamonds.yaml"), "--out", "x"]
    cells, _ = parse_cells([*options, "--data.path", str(tmp_path / "diamonds.npz")])
    task = describe(cells[0].config.data)
    assert (task.input_shape, task.labels) == ((4,), regression.SCALE)
    with np.load(tmp_path / "diamonds.npz") as stored:
        assert [len(stored[f"{name}_y"]) for name in ("private", "public", "test")] == [300, 60, 40]


def test_cached_features_become_arrays_whose_centre_is_of_public_rows(tmp_path: Path) -> None:
    private = np.random.default_rng(1).normal(size=(6, 4)) - 40
    test = np.random.default_rng(0).normal(size=(6, 4)) + 5
    for n, part in enumerate((slice(0, 3), slice(3, 6))):
        np.savez(tmp_path / f"test_00{n}.npz", features=test[part], labels=np.arange(6)[part] % 2)
        np.savez(tmp_path / f"train_00{n}.npz", features=private[part], labels=np.array([1, 1, 0]))
    image_features.to_arrays(tmp_path, tmp_path / "rows.npz")
    data = DataConfig("arrays", path=str(tmp_path / "rows.npz"))
    public, records = read_public(data), open_records(data, describe(data))
    pairs = ((public.inputs, test[:3]), (public.test_inputs, test[3:]), (records.inputs, private))
    for stored, rows in pairs:
        moved = rows - test[:3].mean(axis=0)
        unit = moved / np.linalg.norm(moved, axis=1, keepdims=True)
        np.testing.assert_allclose(stored, 2 * unit, rtol=1e-5)
    assert public.labels is not None
    assert [*public.labels, *public.test_labels] == [0, 1, 0, 1, 0, 1]
    assert records.labels.tolist() == [1, 1, 0, 1, 1, 0]


def test_the_model_of_scale_finds_the_constants_that_made_the_times() -> None:
    """Times of a machine with known constants; then what they add up to for shards, by hand."""
    pair, entry = 1.5e-6, 2e-5
    times = {rows: pair * rows + entry * model.LIST for rows in (10**4, 10**5, 10**6)}
    echoes = {width: 3.0 + 1e-5 * 256 * width for width in (100, 500, 2513)}
    fit = model.fitted(times, echoes, 256, 4e-5)
    constants = (fit.pair, fit.entry, fit.request, fit.returned)
    assert constants == pytest.approx((pair, entry, 3.0, 1e-5))
    assert model.asked_for(100) == 64  # 25.13 + 6 * 5.013 + 8 = 63.2, rounded up
    assert model.asked_for(1) == 2513
    parts = model.cost(fit, 10**9, 100, 256, threads=16, ray=True)
    workers = 100 * 3.0 / 256 + 6400 * 1e-5
    by_hand = {"search": (15 + 64 * entry) / 16, "workers": workers, "merge": 6400 * 4e-5}
    assert parts == pytest.approx(by_hand)
    alone = model.cost(fit, 10**6, 4, 256)["search"]
    assert alone == pytest.approx(1.5 + 4 * model.asked_for(4) * entry)
