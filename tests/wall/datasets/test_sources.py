"""Data sources, public side: one's own folders and arrays, and what the public side never opens."""

from __future__ import annotations

import ast
import hashlib
import io
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwall.teacher.records.sources import open_records
from labelwall.wall.datasets.readers import constant_order, decode
from labelwall.wall.datasets.sources import DataConfig, Task, describe, read_public
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.labels.classes import ClassLabels

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"source": "imagenet"}, "data.source"),
        ({"image_size": 3}, "data.image_size"),
        ({"channels": 2}, "data.channels"),
        ({"source": "folder", "classes": ["a", "a"]}, "data.classes"),
        ({"source": "mnist", "classes": ["a", "b"]}, "data.classes"),
        ({"source": "mnist", "labels": "attributes"}, "data.labels"),
        ({"source": "celeba"}, "data.labels"),
        ({"labels": "several"}, "data.labels"),
        (
            {"source": "arrays", "labels": "attributes", "classes": [str(i) for i in range(63)]},
            "data.classes",
        ),
        ({"source": "arrays", "labels": "value"}, "data.bounds"),
        ({"source": "arrays", "bounds": [0.0, 1.0]}, "data.bounds"),
        ({"source": "arrays", "labels": "value", "bounds": [0.0]}, "data.bounds"),
        ({"labels": "value", "bounds": [0.0, 1.0]}, "data.labels"),
        (
            {"source": "arrays", "labels": "value", "bounds": [0, 1], "classes": ["a", "b"]},
            "data.classes",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings, field):
    with pytest.raises(InvalidInput, match="must be") as caught:
        DataConfig(**settings)
    assert caught.value.name == field


def test_loading_the_module_does_not_load_torch():
    names = ("wall.datasets.sources", "experiment.config.init", "teacher.records.inspect")
    modules = ", ".join(f"labelwall.{name}" for name in names)
    code = f"import sys, {modules}; sys.exit(bool({{'torch', 'torchvision'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


def test_the_constant_order_is_sha256_of_the_names():
    names = [f"row {number}" for number in range(100)]
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in names]
    assert constant_order(names).tolist() == sorted(range(100), key=lambda row: digests[row])


# --- folders


def test_folders_are_decoded_to_the_task(image_folders):
    config = DataConfig(source="folder", image_size=8, **image_folders)
    task, public = describe(config), read_public(config)
    assert task == Task(ClassLabels(("cat", "dog")), (8, 8, 3))
    assert public.inputs.shape == public.test_inputs.shape == (12, 8, 8, 3)
    assert public.inputs.dtype == np.uint8
    blue = (public.inputs[..., 2] > public.inputs[..., 0]).all(axis=(1, 2))  # dogs are blue
    assert public.labels is not None
    assert (blue == (public.labels == 1)).all()
    assert sorted(public.test_labels.tolist()) == [0] * 6 + [1] * 6
    assert public.labels.tolist() != sorted(public.labels.tolist())  # the order mixes the classes


def test_public_images_without_class_folders_have_no_labels(image_folders):
    Image.new("RGB", (12, 10)).save(Path(image_folders["public"]) / "anything.png")
    assert read_public(DataConfig(source="folder", **image_folders)).labels is None


def test_grey_and_progress(image_folders):
    heard: list[tuple[int, int]] = []
    config = DataConfig(source="folder", channels=1, image_size=8, **image_folders)
    public = read_public(config, lambda done, total: heard.append((done, total)))
    assert public.inputs.shape == (12, 8, 8, 1)
    assert heard == [(12, 12), (12, 12)]  # public, then test


def test_damaged_public_images_are_named_at_once(image_folders):
    for split, name in (("public", "dog/3.png"), ("public", "cat/1.png"), ("test", "cat/2.png")):
        damaged = Path(image_folders[split]) / name
        damaged.write_bytes(damaged.read_bytes()[:45])
    with pytest.raises(InvalidInput, match=r"dog/3\.png") as caught:
        read_public(DataConfig(source="folder", **image_folders))
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert all(name in text for name in ("public/cat/1.png", "test/cat/2.png"))


def test_given_classes_fix_the_order_and_refuse_other_test_folders(image_folders):
    task = describe(DataConfig(source="folder", classes=["dog", "emu", "cat"], **image_folders))
    assert task.labels.names == ("dog", "emu", "cat")
    with pytest.raises(InvalidInput, match=r"data\.test.*cat"):
        describe(DataConfig(source="folder", classes=["dog", "emu"], **image_folders))


