"""Arrays of one's own, in an npz file or a folder of npy files, with each kind of labels."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.records.inspect import preview
from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets.data_config import DataConfig, Task
from labelwall.wall.datasets.sources import describe, read_public
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.label_kinds import STEPS, AttributeLabels, ClassLabels, ValueLabels
from tests.wall.datasets.small import SPLITS, TRUTH, write_arrays

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 5, 4), dtype=np.uint8)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", ">f8"])
@pytest.mark.parametrize("place", ["a.npz", "a"])
def test_vectors_of_any_width_are_read(tmp_path, dtype, place):
    rows = (10 * np.random.default_rng(0).normal(size=(6, 3))).astype(dtype)
    config = write_arrays(tmp_path / place, **{f"{split}_x": rows for split in SPLITS})
    public, task = read_public(config), describe(config)
    assert task == Task(ClassLabels(("0", "1", "2")), (3,))
    assert public.inputs.dtype == public.test_inputs.dtype == np.float32
    assert public.labels is None
    for inputs in (public.inputs, open_records(config, task).inputs):
        np.testing.assert_array_equal(inputs, rows.astype(np.float32))


def test_images_with_labels(tmp_path):
    changed = {f"{split}_x": IMAGES for split in SPLITS}
    config = write_arrays(tmp_path / "a.npz", public_y=TRUTH["class"], **changed)
    public = read_public(config)
    assert describe(config).input_shape == (5, 4, 1)
    np.testing.assert_array_equal(public.inputs[..., 0], IMAGES)
    np.testing.assert_array_equal(public.labels, TRUTH["class"])


def test_attributes_are_columns(tmp_path):
    bits = [[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 2], [0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
    config = write_arrays(tmp_path / "a.npz", "attributes", private_y=np.array(bits))
    assert describe(config).labels == AttributeLabels(("0", "1", "2", "3"))
    np.testing.assert_array_equal(read_public(config).test_labels, TRUTH["attributes"])
    # The row with a 2 is gone
    assert open_records(config, describe(config)).labels.tolist() == [6, 15, 0, 8, 1]


def test_private_values_are_clipped_and_public_ones_are_as_they_are(tmp_path):
    private = np.array([-3.0, 0.0, np.nan, 5.0, np.inf, 12.0])
    config = write_arrays(tmp_path / "a.npz", "value", private_y=private)
    task = describe(config)
    assert task.labels == ValueLabels(0.0, 10.0)
    np.testing.assert_array_equal(read_public(config).test_labels, TRUTH["value"])
    records = open_records(config, task)
    assert records.labels.tolist() == [0, 0, STEPS // 2, STEPS]
    assert records.ids.tolist() == [0, 1, 3, 5]
    text = preview(config)
    assert " 2  labels outside the public classes, or values that are not finite" in text
    by_class = text.split("by class\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[-1] for line in by_class] == list("2000100001")
    assert by_class[4].startswith("  4 to 5")
    whole = {"private_y": np.array([0, 5, 10, 2, 3, 4]), "test_y": np.arange(6, dtype=np.uint8)}
    config = write_arrays(tmp_path / "a.npz", "value", **whole)
    assert open_records(config, task).labels[:3].tolist() == [0, STEPS // 2, STEPS]
    assert read_public(config).test_labels.dtype == np.float64


# Labels, arrays that do not fit, and the name in the error.
MISFITS: list[tuple[str, dict[str, Any], str]] = [
    ("class", {"public_x": np.zeros((6, 5, 4), dtype=np.int32)}, "public_x"),
    ("class", {"public_x": np.zeros((6, 20), dtype=np.uint8)}, "public_x"),
    ("class", {"public_x": np.zeros((6, 5, 4, 2), dtype=np.uint8)}, "public_x"),
    ("class", {"public_x": IMAGES[:0]}, "public_x"),
    ("class", {"public_x": np.array([{}, []], dtype=object)}, "public_x"),
    ("class", {"public_x": np.full((2, 3), np.nan)}, "public_x"),
    ("class", {"public_x": None}, "data.path"),
    ("class", {"public_y": np.arange(2)}, "public_y"),
    ("class", {"public_x": IMAGES, "test_x": IMAGES.reshape(6, 4, 5)}, "test_x"),
    ("class", {"public_x": IMAGES}, "test_x"),
    ("class", {"test_y": np.zeros(4, dtype=int)}, "test_y"),
    ("class", {"test_y": np.full(6, 0.5)}, "test_y"),
    ("class", {"test_y": np.full(6, 2**40)}, "data.classes"),
    ("class", {"test_y": np.array([0, 1, np.nan, 0, 0, 0])}, "test_y"),
    ("class", {"test_y": np.array([0, -1, 1, 0, 0, 0])}, "test_y"),
    ("class", {"test_y": None}, "data.path"),
    ("attributes", {"test_y": np.zeros(6, dtype=np.int64)}, "test_y"),
    ("attributes", {"test_y": np.full((6, 4), 3)}, "test_y"),
    ("attributes", {"test_y": np.zeros((6, 1), dtype=np.int64)}, "test_y"),
    ("attributes", {"public_y": np.zeros((5, 4), dtype=np.int64)}, "public_y"),
    ("value", {"test_y": np.array([np.nan] * 6)}, "test_y"),
]


@pytest.mark.parametrize(("labels", "changed", "name"), MISFITS)
@pytest.mark.parametrize("place", ["a.npz", "a"])
def test_public_arrays_that_do_not_fit_are_named(tmp_path, labels, changed, name, place):
    with pytest.raises(InvalidInput) as caught:
        read_public(write_arrays(tmp_path / place, labels, **changed))
    assert caught.value.name == name
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_npz_and_a_missing_one(tmp_path):
    (tmp_path / "a.npz").write_text("text")
    for path, error in (
        (str(tmp_path / "a.npz"), InvalidInput),
        (str(tmp_path / "b.npz"), MissingData),
        (None, InvalidInput),
    ):
        with pytest.raises(error, match=r"data\.path"):
            read_public(DataConfig(source="arrays", path=path))


@pytest.mark.parametrize("folder", [True, False], ids=["npy", "npz"])
@pytest.mark.parametrize("sizes", [(2 * 10**12, 3), (2**62, 2**62), (-2, -3), (5, 3)])
def test_a_header_that_claims_more_than_there_is_allocates_nothing(tmp_path, sizes, folder):
    """43 TiB, an overflow, a product of negative sizes, and one row more than there is."""
    header = io.BytesIO()
    fields = {"descr": "<f8", "fortran_order": False, "shape": sizes}
    np.lib.format.write_array_header_1_0(header, fields)
    content, path = header.getvalue() + bytes(4 * 3 * 8), tmp_path
    if folder:
        (tmp_path / "public_x.npy").write_bytes(content)
    else:
        path = Path(str(write_arrays(tmp_path / "a.npz", public_x=None).path))
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("public_x.npy", content)
    with pytest.raises(InvalidInput, match="public_x") as caught:
        describe(DataConfig(source="arrays", path=str(path), classes=["a", "b", "c"]))
    assert "\n" not in str(caught.value)


def test_labels_of_test_and_public_rows_name_the_classes(tmp_path):
    names = np.array(["cat", "dog", "cat", "dog", "cat", "dog"])
    public = np.array(["emu", "Dog", "", "?", "cat", "emu"])
    private = np.array(["EMU", "dog ", "cow", "", "cat", "\u0000"])
    config = write_arrays(tmp_path / "a.npz", test_y=names, public_y=public, private_y=private)
    task = describe(config)
    assert task.labels.names == ("cat", "dog", "emu")
    assert read_public(config).labels.tolist() == [2, 1, -1, -1, 0, 2]
    assert open_records(config, task).labels.tolist() == [2, 1, 0]
    floats = {"test_y": np.array([0.0, 1.0] * 3), "public_y": np.array([2.0, np.nan] * 3)}
    config = write_arrays(tmp_path / "b.npz", private_y=np.array([0.0, 1, 2, 3, 0.5, 1]), **floats)
    assert describe(config).labels.names == ("0", "1", "2")
    assert read_public(config).labels.tolist() == [2, -1] * 3
    assert open_records(config, describe(config)).labels.tolist() == [0, 1, 2, 1]
