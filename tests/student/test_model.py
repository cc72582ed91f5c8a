"""A student's file and its use: what it says, what it answers, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from labelwall.student.model import load
from labelwall.student.student_file import KEY, StudentInfo, unpack
from labelwall.student.train import outputs
from labelwall.wall.datasets.readers import decode
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.networks import architectures
from labelwall.wall.networks.architectures import load as load_network
from labelwall.wall.preprocessing import Preprocessing
from tests.student import students

RNG = np.random.default_rng(3)
IMAGES = RNG.integers(0, 256, (7, *students.IMAGE), dtype=np.uint8)


@pytest.mark.parametrize("kind", students.SPACES)
def test_a_file_says_everything_again(tmp_path: Path, kind: str) -> None:
    written = students.content(kind)
    assert written == students.content(kind)  # the same bytes
    (tmp_path / "student.safetensors").write_bytes(written)
    found = load(tmp_path)
    expected = unpack(written)
    assert found.info == expected
    assert found.info.labels == students.SPACES[kind]
    assert found.classes == students.SPACES[kind].names
    assert found.info.privacy == students.PRIVACY
    assert load(tmp_path / "student.safetensors").info == expected
    tensors = safetensors.torch.load(written)
    assert all(torch.equal(tensors[k], t) for k, t in found.module.network.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "shape"), [("class", (12,)), ("attributes", students.IMAGE), ("value", (8,))]
)
def test_it_answers_as_the_network_does(kind: str, shape: tuple[int, ...]) -> None:
    found = students.student(kind, shape)
    rows = IMAGES if len(shape) == 3 else RNG.normal(size=(7, *shape)).astype(np.float32)
    spec = found.info.spec(found.weights)
    with torch.inference_mode():
        raw = load_network(spec)(Preprocessing(spec.mean, spec.std)(rows)).numpy()
    np.testing.assert_array_equal(found.outputs(rows), raw)
    np.testing.assert_array_equal(outputs(spec, rows), raw)
    np.testing.assert_array_equal(found.predict(rows), found.info.labels.predict(raw))
    shares = found.probabilities(rows)
    scaled = torch.from_numpy(raw).double() / 1.7
    if kind == "class":
        np.testing.assert_allclose(shares, scaled.softmax(dim=1).numpy())
    elif kind == "attributes":
        np.testing.assert_allclose(shares, scaled.sigmoid().numpy())
    else:
        assert shares.shape == (7, 0)


def test_the_module_takes_bytes_or_the_unit_scale() -> None:
    found = students.student()
    pixels = torch.from_numpy(IMAGES)
    with torch.inference_mode():
        expected = found.module(pixels)
        again = found.module(pixels.permute(0, 3, 1, 2).float() / 255)
    torch.testing.assert_close(again, expected)
    assert not found.module.training


def test_files_are_read_as_public_images_are(tmp_path: Path) -> None:
    """Cut, resized and converted: a large grey photograph, and one of the student's own size."""
    found, names = students.student(), ["a.png", "b.jpg"]
    Image.fromarray(IMAGES[0]).save(tmp_path / "a.png")
    Image.fromarray(RNG.integers(0, 256, (40, 60), dtype=np.uint8)).save(tmp_path / "b.jpg")
    paths = [tmp_path / name for name in names]
    rows = found.rows(paths)
    np.testing.assert_array_equal(rows[0], IMAGES[0])
    decoded = decode(paths[1], 12, 3)
    assert decoded is not None
    np.testing.assert_array_equal(rows[1], decoded[0])
    np.testing.assert_array_equal(found.predict(paths), found.predict(rows))
    np.testing.assert_array_equal(found.rows(str(paths[1])), rows[1:])


def test_arrays_of_another_size_or_colour_are_fitted() -> None:
    grey = RNG.integers(0, 256, (3, 30, 24), dtype=np.uint8)
    rows = students.student().rows(grey)
    image = Image.fromarray(grey[1]).convert("RGB")
    expected = np.asarray(image.resize((12, 12), Image.Resampling.BILINEAR, box=(0, 3, 24, 27)))
    np.testing.assert_array_equal(rows[1], expected)
    assert rows.shape == (3, *students.IMAGE)


VECTOR = students.VECTOR
WRONG = {
    "width": (VECTOR, np.zeros((2, 9), np.float32), r"vectors float32 \[n, 8\]"),
    "images": (VECTOR, IMAGES, r"vectors float32 \[n, 8\]"),
    "vectors": (students.IMAGE, np.zeros((2, 8), np.float32), r"images uint8 \[n, 12, 12, 3\]"),
    "text": (VECTOR, np.array([["a"]]), "inputs"),
    "infinite": (VECTOR, np.full((1, 8), np.inf, np.float32), "finite"),
    "files": (VECTOR, ["a.png"], "square images"),
    "no file": (students.IMAGE, ["missing.png"], "missing.png"),
}


