"""A finished student is used: by a command, in Python and as an exported model."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import labelwall as lw
from labelwall import pipeline
from labelwall.experiment.use import classify
from labelwall.experiment.use.export import example
from labelwall.student.student_model import StudentModel, load_student
from tests.experiment.checks import check_one_error
from tests.student import students


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def metrics(run_dir: Path) -> dict:
    """Of the round whose student the run kept: noise decides which."""
    kept = json.loads((run_dir / "summary.json").read_text())["best_round"]
    return json.loads((run_dir / f"round_{kept}" / "metrics.json").read_text())


def run(student: Path, out: Path, *rows: str) -> int:
    return pipeline.main(["classify", "--student", str(student), *rows, "--out", str(out)])


def test_a_folder_of_images_gets_the_runs_own_labels(images, tmp_path, monkeypatch, opened) -> None:
    """As often right as the run's metrics say; the private folder is not opened."""
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
    student = load_student(images / "out")
    files = [line["file"] for line in lines]
    shares = student.probabilities(files)
    written = np.array([[float(line[name]) for name in classes] for line in lines])
    np.testing.assert_allclose(written, shares, atol=1e-6)
    assert [classes[i] for i in student.predict(files)] == [line["label"] for line in lines]
    predicted = lw.load(images / "out").predict(images / "test")
    assert predicted.tolist() == [line["label"] for line in lines]
    np.testing.assert_allclose([float(line["probability"]) for line in lines], written.max(axis=1))


def test_unreadable_images_are_named_and_have_no_label(images, tmp_path, capsys) -> None:
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
    "images": ("out", ["--images", "config.yaml"], "this student takes vectors."),
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


ROWS = 1000


def export(student: Path, form: str, out: Path, *options: str) -> int:
    return pipeline.main(
        ["export", "--student", str(student), "--format", form, "--out", str(out), *options]
    )


def write(folder: Path, *arguments: object) -> tuple[Path, StudentModel]:
    path = folder / "student.safetensors"
    path.write_bytes(students.content(*arguments))
    return path, load_student(path)


def expected(student: StudentModel, rows: np.ndarray) -> np.ndarray:
    return student.predict(rows) if student.info.labels.bounds else student.probabilities(rows)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("class", students.IMAGE), ("attributes", students.VECTOR), ("value", students.VECTOR)],
)
def test_onnx_says_the_same_on_a_thousand_rows(tmp_path, kind, shape, capsys) -> None:
    import onnx
    import onnxruntime

    path, student = write(tmp_path, kind, shape)
    assert export(path, "onnx", tmp_path / "x.onnx") == 0
    assert "onnxruntime says what torch says" in capsys.readouterr().out
    rows = example(student, "uint8", ROWS).numpy()
    session = onnxruntime.InferenceSession(tmp_path / "x.onnx", providers=["CPUExecutionProvider"])
    (exported,) = session.run(None, {"inputs": rows})
    answers = expected(student, rows)
    np.testing.assert_allclose(exported, answers, rtol=1e-4, atol=1e-4)
    assert np.ptp(answers, axis=0).min() > 0.01  # rows differ, so this shows something
    if kind == "class":  # images on the unit scale, too
        assert export(path, "onnx", tmp_path / "unit", "--input", "float32") == 0
        session = onnxruntime.InferenceSession(
            tmp_path / "unit", providers=["CPUExecutionProvider"]
        )
        scaled = rows[:20].transpose(0, 3, 1, 2).astype(np.float32) / 255
        np.testing.assert_allclose(
            session.run(None, {"inputs": scaled})[0], answers[:20], atol=1e-5
        )
    assert str(Path(__file__).parents[3]).encode() not in (tmp_path / "x.onnx").read_bytes()
    properties = {p.key: p.value for p in onnx.load(tmp_path / "x.onnx").metadata_props}
    assert json.loads(properties["labelwall"]) == student.info.to_json()


def test_timm_loads_its_own_models(tmp_path: Path) -> None:
    import timm

    path, student = write(tmp_path, "class", (32, 32, 3), "timm/test_resnet")
    assert export(path, "timm", tmp_path / "timm") == 0
    network = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    pixels = example(student, "uint8", 20)
    settings = network.pretrained_cfg
    mean, std = (torch.tensor(settings[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    with torch.inference_mode():
        exported = network((pixels.permute(0, 3, 1, 2) / 255 - mean) / std).numpy()
    np.testing.assert_allclose(exported, student.outputs(pixels.numpy()), rtol=1e-4, atol=1e-4)
    config = json.loads((tmp_path / "timm" / "config.json").read_text())
    assert config["label_names"] == list(student.classes)


def test_a_folder_for_the_hub(images: Path, tmp_path: Path) -> None:
    import yaml

    assert export(images / "out", "huggingface", tmp_path / "hub") == 0
    hub = tmp_path / "hub"
    names = {"config.json", "model.safetensors", "preprocessor_config.json", "README.md"}
    assert {path.name for path in hub.iterdir()} == names
    files = sorted((images / "test").rglob("*.png"))
    again, student = load_student(hub / "model.safetensors"), load_student(images / "out")
    np.testing.assert_array_equal(again.outputs(files), student.outputs(files))
    config = json.loads((hub / "config.json").read_text())
    assert config["id2label"] == {"0": "cat", "1": "dog"}
    settings = json.loads((hub / "preprocessor_config.json").read_text())
    assert settings["image_mean"] == list(student.info.mean)
    _, front, text = (hub / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "labelwall"
    assert 'load("model.safetensors")' in text


def test_a_mistaken_export_is_one_clear_line(tmp_path: Path, capsys) -> None:
    path, _ = write(tmp_path)
    out = tmp_path / "out"
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    mistakes = {
        "onnx": (tmp_path / "nowhere" / "x.onnx", "`out` must be"),
        "word": (out, "`format` must be one of onnx"),
        "timm": (out, "no timm model"),
        "huggingface": (out, "finished run"),
    }
    for form, (place, mentioned) in mistakes.items():
        command = ["export", "--student", str(path), "--format", form, "--out", str(place)]
        check_one_error(command, mentioned, capsys)
    command = ["export", "--student", str(path), "--format", "onnx", "--out"]
    check_one_error([*command, str(tmp_path / "taken")], "`out` must be", capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["student.safetensors", "taken"]


def test_a_copy_of_a_killed_export_is_gone_after_the_next(images: Path, tmp_path: Path) -> None:
    leftover = tmp_path / "hub.part"
    (leftover / "inside").mkdir(parents=True)
    (leftover / "inside" / "model.safetensors").write_bytes(b"half")
    assert export(images / "out", "huggingface", tmp_path / "hub") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]
    assert not (tmp_path / "hub" / "inside").exists()
