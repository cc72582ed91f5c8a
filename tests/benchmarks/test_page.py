"""docs/results.md is made of the results' files, which benchmarks write."""

import json
import re
import sys
from pathlib import Path

import pytest

from labelwall.benchmarks import page
from labelwall.benchmarks.shared import record as recorded
from tests.benchmarks.conftest import ROOT

FILES = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
ABOUT = {"command", "commit", "seeds", "machine", "rows"}


def test_the_page_is_what_the_script_writes() -> None:
    assert page.PAGE.read_text() == page.page(), "run `python benchmarks/page.py`"
    assert len(page.PAGE.read_text().splitlines()) <= 250


def test_no_measured_number_is_typed() -> None:
    template = re.sub(r"\{\{.*?\}\}|`[^`]*`", "", page.TEMPLATE.read_text(), flags=re.DOTALL)
    assert re.findall(r"\d\.\d\d|\d ?%|\d+(?:\.\d)? points", template) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_has_the_form(path: Path) -> None:
    file = json.loads(path.read_text())
    assert file.keys() == {"setting", "columns", "runs"}
    assert file["setting"].endswith(".")
    for run in file["runs"]:
        assert run.keys() == ABOUT
        assert all(run.values()), run["command"]
        assert {len(row) for row in run["rows"]} == {len(file["columns"])}
    assert path.read_text() == recorded.dumps(file)


def test_the_index_has_a_line_for_each_file() -> None:
    """And says which results it writes."""
    folder = ROOT / "benchmarks"
    index = (folder / "README.md").read_text().splitlines()
    rows = [line.strip("|").split("|") for line in index if line.startswith("| `")]
    paths = {path.relative_to(folder).as_posix(): path for path in folder.glob("*/*.py")}
    assert sorted(row[0].strip(" `") for row in rows) == sorted(paths)
    for name, _, _, writes in rows:
        text, written = paths[name.strip(" `")].read_text(), re.findall(r"`(\w+)`", writes)
        assert bool(written) == (" add_record(parser)" in text), name
        assert all(f'"{each}"' in text for each in written), name
        assert {f"{each}.json" for each in written} <= {path.name for path in FILES}


@pytest.mark.parametrize(
    ("said", "name", "cells"),
    [
        ("README: right on 62.6%", "shift", ("200 private rows", 62.6)),
        ("README: without privacy 74.0% is possible", "shift", ("200 private rows", 74.0)),
        ("README: | 99.5 | 99.3 | 0.1 |", "configurations", ("mnist_reverse_knn", 0.1, 99.3)),
        ("README: | 99.5 | 99.3 |", "compare", ("MNIST", "all private labels, no privacy", 99.48)),
        ("README: | 76 | 77 | 1 |", "own_folders", (1, 76.0, 77.4)),
        ("README: | 76 | 77 | 1 |", "own_folders", (1, 75.8, 77.4)),
        ("README: with `--refine` | 10 | | 80 | 1 |", "refined", (6000, 1500, 1.0, 80.2)),
        ("README: (6,000, 1,000) | | 73.1 |", "fresh", ("movies", 2, "logistic", 73.1)),
        ("README: | | 73.1 | 72.0 | 1 |", "fresh", ("movies", 2, "labelwall", 72.0)),
        ("README: | 64 | 81.6 | 78.8 | 1 |", "texts", ("reviews", 78.8, 81.6, 63.8)),
        ("README: | 82.3 | 83.2; 79.8 | 1 |", "shift", ("solar cells, poly", 82.3, 83.2)),
        ("README: 83.2; 79.8", "shift", ("solar cells, poly; public ones mono", 82.3, 79.8)),
        ("README: 75.4% at 0.1", "linear_accuracy", ("CIFAR-10, three depths", 0.1, 77.3, 75.4)),
        ("README: 81.3% at 1", "linear_accuracy", ("CIFAR-10, three depths", 1, 81.7, 81.3)),
        ("README: 68.1% at 1.958", "compare", ("CIFAR-10's last layer", "GNMAX, 1.958", 68.1)),
        ("README: 70.6% at 0.1", "compare", ("CIFAR-10's last layer", "reverse kNN, 0.1", 70.56)),
        ("README: a forest 82.7%", "rivals", ("random forest (claimed)", 1, 82.7)),
        ("README: labelwall 88.0% to 89.6%", "compare_banana", ("reverse kNN", 88.0)),
        ("README: labelwall 88.0% to 89.6%", "compare_banana", ("Ind-KNN's labels", 89.6)),
        ("README: test accuracy 97.20%", "configurations", ("quickstart", 0.981, 97.2)),
        ("docs/methods: 99.12% on MNIST", "configurations", ("mnist_tiny_budgets", 99.12)),
        ("docs/methods: 99.00% on MNIST at 0.1", "compare", ("MNIST", "reverse kNN, 0.1", 99.0)),
        ("docs/methods: 98.54% at 0.758", "compare", ("MNIST", "Private-kNN, 0.758", 98.54)),
        ("docs/methods: 98.68% at 7.782", "compare", ("MNIST", "LNMAX, 7.782", 98.68)),
        ("docs/methods: 98.26% at 1.958", "compare", ("MNIST", "GNMAX, 1.958", 98.26)),
        ("docs/methods: 98.28% at 1.951", "compare", ("MNIST", "Confident-GNMAX, 1.951", 98.28)),
        ("docs/methods: MNIST: 98.62%", "compare", ("MNIST", "Linear NoisySGD, 1.96", 98.62)),
        ("docs/methods: 98.34% at 1.96", "compare", ("MNIST", "NoisySGD, 1.954", 98.34)),
        ("docs/methods: 77.7% of 1,000", "ind_knn_accuracy", ("CIFAR-10", 1, 77.7)),
    ],
)
def test_a_page_says_what_was_measured(said: str, name: str, cells: tuple) -> None:
    where, _, words = said.partition(": ")
    assert words in " ".join((ROOT / f"{where}.md").read_text().split())
    runs = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["runs"]
    assert any({*cells} <= {*row} for run in runs for row in run["rows"])


