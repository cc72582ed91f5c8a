"""Without test rows labelled public ones are held out, or accuracy stays unknown; it is said."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import labelwall as lw
from labelwall.experiment.plan.rehearsal import labelled_rows
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.sources import read_public
from tests.experiment import tiny
from tests.experiment.checks import check_one_error, shown, summary
from tests.experiment.test_kinds import write
from tests.experiment.test_own_data import QUICK

NAMES = np.array(["ant", "bee", "cat"])


def gaps(labels: np.ndarray) -> np.ndarray:
    """Labels of which every fourth is unknown."""
    return np.where(np.arange(len(labels)) % 4 == 0, -1, labels)


@pytest.mark.parametrize("name", ["sums", "sums of attributes", "sums of values"])
def test_accuracy_is_absent_and_everything_else_is_there(name: str, capsys) -> None:
    write(name)
    tiny.change(test_x=None, test_y=None, public_y=None)
    run = ["run", "--config", "config.yaml", "--run_dir", "out"]
    if name == "sums":
        check_one_error(run, "`data.classes` must be the names of the classes", capsys)
        run += ["--data.classes", "[a, b, c]"]
    text = shown(capsys, *run)
    assert "no test rows, so no accuracy. Label a hundred public rows" in text
    assert "no test rows, labels" in text
    told = summary()
    assert (told["test_accuracy"], told["test_rows"], told["held_out"]) == (None, 0, False)
    assert told.get("test_errors") is None
    card, report = (Path("out", file).read_text() for file in ("MODEL_CARD.md", "report.html"))
    assert "Unknown: no test rows, labels" in card
    assert "model-index" not in card
    assert "accuracy: no test rows, labels" in report
    model = lw.load("out")
    inputs = tiny.rows(9, 3)[0]
    assert len(model.predict(inputs)) == 9
    assert asdict(model.estimate_) == told["rounds"][told["best_round"] - 1]["estimate"]


def test_labelled_public_rows_are_held_out(capsys) -> None:
    tiny.write()
    x, y = tiny.rows(400, 2)
    tiny.change(test_x=None, test_y=None, public_x=x, public_y=gaps(y))
    command = ["run", "--data", "data.npz", "--epsilon", "8", *QUICK[:-1]]
    command += ["--features", "raw", "--mechanism.kind", "private_linear", "--mechanism.steps", "5"]
    text = shown(capsys, *command)
    assert "no test rows: 60 of the labelled public ones are held out" in text
    told = summary("runs/data")
    assert (told["public_rows"], told["test_rows"], told["held_out"]) == (340, 60, True)
    assert told["test_accuracy"] > 0.6
    assert "60 rows held out of the labelled" in Path("runs/data/MODEL_CARD.md").read_text()
    public = read_public(DataConfig(source="arrays", path="data.npz"))
    rehearsed = labelled_rows(public, 4000, 0)  # the other labelled ones
    assert rehearsed is not None
    assert rehearsed.source.startswith("240 labelled public rows")
    assert public.labels is not None
    both = np.concatenate([public.inputs, public.test_inputs])
    np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(x, axis=0))
    assert (public.labels < 0).sum() == 100
    shown(capsys, *command)  # the same rows again


def in_folders(place: Path, labelled: bool = True) -> lw.Data:
    for split, count in (("private", 8), ("public", 80)):
        for number in range(count):
            for label, name in enumerate(NAMES):
                folder = place / split / (name if labelled or split == "private" else f"{label}")
                folder.mkdir(parents=True, exist_ok=True)
                pixels = np.full((8, 8, 3), 20 + number, dtype=np.uint8)
                pixels[number % 5 : 7, :, label] = 250
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return lw.Data(str(place / "private"), str(place / "public"))


def in_frames(place: Path) -> lw.Data:
    (x, y), (public, truth) = tiny.rows(200, 1), tiny.rows(300, 2)
    names = np.where(gaps(truth) < 0, None, NAMES[truth])
    return lw.Data((pd.DataFrame(x), list(NAMES[y])), (pd.DataFrame(public), list(names)))


@pytest.mark.parametrize(("make", "held_out"), [(in_folders, 48), (in_frames, 45)])
def test_every_kind_of_data(make: Any, held_out: int, tmp_path: Path) -> None:
    data = make(tmp_path)
    quick = {"steps": 40, "doubtful_folds": 0}
    if make is in_folders:
        quick["backbone"] = "small_cnn"
    settings = {"mechanism": {"kind": "reverse_knn", "centroids": 9}, "threads": 1}
    features = "hog" if make is in_folders else "raw"
    model = lw.fit(
        data, 8.0, run_dir="run", custody="custody", quiet=True, student=quick, features=features,
        **settings,
    )  # fmt: skip
    assert model.classes_.tolist() == NAMES.tolist()
    assert model.summary.test_rows == held_out
    assert model.summary.test_accuracy is not None


def test_a_comparison_wants_test_rows(capsys) -> None:
    tiny.write()
    tiny.change(test_x=None, test_y=None)
    command = ["compare", "--data", "data.npz", "--methods", "gnmax", "--out", "out"]
    check_one_error(command, "Give `data.test`: methods are compared on it.", capsys)
    assert not Path("out.custodian").exists()


def test_tables_and_folders_on_the_command_line(tmp_path: Path, capsys) -> None:
    in_folders(tmp_path / "images", labelled=False)
    hog = ["--features", "hog", "--student.backbone", "small_cnn", "--epsilon", "8", *QUICK[:-1]]
    hog += ["--expected_records", "30"]
    command = ["run", "--data", "images", "--data.classes", "[ant, bee, cat]", *hog]
    assert "no test rows, so no accuracy" in shown(capsys, *command)
    for name, (x, y) in (("a", tiny.rows(200, 1)), ("b", tiny.rows(40, 2))):
        table = pd.DataFrame(x).rename(columns=str)
        table = table.assign(kind=NAMES[y]) if name == "a" else table
        table.to_csv(f"{name}.csv", index=False)
    command = ["run", "--private", "a.csv", "--public", "b.csv", "--label", "kind", *QUICK]
    check_one_error(command, "`data.classes` must be the names of the classes", capsys)
    classes = ["--data.classes", "[ant, bee, cat]", "--epsilon", "8"]
    assert "no test rows, labels" in shown(capsys, *command, *classes)
