"""The contract of a data set, for all sources; the public side asks for no private row."""

import ast
import re
import struct
import zipfile
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from sklearn.datasets import load_digits

from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets import sources
from labelwall.wall.datasets.data_config import SOURCES, DataConfig, Labels, SourceFacts
from labelwall.wall.datasets.sources import PUBLISHED, describe, read_public
from labelwall.wall.errors import InvalidInput
from tests.pages import example
from tests.wall.datasets.small import write_arrays, write_tables

REPOSITORY = Path(__file__).parents[3]
NAMES = [str(i) for i in range(63)]
BOUNDS = [0.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"image_size": 3}, "data.image_size"),
        ({"channels": 2}, "data.channels"),
        ({"source": "folder", "classes": ["a", "a"]}, "data.classes"),
        ({"source": "mnist", "classes": ["a", "b"]}, "data.classes"),
        ({"source": "arrays", "labels": "attributes", "classes": NAMES}, "data.classes"),
        ({"labels": "several"}, "data.labels"),
        ({"source": "arrays", "labels": "value"}, "data.bounds"),
        ({"source": "arrays", "bounds": BOUNDS}, "data.bounds"),
        ({"source": "arrays", "labels": "value", "bounds": [0.0]}, "data.bounds"),
        (
            {"source": "arrays", "labels": "value", "bounds": BOUNDS, "classes": ["a", "b"]},
            "data.classes",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings, field):
    with pytest.raises(InvalidInput, match=r"must be|Leave out") as caught:
        DataConfig(**settings)
    assert caught.value.name == field


def test_every_name_is_known_once_and_no_other_is():
    assert set(SOURCES) == {"folder", "arrays", "table"} | set(PUBLISHED)
    for unknown in ("imagenet", "", "MNIST", "base"):
        with pytest.raises(InvalidInput, match=r"data\.source"):
            DataConfig(unknown)


@pytest.mark.parametrize("name", SOURCES)
def test_only_its_own_kinds_of_labels_are_configured(name):
    assert SOURCES[name].kinds
    for kind in get_args(Labels):
        settings: dict[str, Any] = {"labels": kind, "bounds": BOUNDS if kind == "value" else []}
        if kind in SOURCES[name].kinds:
            DataConfig(name, **settings)
        else:
            with pytest.raises(InvalidInput, match=r"data\.labels"):
                DataConfig(name, **settings)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_data_set_is_described_without_a_file(name):
    assert set(SOURCES[name].kinds) == set(PUBLISHED[name].names)
    for kind in SOURCES[name].kinds:
        task = describe(DataConfig(name, labels=kind, root="nowhere", download=False))
        assert (task.labels.kind, task.labels.names) == (kind, PUBLISHED[name].names[kind])
        assert len(set(task.labels.names)) == len(task.labels.names)
        assert len(task.input_shape) == 3
    assert SOURCES[name].private_records


# --- the public side opens nothing private


@pytest.mark.parametrize("reader", ["folder", "table", "npy"])
def test_the_public_side_neither_opens_nor_lists_private_files(
    tmp_path, image_folders, opened, reader
):
    config = {
        "folder": lambda: DataConfig("folder", **image_folders),
        "table": lambda: DataConfig(**write_tables(tmp_path)),
        "npy": lambda: write_arrays(tmp_path / "arrays"),
    }[reader]()
    private = config.private or f"{config.path}/private_"
    with opened() as paths:
        task = describe(config)
        read_public(config)
    assert any("public" in path for path in map(str, paths))
    assert not [path for path in map(str, paths) if path.startswith(private)]
    with opened() as paths:  # and the recorder would have seen it
        open_records(config, task)
    assert [path for path in map(str, paths) if path.startswith(private)]


