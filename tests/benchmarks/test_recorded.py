"""What benchmarks write has the columns of the file that is there; measuring is made up here."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from labelwall.benchmarks.accuracy import (
    custodians,
    linear_accuracy,
    periods,
    persons,
    regression,
    rivals,
    shift,
    student_objectives,
    texts,
)
from labelwall.benchmarks.service import service
from labelwall.benchmarks.shared import record as recorded
from tests.benchmarks.conftest import ROOT

SHARES = dict.fromkeys(shift.COLUMNS, 0.5) | {"estimate": None}
ROWS = (np.eye(8, 2, dtype=np.float32), np.arange(8) % 2)
TEXT = {"student": 0.5, "epsilon": 1.0, "seconds": 1.0, "labels": None, "unknown": "few"}
MONTHS = [
    {"kind": kind, "month": month, "right": 0.5}
    for kind, month in (("month one", 1), ("once", 12), ("update", 1), ("update", 2))
]
SCORES = dict.fromkeys(("rmse", "mae", "r2"), 0.5)


def made(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


COMMANDS = [  # a benchmark, its options, its functions that measure, and what it writes
    (
        shift,
        "--scratch {0} --out {0}/out --cases --photographs zip --changes photographs --epsilons 2",
        {"measure": SHARES, "photographs": {}},
        {"own_folders": [["photographs", 2.0, seed, 50.0, 50.0, 50.0] for seed in range(3)]},
    ),
    (
        shift,
        "--scratch {0} --out {0}/out --cases --modules mono",
        {"measure": SHARES, "modules": {}},
        {"shift": [["solar cells, mono", 1.0, 3, *[50.0] * 5, None, 50.0]]},
    ),
    (
        texts,
        "--scratch {0} --out {0}/out --sets reviews --seeds 0 1",
        {"measure": TEXT, "without_privacy": 0.25, "rows_of": (["a", "b"] * 5000, ["x"] * 10_000)},
        {"texts": [["reviews", "reviews", "hashed", 6000, 1.0, 50.0, 25.0, 100.0]]},
    ),
    (
        linear_accuracy,
        "--table iris --epsilons 1",
        {"table": (ROWS, ROWS), "accuracy": 0.5, "peer": (linear_accuracy.Descent(1, 1.0), [0.25])},
        {"linear_accuracy": [["iris", 8, 1.0, 50.0, 25.0]]},
    ),
    (
        rivals,
        "--out {0}",
        {"folds": [], "plot": None, "measure": {"a": [(0.5, 0.01)] * 3}},
        {"rivals": [["a", epsilon, 50.0, 1.0] for epsilon in rivals.EPSILONS]},
    ),
    (
        custodians,
        "--scratch {0} --out {0}/out --counts 1",
        {"texts": ROWS, "vectors": {"private_x": ROWS[0], "private_y": ROWS[1]}, "student": 0.5},
        {"custodians": [["docstrings", "equal", 1, 50.0, None]]},
    ),
    (
        periods,
        "--scratch {0} --out {0}/out",
        {"texts": ROWS, "fits": MONTHS},
        {
            "periods": [
                ["docstrings", "the whole epsilon once", 0, 50.0, *[None] * 4, 50.0],
                ["docstrings", "equal parts", 0, 50.0, 50.0, *[None] * 4],
            ]
        },
    ),
    (
        persons,
        "--data x --persons 5 --made alike --mechanisms reverse_knn --seeds 0",
        {"vectors": None, "split": None, "measured": [("reverse_knn", "row", 0.5)]},
        {"persons": [["reverse_knn", 5, "alike", 1.0, 50.0, None, None, None]]},
    ),
    (
        regression,
        "--repeats 1",
        {"measured": [regression._row("mean", "k = 1", 0.25, [(1.0, SCORES)])]},
        {"diamonds": [["mean", "k = 1", 0.25, 100.0, 0.5, 0.5, 0.5]]},
    ),
    (
        student_objectives,
        "--seeds 1",
        {"released": (None, np.zeros(2, np.int64), np.arange(2)), "accuracy": 0.25},
        {
            "student_objectives": [
                ["labels", *[50.0] * 3],
                *([name, *[25.0] * 3] for name in student_objectives.OBJECTIVES),
            ]
        },
    ),
    (
        service,
        "--images 0",
        {"measure": (["vectors", 5, 0.5], [[1, 2, 3]])},
        {"service_latency": [[1, 2, 3]], "service_throughput": [["vectors", 5, 0.5]]},
    ),
]


@pytest.mark.parametrize(("module", "options", "functions", "written"), COMMANDS)
def test_a_benchmark_writes_its_result(
    module: ModuleType,
    options: str,
    functions: dict,
    written: dict,
    run,
    tmp_path: Path,
    monkeypatch,
) -> None:
    monkeypatch.setattr(recorded, "RESULTS", tmp_path / "benchmarks" / "results")
    shutil.copytree(ROOT / "benchmarks" / "results", recorded.RESULTS)
    monkeypatch.setattr(recorded, "command", lambda: "this")
    for name, value in functions.items():
        monkeypatch.setattr(module, name, made(value))
    run(module, f"{options} --record", tmp_path)
    for name, rows in written.items():
        runs = json.loads((recorded.RESULTS / f"{name}.json").read_text())["runs"]
        assert [each["rows"] for each in runs if each["command"] == "this"] == [rows]