@pytest.mark.parametrize("name", WRONG)
def test_inputs_of_another_kind_are_refused(name: str) -> None:
    shape, rows, mentioned = WRONG[name]
    with pytest.raises(InvalidInput, match=mentioned):
        students.student("class", shape).predict(rows)


def changed(**fields: object) -> bytes:
    """A file whose metadata says something else."""
    written = students.content()
    info = unpack(written)
    assert info is not None
    text = json.dumps({**info.to_json(), **fields})
    return safetensors.torch.save(safetensors.torch.load(written), {KEY: text})


def privacy(**fields: object) -> bytes:
    """A file that promises something else."""
    info = unpack(students.content())
    assert info is not None
    return changed(privacy=info.to_json()["privacy"] | fields)


def text(metadata: str) -> bytes:
    """A file with such metadata."""
    return safetensors.torch.save({"a": torch.zeros(1)}, {KEY: metadata})


DAMAGED = {
    "a huge image": (changed(input_shape=[10**6, 10**6, 3]), "input_shape"),
    "a huge vector": (changed(input_shape=[10**10], backbone="mlp"), "input_shape"),
    "a number without end": (text('{"format": 1' + "0" * 5000 + "}"), "damaged"),
    "a number beyond floats": (text('{"format": 1' + "0" * 400 + "}"), "format"),
    "a side beyond integers": (changed(input_shape=[10**400, 1, 3]), "input_shape"),
    "a deep list": (text("[" * 100_000), "damaged"),
    "sides of text": (changed(input_shape=["12", "12", "3"]), "input_shape"),
    "a network by a number": (changed(backbone=7), "backbone"),
    "names by numbers": (
        changed(labels={"kind": "class", "names": [1, 2, 3], "bounds": []}),
        "labels",
    ),
    "a deviation of zero": (
        changed(preprocessing={"mean": [0.5] * 3, "std": [0.0] * 3, "resize": ""}),
        "preprocessing",
    ),
    "too few channels": (
        changed(preprocessing={"mean": [0.5], "std": [0.5], "resize": ""}),
        "preprocessing",
    ),
    "values without bounds": (
        changed(labels={"kind": "value", "names": [], "bounds": []}),
        "labels",
    ),
    "a side of half a pixel": (changed(input_shape=[12.5, 12, 3]), "input_shape"),
    "no pixel": (changed(input_shape=[1, 1, 3]), "input_shape"),
    "a negative epsilon": (privacy(epsilon=-1), "privacy"),
    "an epsilon of text": (privacy(epsilon="none"), "privacy"),
    "an infinite epsilon": (privacy(epsilon=float("inf")), "privacy"),
    "a delta above 1": (privacy(delta=2), "privacy"),
    "an unknown promise": (privacy(safe=True), "privacy"),
    "a temperature that is true": (changed(temperature=True), "temperature"),
    "a temperature beyond floats": (changed(temperature=10**400), "temperature"),
    "a table of another width": (
        changed(
            input_shape=[8],
            backbone="mlp",
            preprocessing={"mean": [], "std": [], "resize": ""},
            table={"features": ["a"], "widths": [1], "mean": [0.0], "deviation": [1.0]},
        ),
        "table",
    ),
    "no safetensors": (b"hello", "a safetensors file"),
    "nothing": (b"", "a safetensors file"),
    "no metadata": (safetensors.torch.save({"a": torch.zeros(1)}), "labelwall's metadata"),
    "another format": (changed(format=2), "format"),
    "another kind": (changed(kind="linear"), "kind"),
    "no labels": (changed(labels=None), "labels"),
    "shape": (changed(input_shape="x"), "input_shape"),
    "temperature": (changed(temperature=-1), "temperature"),
    "not an object": (safetensors.torch.save({"a": torch.zeros(1)}, {KEY: "[]"}), "damaged"),
    "other network": (changed(backbone="mnist_cvpr20"), "weights"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_that_is_no_student_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, mentioned = DAMAGED[name]
    path = tmp_path / "student.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=mentioned) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_file_takes_no_more_memory_than_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network that its header names is compared on torch's meta device, and built where the
    tensors are there."""
    build, where = architectures.build, []

    def noted(*arguments: object, **named: object) -> torch.nn.Module:
        where.append(torch.zeros(1).device.type)
        return build(*arguments, **named)

    monkeypatch.setattr(architectures, "build", noted)
    path = tmp_path / "student.safetensors"
    path.write_bytes(changed(input_shape=[512, 512, 3]))
    with pytest.raises(InvalidInput, match="weights"):
        load(path)
    assert where == ["meta"]
    path.write_bytes(students.content())
    load(path)
    assert where == ["meta", "meta", "cpu"]
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte of nothing
    with pytest.raises(InvalidInput, match="bytes"):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="nowhere"):
        load(tmp_path / "nowhere")


def test_information_is_plain_json() -> None:
    info = unpack(students.content("attributes"))
    assert info is not None
    assert StudentInfo.from_json(json.loads(json.dumps(info.to_json()))) == info