def test_cells_are_filled(monkeypatch) -> None:
    rows = [["a", 1000, 0.5, 2.25], ["a", 0, 3.0, None], ["b", None, 0.5, 1.0]]
    file = {"setting": "S.", "columns": ["x", "n", "e", "y"], "runs": [{"rows": rows}]}
    monkeypatch.setattr(page, "stored", lambda name: file)
    cells = "{x} | {n} | {y}[ ({e})] | [{n}: {y}]"
    assert [*page.part("made", cells)] == [
        ["a", "1,000", "2.25 (0.5)", "1,000: 2.25"],
        ["a", "0", "", ""],
        ["b", "", "1.00 (0.5)", ""],
    ]
    assert [*page.part("made", "{x} | {e}", by="{x}")] == [["a", "0.5, 3.0"], ["b", "0.5"]]
    assert [*page.part("made", "{e}", where={"x": ["b"]})] == [["0.5"]]
    shown = "| c | 0.5 | 3.0 |\n|---|---|---|\n| a | 1,000 | 0 |\n| b |  |  |"
    assert page.pivot("made", "c", "{x}", "{e}", "{n}") == shown


def test_a_row_measured_anew_replaces_the_old_one(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recorded, "RESULTS", tmp_path / "benchmarks" / "results")
    recorded.RESULTS.mkdir(parents=True)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "benchmarks/x.py"), "--a", "b c", "--record"])
    columns = ["set", "epsilon", "right"]
    old = [["a", 1, 80.0], ["b", 1, 70.0]]
    for rows in (old, [["c", 1, 60.0]], [["b", 1, 71.0]]):
        recorded.record("made", columns, rows, keys=2, seeds=[0])
    runs = json.loads((recorded.RESULTS / "made.json").read_text())["runs"]
    assert [run["rows"] for run in runs] == [[["b", 1, 71.0]], [["a", 1, 80.0]], [["c", 1, 60.0]]]
    assert {run["command"] for run in runs} == {"python benchmarks/x.py --a 'b c'"}
    assert all(run["machine"] and run["commit"] for run in runs)
    with pytest.raises(ValueError, match="has the columns"):
        recorded.record("made", columns[1:], [[1, 2.0]], keys=1, seeds=[0])
