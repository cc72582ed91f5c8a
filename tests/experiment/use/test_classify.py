"""`classify`: the answers of the run's own student, from files alone; bad input in one line."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.experiment.use import classify
from labelwall.student.model import load
from tests.experiment.checks import check_one_error


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def metrics(run_dir: Path) -> dict:
    """Of the round whose student the run kept: noise decides which."""
    kept = json.loads((run_dir / "summary.json").read_text())["best_round"]
    return json.loads((run_dir / f"round_{kept}" / "metrics.json").read_text())


def run(student: Path, out: Path, *rows: str) -> int:
    return pipeline.main(["classify", "--student", str(student), *rows, "--out", str(out)])


def test_a_folder_of_images_gets_the_runs_own_labels(
    images: Path, tmp_path: Path, monkeypatch, opened
) -> None:
    """As often right as the run's metrics say, class by class; in several blocks; the private
    folder is not opened."""
    monkeypatch.setattr(classify, "BLOCK", 7)
    with opened() as paths:
        assert run(images / "out", tmp_path / "a.csv", "--images", str(images / "test")) == 0
    assert not [path for path in paths if str(path).startswith(str(images / "private"))]
    lines = table(tmp_path / "a.csv")
    expected = metrics(images / "out")
    classes = ["cat", "dog"]
    counts = np.zeros((2, 2), dtype=int)
    for line in lines:
        counts[classes.index(Path(line["file"]).parent.name), classes.index(line["label"])] += 1
    assert counts.tolist() == expected["confusion"]
    assert expected["student_accuracy"] == counts.trace() / counts.sum()
    student = load(images / "out")
    files = [line["file"] for line in lines]
    shares = student.probabilities(files)
    written = np.array([[float(line[name]) for name in classes] for line in lines])
    np.testing.assert_allclose(written, shares, atol=1e-6)
    assert [classes[i] for i in student.predict(files)] == [line["label"] for line in lines]
    np.testing.assert_allclose([float(line["probability"]) for line in lines], written.max(axis=1))


def test_unreadable_images_are_named_and_have_no_label(
    images: Path, tmp_path: Path, capsys
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    fine = str(images / "test" / "cat" / "0.png")
    broken = str(tmp_path / "broken.png")
    assert run(images / "out", tmp_path / "a.csv", "--images", broken, fine) == 0
    first, second = table(tmp_path / "a.csv")
    assert (first["file"], first["label"], first["cat"]) == (broken, "", "")
    assert second["label"] in ("cat", "dog")
    shown = capsys.readouterr()
    assert broken in shown.err
    assert "1 labelled, 1 unreadable" in shown.out


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_an_array_gets_the_runs_own_labels(vectors: Path, tmp_path: Path, suffix: str) -> None:
    stored = np.load(vectors / "data.npz")
    x, y = stored["test_x"], stored["test_y"]
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    out = tmp_path / "a.csv"
    assert run(vectors / "out", out, "--vectors", str(tmp_path / f"x.{suffix}")) == 0
    lines = table(out)
    assert [line["row"] for line in lines] == [str(row) for row in range(len(x))]
    right = np.mean([int(line["label"]) == label for line, label in zip(lines, y, strict=True)])
    assert right == metrics(vectors / "out")["student_accuracy"]


def test_no_cell_is_a_formula(images: Path, tmp_path: Path) -> None:
    """A spreadsheet runs cells that begin like one; numbers stay as they are."""
    names = ["=cmd|' !A0.png", "+1.png", "@sum.png", "-x.png", "\t=1.png", "fine.png"]
    for name in names:
        shutil.copy(images / "test" / "cat" / "0.png", name)
    assert run(images / "out", tmp_path / "a.csv", "--images", *(f"./{n}" for n in names)) == 0
    files = [line["file"] for line in table(tmp_path / "a.csv")]
    assert files == [*("'" + name for name in names[:-1]), "fine.png"]
    assert [classify.inert(t) for t in ("-1", "+2.5", "-1e-3", "=1", "-")] == [
        *("-1", "+2.5", "-1e-3"),
        *("'=1", "'-"),
    ]


MISTAKES = {
    "no student": ("nowhere", ["--vectors", "x.npy"], "nowhere"),
    "another file": ("x.npy", ["--vectors", "x.npy"], "a safetensors file"),
    "no run": (".", ["--vectors", "x.npy"], "finished run"),
    "a round's file": ("out/round_1/student.safetensors", ["--vectors", "x.npy"], "metadata"),
    "no array": ("out", ["--vectors", "missing.npy"], "missing.npy"),
    "another array": ("out", ["--vectors", "config.yaml"], "npy file"),
    "no member x": ("out", ["--vectors", "data.npz"], "the array x"),
    "one number": ("out", ["--vectors", "number.npy"], "npy file"),
    "width": ("out", ["--vectors", "wide.npy"], "[n, 8]"),
    "images": ("out", ["--images", "config.yaml"], "square images"),
}


@pytest.fixture
def folder(vectors: Path, monkeypatch) -> Path:
    np.save(vectors / "x.npy", np.zeros((2, 8), np.float32))
    np.save(vectors / "wide.npy", np.zeros((2, 9), np.float32))
    np.save(vectors / "number.npy", np.float32(1))
    monkeypatch.chdir(vectors)
    return vectors


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_line(folder: Path, tmp_path: Path, name: str, capsys) -> None:
    student, rows, mentioned = MISTAKES[name]
    out = tmp_path / "a.csv"
    command = ["classify", "--student", student, *rows, "--out", str(out)]
    check_one_error(command, mentioned, capsys)
    assert list(tmp_path.iterdir()) == []


def test_no_readable_image_and_no_place_to_write(images: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "empty").mkdir()
    command = ["classify", "--student", str(images / "out"), "--images"]
    out = str(tmp_path / "a.csv")
    for rows in ("broken.png", "empty", "missing.png"):
        check_one_error([*command, str(tmp_path / rows), "--out", out], rows, capsys)
    assert not Path(out).exists()
    nowhere = str(tmp_path / "nowhere" / "a.csv")
    test = str(images / "test")
    check_one_error([*command, test, "--out", nowhere], "`out` must be", capsys)
