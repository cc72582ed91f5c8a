"""A student's file and its use: what it says, what it answers, what is refused."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from labelwall.student.student_model import KEY, assembled, load_student, outputs, pack, unpack
from labelwall.wall import networks as architectures
from labelwall.wall.datasets.readers import decode
from labelwall.wall.errors import InvalidInput
from labelwall.wall.networks import load_network
from labelwall.wall.preprocessing import Preprocessing
from tests.student import students

RNG = np.random.default_rng(3)
IMAGES = RNG.integers(0, 256, (7, *students.IMAGE), dtype=np.uint8)


@pytest.mark.parametrize("kind", students.SPACES)
def test_a_file_says_everything_again(tmp_path: Path, kind: str) -> None:
    written = students.content(kind)
    assert written == students.content(kind)  # the same bytes
    (tmp_path / "student.safetensors").write_bytes(written)
    student = load_student(tmp_path)
    expected = unpack(written)
    assert student.info == expected
    assert student.info.labels == students.SPACES[kind]
    assert student.classes == students.SPACES[kind].names
    assert student.info.privacy == students.PRIVACY
    assert load_student(tmp_path / "student.safetensors").info == expected
    tensors = safetensors.torch.load(written)
    assert all(torch.equal(tensors[k], t) for k, t in student.module.network.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "sides"), [("class", (12,)), ("attributes", students.IMAGE), ("value", (8,))]
)
def test_it_answers_as_the_network_does(kind: str, sides: tuple[int, ...]) -> None:
    student = students.student(kind, sides)
    rows = IMAGES if len(sides) == 3 else RNG.normal(size=(7, *sides)).astype(np.float32)
    spec = student.info.spec(student.weights)
    with torch.inference_mode():
        raw = load_network(spec)(Preprocessing(spec.mean, spec.std)(rows)).numpy()
    np.testing.assert_array_equal(student.outputs(rows), raw)
    np.testing.assert_array_equal(outputs(spec, rows), raw)
    np.testing.assert_array_equal(student.predict(rows), student.info.labels.predict(raw))
    shares = student.probabilities(rows)
    scaled = torch.from_numpy(raw).double()
    if kind == "class":
        np.testing.assert_allclose(shares, scaled.softmax(dim=1).numpy())
    elif kind == "attributes":
        np.testing.assert_allclose(shares, scaled.sigmoid().numpy())
    else:
        assert shares.shape == (7, 0)


def test_files_are_read_as_public_images_are(tmp_path: Path) -> None:
    """Cut, resized and converted: a large grey photograph, and one of the student's own size."""
    student, names = students.student(), ["a.png", "b.jpg"]
    Image.fromarray(IMAGES[0]).save(tmp_path / "a.png")
    Image.fromarray(RNG.integers(0, 256, (40, 60), dtype=np.uint8)).save(tmp_path / "b.jpg")
    paths = [tmp_path / name for name in names]
    rows = student.rows(paths)
    np.testing.assert_array_equal(rows[0], IMAGES[0])
    decoded = decode(paths[1], (12, 12), 3)
    assert decoded is not None
    np.testing.assert_array_equal(rows[1], decoded)
    np.testing.assert_array_equal(student.predict(paths), student.predict(rows))
    np.testing.assert_array_equal(student.rows(str(paths[1])), rows[1:])


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
    "files": (VECTOR, ["a.png"], "this student takes vectors"),
    "no file": (students.IMAGE, ["missing.png"], "missing.png"),
}


@pytest.mark.parametrize("name", WRONG)
def test_inputs_of_another_kind_are_refused(name: str) -> None:
    sides, rows, mentioned = WRONG[name]
    with pytest.raises(InvalidInput, match=mentioned):
        students.student("class", sides).predict(rows)


def changed(**fields: object) -> bytes:
    written = students.content()
    info = unpack(written)
    assert info is not None
    metadata = json.dumps({**info.to_json(), **fields})
    return safetensors.torch.save(safetensors.torch.load(written), {KEY: metadata})


def text(metadata: str) -> bytes:
    return safetensors.torch.save({"a": torch.zeros(1)}, {KEY: metadata})


