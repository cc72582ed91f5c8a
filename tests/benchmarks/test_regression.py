"""The benchmark of neighbours' values runs on a small data set and prints its table.

Its configuration reads what it exports.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from labelwall.experiment.compare.config import parse_comparison
from labelwall.wall.datasets.sources import describe
from labelwall.wall.errors import MissingData

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As it is."""
    spec = importlib.util.spec_from_file_location(
        "benchmark_regression", ROOT / "benchmarks" / "regression.py"
    )
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def module(script: ModuleType) -> ModuleType:
    """The script, with 400 rows in place of the diamonds, few queries and two mechanisms."""
    x = np.random.default_rng(0).uniform(-1, 1, (400, 4)).astype(np.float32)
    script.__dict__.update(
        diamonds=lambda: (x, 11.0 + 3.0 * x[:, 0].astype(np.float64)),
        PRIVATE=300,
        PUBLIC=60,
        QUERIES=20,
    )
    script.__dict__.update(MEANS=script.MEANS[:1], MEDIANS=script.MEDIANS[:1])
    return script


def test_it_prints_a_line_for_every_mechanism(module: ModuleType) -> None:
    head, _, reference, *rest = list(module.lines(1))
    assert head == "| answers to 20 queries | epsilon | answered | RMSE | MAE | R2 |"
    assert float(reference.split("|")[4]) < 1.0  # without privacy; the values' deviation is 1.7
    names = [line.split("|")[1].strip() for line in rest]
    assert names[:3] == ["mean", "median", "median, screened"]
    assert all(name.startswith("linear regression (sigma = ") for name in names[3:])
    assert len(names) == 7  # at four budgets
    assert all(line.split("|")[3].strip() == "100%" for line in rest[:2])


def test_its_export_is_what_its_configuration_reads(module: ModuleType, tmp_path: Path) -> None:
    module.export(tmp_path / "diamonds.npz")
    config, _ = parse_comparison(
        [
            "--config",
            str(ROOT / "configs" / "compare_diamonds.yaml"),
            "--data.path",
            str(tmp_path / "diamonds.npz"),
            "--out",
            "x",
        ]
    )
    task = describe(config.data)
    assert (task.input_shape, task.labels) == ((4,), module.SCALE)
    with np.load(tmp_path / "diamonds.npz") as stored:
        assert [len(stored[f"{name}_y"]) for name in ("private", "public", "test")] == [300, 60, 40]


def test_without_the_package_it_says_how_to_get_it(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingData, match="plotnine"):
        script.diamonds()
