"""Measures of the test rows by a column that a configuration names: everywhere where measures are,
and of each group those that scikit-learn computes of its rows.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score

import labelwall as lw
from labelwall import pipeline
from labelwall.student.measures import MEANS
from labelwall.teacher.custody.places import identity
from labelwall.wall.datasets.data_config import MOST_GROUPS, DataConfig
from labelwall.wall.datasets.sources import read_public
from labelwall.wall.errors import InvalidInput
from tests.experiment.checks import check_one_error

GROUPS = ("A", "b|c", "")
COMMAND = "run --private a.csv --public b.csv --test c.csv --label kind --epsilon 5 --quiet"
COMMAND += " --run_dir run --mechanism.kind private_linear --mechanism.steps 20 --rounds [{}]"
COMMAND += " --student.steps 20 --threads 1"


@pytest.fixture
def frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pandas.DataFrame:
    """The test rows c.csv, beside a.csv and b.csv; their column group has GROUPS."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for file, count in {"a": 300, "b": 120, "c": 200}.items():
        kind = rng.integers(0, 2, count)
        columns = {"u": kind + rng.normal(size=count) / 1.5, "v": rng.normal(size=count)}
        rows = pandas.DataFrame(columns | {"kind": np.array(["no", "yes"])[kind]})
        if file == "c":
            rows["group"] = rng.choice(GROUPS, count, p=[0.6, 0.3, 0.1])
        rows.to_csv(f"{file}.csv", index=False)
    return rows


def test_each_group_has_its_measures_in_every_place(frame: pandas.DataFrame) -> None:
    assert pipeline.main([*COMMAND.split(), "--data.group", "group"]) == 0
    model = lw.load("run")
    kept = model.summary.kept
    assert [*kept.groups] == [*GROUPS]
    chances = model.predict_proba(frame[["u", "v"]])
    for name, one in kept.groups.items():
        rows = (frame["group"] == name).to_numpy()
        truth = (frame["kind"] == "yes").to_numpy()[rows]
        assert one.rows == rows.sum()
        auroc, precision = one.names["yes"].auroc, one.names["yes"].average_precision
        assert auroc == pytest.approx(roc_auc_score(truth, chances[rows, 1]), abs=1e-9)
        expected = average_precision_score(truth, chances[rows, 1])
        assert precision == pytest.approx(expected, abs=1e-9)
        right = balanced_accuracy_score(truth, chances[rows].argmax(axis=1))
        assert one.balanced_accuracy == pytest.approx(right, abs=1e-9)
    shown = f"{kept.groups['A'].auroc:.4g}"
    card, page = (Path("run", name).read_text() for name in ("MODEL_CARD.md", "report.html"))
    row = next(line for line in card.splitlines() if line.startswith("| group: A |"))
    assert shown in row
    assert r"| group: b\|c |" in card
    assert "| group: none |" in card
    assert kept.measures is not None
    assert f"| all | 200 | {100 * kept.measures.balanced_accuracy:.2f}% |" in card
    assert "Test rows by group" in page
    assert page.count(shown) >= 1
    assert "<td>b|c</td>" in page


def test_other_groups_are_scored_anew_at_no_price(frame: pandas.DataFrame) -> None:
    command = [*COMMAND.split(), "--data.group", "group"]
    assert pipeline.main(command) == 0
    before = lw.audit("run").epsilon
    frame.assign(group="all").to_csv("c.csv", index=False)
    assert pipeline.main(command) == 0
    assert [*lw.load("run").summary.kept.groups] == ["all"]
    assert lw.audit("run").epsilon == before


def test_a_comparison_tells_groups_of_each_cell(frame: pandas.DataFrame) -> None:
    data = lw.Data("a.csv", "b.csv", "c.csv", label="kind")
    settings = {"data": {"group": "group"}, "student": {"steps": 20}, "threads": 1}
    table = lw.compare(data, ["private_linear"], [5.0], seeds=[0], out="out", **settings)
    with open("out/comparison.csv") as file:
        lines = [*csv.DictReader(file)]
    assert all(float(line["auroc of A"]) > 0.5 for line in lines)
    named = [f"{measure} of {group}" for group in GROUPS for measure in ("accuracy", *MEANS)]
    assert [*lines[0]][-len(named) :] == named
    assert [*table.frame().columns][-len(named) :] == named
    cells = json.loads(Path("out/comparison.json").read_text())["cells"]
    assert all([*cell["groups"]] == [*GROUPS] for cell in cells)
    page = Path("out/comparison.md").read_text()
    assert page.count("Test rows of the group ") == len(GROUPS)


def test_groups_of_rows_that_are_held_out_and_of_images(frame, tmp_path: Path) -> None:
    frame.assign(group=frame["kind"]).to_csv("d.csv", index=False)
    settings = {"private": "a.csv", "label": "kind", "group": "group", "ignore": ["group"]}
    public = read_public(DataConfig("table", public="d.csv", **settings))
    assert public.held_out
    assert public.test_groups is not None
    assert public.test_groups.tolist() == [("no", "yes")[code] for code in public.test_labels]
    whole = read_public(DataConfig("table", public="d.csv", test="c.csv", **settings))
    assert whole.test_groups is not None
    assert whole.test_groups.tolist() == frame["group"].tolist()
    for split in ("public", "test"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            for n in range(3):
                pixels = np.full((8, 8), 9 * n + (name == "cat"), np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{n}.png")
    lines = [f"{name}/{n}.png,scanner {n}" for name in ("cat", "dog") for n in range(2)]
    (tmp_path / "test" / "metadata.csv").write_text("\n".join(["path,scanner", *lines]))
    config = DataConfig(
        "folder", public="public", test="test", group="scanner", channels=1, image_size=8
    )
    images = read_public(config)
    assert images.test_groups is not None
    greys = {0: "scanner 0", 1: "scanner 0", 9: "scanner 1", 10: "scanner 1", 18: "", 19: ""}
    found = {
        int(i[0, 0, 0]): g for i, g in zip(images.test_inputs, images.test_groups, strict=True)
    }
    assert found == greys


def test_a_mistake_is_one_line_and_the_group_is_no_part_of_the_budgets_rows(frame, capsys) -> None:
    check_one_error([*COMMAND.split(), "--data.group", "grup"], "Did you mean 'group'?", capsys)
    frame.assign(group=range(len(frame))).to_csv("c.csv", index=False)
    error = f"of at most {MOST_GROUPS} groups"
    check_one_error([*COMMAND.split(), "--data.group", "group"], error, capsys)
    assert not Path("a.csv.custodian").exists()
    with pytest.raises(InvalidInput, match=r"model\.evaluate"):
        DataConfig("arrays", path="data.npz", group="group")
    with pytest.raises(InvalidInput, match=r"Leave out `data.group`: values have"):
        DataConfig("table", private="a.csv", group="group", labels="value", bounds=[0, 1])
    named = DataConfig("table", private="a.csv", public="b.csv", group="group")
    assert identity(named) == identity(DataConfig("table", private="a.csv", public="b.csv"))
