"""Lines of a comparison's cells, and its tables."""

import csv
import io

import pytest

from labelwall.experiment.compare.cells import MethodConfig
from labelwall.experiment.compare.table import (
    COLUMNS,
    groups_table,
    lines_of,
    render,
    summarise,
    to_csv,
)
from labelwall.wall.errors import InvalidInput

KNN = {"method": "private_knn k=10", "budget": 1.0, "delta": 1e-5, "epsilon": 0.9}
RESULTS = [
    {**KNN, "seed": 0, "labels": 10, "accuracy": 0.5, "cpu_seconds": 3.0},
    {**KNN, "seed": 1, "labels": 12, "accuracy": 0.7, "cpu_seconds": 3.0, "epsilon": 0.95},
    {"method": "forest", "budget": 2.0, "epsilon": 2.0, "claim": "its own", "accuracy": 0.25},
    {"method": "none", "budget": None, "epsilon": None, "accuracy": 0.9},
    {"method": "poor", "budget": 0.1, "epsilon": 0.1, "refused": "0.1 buys nothing, not one"},
]


def test_a_line_a_cell_with_the_same_columns() -> None:
    lines = lines_of(RESULTS, "rows, of mine")
    read = list(csv.DictReader(io.StringIO(to_csv(lines))))
    assert [list(row) for row in read] == [list(COLUMNS)] * len(RESULTS)
    assert [row["accuracy"] for row in read] == ["0.5", "0.7", "0.25", "0.9", ""]
    assert {row["data"] for row in read} == {"rows, of mine"}
    assert read[4]["refused"] == "0.1 buys nothing, not one"
    assert (read[2]["claim"], read[3]["epsilon"]) == ("its own", "")


def test_a_method_has_a_plain_name() -> None:
    for name in ("a&b", "a%", "a$", "a|b", "../a", ""):
        with pytest.raises(InvalidInput, match="letters, digits"):
            MethodConfig(name=name, reference="true_labels")


def test_values_have_errors() -> None:
    found = {"rmse": 2.0, "mae": 1.5, "r2": 0.25}
    result = {"method": "mean", "budget": 1.0, "epsilon": 1.0, "accuracy": None, "errors": found}
    more = {"label_errors": {"rmse": 3.0}, "labels": 4}
    lines = lines_of([result | more, {**result, "errors": {**found, "r2": 0.75}}], "a")
    assert [(line["rmse"], line["r2"], line["label_rmse"]) for line in lines] == [
        (2.0, 0.25, 3.0),
        (2.0, 0.75, None),
    ]


def test_measures_are_columns_and_one_of_them_can_be_shown() -> None:
    first, *others = RESULTS
    results = [{**first, "measures": {"auroc": 0.75, "brier": 0.125}}, *others]
    lines = lines_of(results, "a")
    assert [line["auroc"] for line in lines] == [0.75, None, None, None, None]
    shown = render(summarise([{"cpu_seconds": 1.0, **result} for result in results], "auroc"))
    assert "| private_knn k=10 | 0.95 | 11 |  | 0.7500 (0.7500 to 0.7500) | 2 | 3 |" in shown
    assert "| forest | 2 (claimed) |  |  | unknown | 1 | 1 |" in shown
    assert "| poor | 0.1 |  | nothing affordable |" in shown


def test_each_group_of_test_rows_has_a_table() -> None:
    first, second, *_ = RESULTS
    women, men = {"accuracy": 0.5, "auroc": 0.625}, {"accuracy": 0.75, "auroc": None}
    of_men = "men of the\nnorth"
    results = [{**first, "groups": {"women": women, of_men: men}}, second]
    assert [line[f"accuracy of {of_men}"] for line in lines_of(results, "a")] == [0.75, None]
    for measure, of_women, others in (
        ("accuracy", "50.00% (50.00 to 50.00)", "75.00% (75.00 to 75.00)"),
        ("auroc", "0.6250 (0.6250 to 0.6250)", "unknown"),
    ):
        _, *shown = groups_table(results, measure).split("Test rows of the group ")
        assert [table.partition(":")[0] for table in shown] == ["women", "men of the north"]
        for table, score in zip(shown, (of_women, others), strict=True):
            assert f"| private_knn k=10 | 0.95 | 11 |  | {score} | 2 | 3 |" in table.splitlines()
    assert groups_table([first, second], "auroc") == groups_table([], "auroc") == ""