@pytest.mark.parametrize("field", ["public", "test"])
def test_a_missing_or_empty_public_folder_is_one_clear_error(image_folders, field, tmp_path):
    with pytest.raises(MissingData, match=f"data.{field}"):
        read_public(
            DataConfig(source="folder", **(image_folders | {field: str(tmp_path / "nowhere")}))
        )
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match=f"data.{field}"):
        read_public(
            DataConfig(source="folder", **(image_folders | {field: str(tmp_path / "empty")}))
        )


def test_the_public_side_neither_opens_nor_lists_the_private_folder(image_folders, opened):
    config = DataConfig(source="folder", **image_folders)
    with opened() as paths:
        task = describe(config)
        read_public(config)
    assert any("public" in path for path in paths)
    assert not [path for path in paths if path.startswith(image_folders["private"])]
    with opened() as paths:  # and the recorder would have seen it
        open_records(config, task)
    assert [path for path in paths if path.startswith(image_folders["private"])]


def test_sixteen_bit_greys_are_scaled_not_clipped(tmp_path):
    ramp = np.tile(np.linspace(0, 65535, 16).astype(np.uint16), (16, 1))
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    decoded = decode(tmp_path / "ramp.png", 16, 1)
    assert decoded is not None
    np.testing.assert_array_equal(decoded[0][0, :, 0], ramp[0] // 257)


def test_images_are_turned_upright_and_cut_to_the_central_square(tmp_path):
    pixels = np.zeros((8, 24), dtype=np.uint8)
    # The middle third: bright upper half, dark lower half
    pixels[:, 8:16], pixels[:4, 8:16] = (
        100,
        200,
    )
    exif = Image.Exif()
    exif[0x0112] = 3  # stored upside down
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    decoded = decode(tmp_path / "a.png", 8, 1)
    assert decoded is not None
    assert decoded[1] == (24, 8)
    np.testing.assert_array_equal(
        decoded[0][..., 0], np.repeat([100, 200], 4)[:, None] * np.ones((1, 8))
    )


def test_only_listed_formats_are_decoded(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "tiff.png", format="TIFF")
    assert decode(tmp_path / "tiff.png", 4, 3) is None


# --- arrays


def write_arrays(path: Path, **changes: object) -> DataConfig:
    rng = np.random.default_rng(0)
    arrays: dict[str, object] = {
        "private_x": rng.integers(0, 256, (7, 5, 4), dtype=np.uint8),
        "private_y": np.arange(7) % 3,
        "public_x": rng.integers(0, 256, (6, 5, 4), dtype=np.uint8),
        "test_x": rng.integers(0, 256, (3, 5, 4), dtype=np.uint8),
        "test_y": np.arange(3),
    } | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return DataConfig(source="arrays", path=str(path))


def damage(path: str, names: tuple[str, ...]) -> None:
    """Overwrite the stored bytes of some members of an npz, so that reading any of them fails its
    checksum."""
    with zipfile.ZipFile(path) as file:
        places = [
            (info.header_offset, info.file_size)
            for info in file.infolist()
            if info.filename.removesuffix(".npy") in names
        ]
    content = bytearray(Path(path).read_bytes())
    for offset, size in places:
        # After the local header, name and extra field
        start = offset + 30 + sum(struct.unpack_from("<HH", content, offset + 26))
        content[start : start + size] = bytes(255 - byte for byte in content[start : start + size])
    Path(path).write_bytes(content)


def test_arrays_of_images(tmp_path):
    config = write_arrays(tmp_path / "a.npz", public_y=np.array([0, 1, 2, 0, 1, 2]))
    task, public = describe(config), read_public(config)
    assert task == Task(ClassLabels(("0", "1", "2")), (5, 4, 1))
    assert public.inputs.shape == (6, 5, 4, 1)
    assert public.labels is not None
    assert public.labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_arrays_of_vectors_become_float32(tmp_path):
    vectors = {
        name: np.linspace(-1, 1, 20).reshape(4, 5) for name in ("private_x", "public_x", "test_x")
    }
    labels = np.array([0, 1, 0, 1], dtype=np.uint8)
    config = write_arrays(tmp_path / "a.npz", **vectors, private_y=labels, test_y=labels)
    public = read_public(config)
    assert describe(config).input_shape == (5,)
    assert public.inputs.dtype == public.test_inputs.dtype == np.float32
    assert public.labels is None
    np.testing.assert_array_equal(public.inputs, vectors["public_x"].astype(np.float32))


def test_the_public_side_reads_no_private_member(tmp_path):
    config = write_arrays(tmp_path / "a.npz", private_id=np.arange(7))
    before = read_public(config)
    damage(str(config.path), ("private_x", "private_y", "private_id"))
    task = describe(config)
    np.testing.assert_array_equal(read_public(config).inputs, before.inputs)
    with pytest.raises(InvalidInput, match="private_x"):  # and the damage is real
        open_records(config, task)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"public_x": np.zeros((6, 5, 4), dtype=np.int32)}, "public_x"),
        ({"public_x": np.zeros((6, 20), dtype=np.uint8)}, "public_x"),
        ({"public_x": np.zeros((6, 5, 4, 2), dtype=np.uint8)}, "public_x"),
        ({"public_x": np.zeros((0, 5, 4), dtype=np.uint8)}, "public_x"),
        ({"public_x": np.array([{}, []], dtype=object)}, "public_x"),
        ({"test_x": np.zeros((3, 4, 5), dtype=np.uint8)}, "test_x"),
        ({"test_x": np.zeros((3, 20), dtype=np.float32)}, "test_x"),
        ({"test_y": np.zeros(4, dtype=int)}, "test_y"),
        ({"test_y": np.zeros(3)}, "test_y"),
        ({"test_y": np.array([0, -1, 1])}, "test_y"),
        ({"test_y": None}, "data.path"),
        ({"public_x": None}, "data.path"),
        ({"public_y": np.arange(2)}, "public_y"),
        ({"public_x": np.full((2, 3), np.nan), "test_x": np.zeros((3, 3))}, "public_x"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, changes, name):
    with pytest.raises(InvalidInput) as caught:
        read_public(write_arrays(tmp_path / "a.npz", **changes))
    assert caught.value.name == name
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_npz_and_a_missing_one(tmp_path):
    (tmp_path / "a.npz").write_text("text")
    with pytest.raises(InvalidInput, match=r"data\.path"):
        read_public(DataConfig(source="arrays", path=str(tmp_path / "a.npz")))
    with pytest.raises(MissingData, match=r"data\.path"):
        read_public(DataConfig(source="arrays", path=str(tmp_path / "b.npz")))
    with pytest.raises(InvalidInput, match=r"data\.path"):
        read_public(DataConfig(source="arrays"))


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