def damage(path: str, names: tuple[str, ...]) -> None:
    """Overwrite some members' stored bytes, so that reading any of them fails its checksum."""
    with zipfile.ZipFile(path) as file:
        listed = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
    content = bytearray(Path(path).read_bytes())
    for name in names:
        # After the local header, name and extra field
        offset = listed[name].header_offset
        start = offset + 30 + sum(struct.unpack_from("<HH", content, offset + 26))
        part = slice(start, start + listed[name].file_size)
        content[part] = bytes(255 - byte for byte in content[part])
    Path(path).write_bytes(content)


def test_the_public_side_reads_no_private_member(tmp_path):
    config = write_arrays(tmp_path / "a.npz", private_id=np.arange(6))
    before = read_public(config)
    damage(str(config.path), ("private_x", "private_y", "private_id"))
    task = describe(config)
    np.testing.assert_array_equal(read_public(config).inputs, before.inputs)
    with pytest.raises(InvalidInput, match="private_x"):  # and the damage is real
        open_records(config, task)


PRIVATE_WORDS = {"private_x", "private_y", "private_id", "data.private"}
READERS = {"private_rows", "_one_side"}


def private_uses(source: str) -> list[str]:
    """Uses in a module's code of the readers of private rows, of a configuration's `private`, and
    of names of private arrays."""
    uses: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute | ast.Name | ast.alias):
            uses += {getattr(node, name, "") for name in ("attr", "id", "name")} & READERS
        if isinstance(node, ast.Attribute) and re.search(
            r"(config|data)\.private$", ast.unparse(node)
        ):
            uses.append("config.private")
        if isinstance(node, ast.Constant) and node.value in PRIVATE_WORDS:
            uses.append(str(node.value))
    return uses


def test_only_the_teachers_records_ask_for_private_rows():
    """Beside them the published sets alone have a reader's name; the custodian's directory is found
    by the path of the private rows, which are not opened."""
    files = [REPOSITORY / "pipeline.py"]
    for folder in ("wall", "teacher", "student", "experiment"):
        files += (REPOSITORY / folder).rglob("*.py")
    asking = {
        path.relative_to(REPOSITORY).as_posix(): set(private_uses(path.read_text()))
        for path in files
    }
    assert asking.pop("wall/datasets/sources.py") == {"_one_side"}
    assert asking.pop("teacher/custody/places.py") == {"config.private"}
    # The custodian's check reads labels as they are written
    records = {f"teacher/records/{name}.py" for name in ("inspect", "private_records", "source")}
    assert {path for path, uses in asking.items() if uses} == records
    for code in (
        "PUBLISHED[source]._one_side(config, private)",
        "from wall.datasets.svhn import private_rows",
        "read(self.config.private)",
        "read_member(path, 'private_y')",
    ):
        assert private_uses(code)
        assert not private_uses(code.replace("private", "public").replace("_one_side", "side"))


def test_the_data_set_of_the_page_has_splits_without_a_common_row(monkeypatch) -> None:
    for registry in (SOURCES, PUBLISHED):
        monkeypatch.setitem(registry, "digits", None)  # which is taken away afterwards
    code = example("data_set", most=40)
    exec(code, {**vars(sources), "SOURCES": SOURCES, "SourceFacts": SourceFacts})
    monkeypatch.setitem(sources._READERS, "digits", PUBLISHED["digits"])
    config = DataConfig("digits")
    task, public = describe(config), read_public(config)
    records = open_records(config, task)
    counts = len(records.labels), len(public.inputs), len(public.test_inputs)
    assert counts == (SOURCES["digits"].private_records, 500, 297)
    assert records.inputs.max() == 255
    rows = np.concatenate([records.inputs, public.inputs, public.test_inputs])
    truth = np.concatenate([records.labels, public.labels, public.test_labels])
    images, labels = load_digits(return_X_y=True)
    greys = (images * 15.9375).astype(np.uint8)
    written = sorted(zip(rows.reshape(-1, 64).tolist(), truth.tolist(), strict=True))
    assert written == sorted(zip(greys.tolist(), labels.tolist(), strict=True))
