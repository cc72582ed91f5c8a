"""The benchmark of batches runs on a small data set and prints its tables, plots and export."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "radius.py"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with 200 rows in place of KEEL's, one batch a fold and few settings."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("benchmark_radius", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark_radius", made)
    spec.loader.exec_module(made)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 2)).astype(np.float32)
    made.__dict__.update(keel=lambda: (rows, (rows[:, 0] > 0).astype(np.int64)), BATCHES=1, EPSILONS=(1.0,), QUERIES=(5, 9))
    made.__dict__.update(NEIGHBOURS=(5,), CONVERSION_EPSILONS=(1.0,), RADIUS=0.1)
    return made


def test_it_prints_its_tables_and_draws_its_plots(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", str(tmp_path), "--figures", "radius", "conversion"])
    module.main()
    printed = capsys.readouterr().out
    assert [line.split("|")[1].strip() for line in printed.splitlines() if "±" in line] == ["non-private", *module.CLASSIFIERS]
    assert printed.count(" / ") > 3
    assert {path.name for path in tmp_path.iterdir()} == {"dmkd17_radius.svg"}


def test_the_export_is_a_source_of_arrays(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--export", str(tmp_path / "banana.npz")])
    module.main()
    with np.load(tmp_path / "banana.npz") as stored:
        assert {name: len(stored[name]) for name in stored.files} == {
            **dict.fromkeys(("private_x", "private_y", "private_id"), 160),
            **dict.fromkeys(("public_x", "public_y", "test_x", "test_y"), 20),
        }