# --- nobody else asks for the private split


PRIVATE_WORDS = {"private_x", "private_y", "private_id", "data.private"}
READERS = {"private_rows", "private_blocks", "_private"}


def private_uses(source: str) -> list[str]:
    """Uses in a module's code of the readers of private rows, of a configuration's `private`, and
    of names of private arrays."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = {
            getattr(node, "attr", None),
            getattr(node, "id", None),
            getattr(node, "name", None),
        }
        if isinstance(node, ast.Attribute | ast.Name | ast.alias):
            found += names & READERS
        if isinstance(node, ast.Attribute) and re.search(
            r"(config|data)\.private$", ast.unparse(node)
        ):
            found.append("config.private")
        if isinstance(node, ast.Constant) and node.value in PRIVATE_WORDS:
            found.append(str(node.value))
    return found


def test_only_the_teachers_records_ask_for_private_rows():
    """Beside them the published sets alone have a reader's name, for what each of them defines, and
    the custodian's directory is found by the path of the private rows, which are not opened.
    """
    files = [REPOSITORY / "pipeline.py"]
    files += [
        path
        for folder in ("wall", "teacher", "student", "experiment")
        for path in (REPOSITORY / folder).rglob("*.py")
    ]
    asking = {
        path.relative_to(REPOSITORY).as_posix(): set(private_uses(path.read_text()))
        for path in files
        if path.exists()
    }
    assert asking.pop("wall/datasets/published.py") == {"_private"}
    assert asking.pop("experiment/run/budgets.py") == {"config.private"}
    assert {path for path, uses in asking.items() if uses} == {"teacher/records/sources.py"}


@pytest.mark.parametrize(
    "code",
    [
        "data_set(source).private_rows(config)",
        "published(source).private_blocks(config)",
        "published(source)._private(config)",
        "from wall.datasets.svhn import private_rows",
        "read(self.config.private)",
        "read_member(path, 'private_y')",
    ],
)
def test_the_search_for_private_uses_can_fail(code):
    assert private_uses(code)
    assert not private_uses(code.replace("private", "public"))
