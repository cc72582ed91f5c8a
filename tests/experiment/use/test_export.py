"""`export`: other programs' runtimes say what the student says."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from labelwall import pipeline
from labelwall.experiment.use.export import example
from labelwall.student.model import StudentModel, load
from tests.experiment.checks import check_one_error
from tests.student import students

ROWS = 1000


def export(student: Path, form: str, out: Path, *options: str) -> int:
    return pipeline.main(
        ["export", "--student", str(student), "--format", form, "--out", str(out), *options]
    )


def write(folder: Path, *arguments: object) -> tuple[Path, StudentModel]:
    path = folder / "student.safetensors"
    path.write_bytes(students.content(*arguments))
    return path, load(path)


def expected(student: StudentModel, rows: np.ndarray) -> np.ndarray:
    return student.predict(rows) if student.info.labels.bounds else student.probabilities(rows)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("class", students.IMAGE), ("attributes", students.VECTOR), ("value", students.VECTOR)],
)
def test_onnx_says_the_same_on_a_thousand_rows(
    tmp_path: Path, kind: str, shape: tuple[int, ...], capsys
) -> None:
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
    again, student = load(hub / "model.safetensors"), load(images / "out")
    np.testing.assert_array_equal(again.outputs(files), student.outputs(files))
    config = json.loads((hub / "config.json").read_text())
    assert config["id2label"] == {"0": "cat", "1": "dog"}
    settings = json.loads((hub / "preprocessor_config.json").read_text())
    assert settings["image_mean"] == list(student.info.mean)
    _, front, text = (hub / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "labelwall"
    assert 'load("model.safetensors")' in text


def test_a_mistake_is_one_clear_line(tmp_path: Path, capsys) -> None:
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