VECTORS = {"input_shape": [8], "backbone": "mlp", "mean": [], "std": []}
NARROW = {"features": ["a"], "widths": [1], "mean": [0.0], "deviation": [1.0]}
PRIVACY = asdict(students.PRIVACY)
CHANGED = {  # fields of the metadata, and what the error names
    "a huge image": ({"input_shape": [10**6, 10**6, 3]}, "input_shape"),
    "a huge vector": ({"input_shape": [10**10], "backbone": "mlp"}, "input_shape"),
    "sides of text": ({"input_shape": ["12", "12", "3"]}, "input_shape"),
    "no pixel": ({"input_shape": [1, 1, 3]}, "input_shape"),
    "other network": ({"backbone": "mnist_cvpr20"}, "weights"),
    "names by numbers": ({"labels": {"kind": "class", "names": [1, 2, 3], "bounds": []}}, "labels"),
    "values without bounds": ({"labels": {"kind": "value", "names": [], "bounds": []}}, "labels"),
    "a deviation of zero": ({"std": [0.0] * 3}, "std"),
    "too few channels": ({"mean": [0.5], "std": [0.5]}, "mean, std"),
    "a negative epsilon": ({"privacy": PRIVACY | {"epsilon": -1}}, "privacy"),
    "an infinite epsilon": ({"privacy": PRIVACY | {"epsilon": float("inf")}}, "privacy"),
    "an unknown promise": ({"privacy": PRIVACY | {"safe": True}}, "privacy"),
    "a deviation that is true": ({"std": [True] * 3}, "std"),
    "a deviation beyond floats": ({"std": [10**400] * 3}, "std"),
    "a table of another width": (VECTORS | {"table": NARROW}, "table"),
    "another format": ({"format": 2}, "format"),
    "another kind": ({"kind": "linear"}, "kind"),
}
DAMAGED = {
    name: (changed(**fields), mentioned) for name, (fields, mentioned) in CHANGED.items()
} | {
    "a number beyond floats": (changed(format=10**400), "format"),
    "a field left out": (text('{"format": 1}'), "damaged"),
    "a deep list": (text("[" * 100_000), "damaged"),
    "not an object": (text("[]"), "damaged"),
    "no safetensors": (b"hello", "a safetensors file"),
    "nothing": (b"", "a safetensors file"),
    "no metadata": (safetensors.torch.save({"a": torch.zeros(1)}), "labelwall's metadata"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_that_is_no_student_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, mentioned = DAMAGED[name]
    path = tmp_path / "student.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=mentioned) as caught:
        load_student(path)
    assert "\n" not in str(caught.value)


def test_a_file_takes_no_more_memory_than_it_has(tmp_path: Path, monkeypatch) -> None:
    """The network that its header names is compared on torch's meta device before it is built."""
    build, where = architectures.build, []

    def noted(*arguments: object, **named: object) -> torch.nn.Module:
        where.append(torch.zeros(1).device.type)
        return build(*arguments, **named)

    monkeypatch.setattr(architectures, "build", noted)
    path = tmp_path / "student.safetensors"
    path.write_bytes(changed(input_shape=[512, 512, 3]))
    with pytest.raises(InvalidInput, match="weights"):
        load_student(path)
    assert where == ["meta"]
    path.write_bytes(students.content())
    load_student(path)
    assert where == ["meta", "meta", "cpu"]
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte of nothing
    with pytest.raises(InvalidInput, match="bytes"):
        load_student(path)


def test_vectors_may_have_a_scale_of_their_own() -> None:
    plain = students.student(shape=students.VECTOR)
    size = students.VECTOR[0]
    info = replace(plain.info, mean=(3.0,) * size, std=(2.0,) * size)
    scaled = assembled(unpack(pack(info, plain.weights)), plain.weights)
    rows = np.random.default_rng(0).normal(size=(5, size)).astype(np.float32)
    np.testing.assert_allclose(scaled.outputs(rows * 2 + 3), plain.outputs(rows), atol=1e-4)
    with pytest.raises(InvalidInput, match="mean, std"):
        replace(info, mean=(3.0,) * 2, std=(2.0,) * 2)


def test_answers_for_other_shares_are_bayes_rule() -> None:
    """p'(y | x) is p(y | x) p'(y) / p(y), divided by its sum."""
    student = students.student("class", students.IMAGE)
    rows = np.random.default_rng(0).integers(0, 256, (50, *students.IMAGE), dtype=np.uint8)
    count = len(student.classes)
    shares = np.arange(1.0, count + 1)
    likely = student.probabilities(rows) * shares
    expected = likely / likely.sum(axis=1, keepdims=True)
    other = student.for_shares(3 * shares)
    np.testing.assert_allclose(other.probabilities(rows), expected, atol=1e-6)
    np.testing.assert_array_equal(student.predict(rows, shares), expected.argmax(axis=1))
    np.testing.assert_allclose(other.info.shares, shares / shares.sum())
    by_name = dict(zip(reversed(student.classes), reversed(shares.tolist()), strict=True))
    np.testing.assert_array_equal(student.predict(rows, by_name), expected.argmax(axis=1))
    by_name.popitem()
    with pytest.raises(InvalidInput, match="one a class"):
        student.predict(rows, by_name)
    again = other.for_shares(np.ones(count))
    np.testing.assert_allclose(again.probabilities(rows), student.probabilities(rows), atol=1e-6)


def test_shares_of_rows_are_estimated_from_their_probabilities() -> None:
    """Of a calibrated student, for rows of which one class was kept more often than the others."""
    student, rng = students.student("class", students.VECTOR), np.random.default_rng(0)
    rows = rng.normal(size=(4000, *students.VECTOR)).astype(np.float32)
    likely = student.probabilities(rows)
    labels = np.array([rng.choice(len(row), p=row) for row in likely])
    info = replace(student.info, shares=tuple(map(float, likely.mean(axis=0))))
    student = assembled(info, student.weights)
    kept = (labels == 0) | (rng.random(len(rows)) < 0.2)
    truth = np.bincount(labels[kept], minlength=3) / kept.sum()
    assert np.abs(truth - likely.mean(axis=0)).max() > 0.2
    found = student.for_shares("estimate", rows[kept]).info.shares
    assert found is not None
    np.testing.assert_allclose(found, truth, atol=0.06)


@pytest.mark.parametrize("shares", [[1.0], [-1.0, 1, 1], [np.nan, 1, 1], "else"])
def test_what_are_no_shares_is_refused(shares: object) -> None:
    with pytest.raises(InvalidInput, match="shares"):
        students.student("class", students.IMAGE).for_shares(shares)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="this student has no classes"):
        students.student("attributes", students.IMAGE).for_shares([1.0])
