"""Private rows: what is dropped, what stays, and that neither shows; the same rows in blocks."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwall.teacher.records.private_records import (
    Records,
    ingest,
    open_records,
    stream_records,
)
from labelwall.wall.datasets.data_config import DataConfig, Task
from labelwall.wall.datasets.sources import describe
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.label_kinds import ClassLabels, label_space
from tests.wall.datasets.small import HEADER, write_arrays, write_splits, write_tables

VECTORS = Task(ClassLabels(("a", "b", "c")), (2,))
COLUMNS = ("inputs", "labels", "ids", "persons")


def private(path, x, y, ids=None, labels="class"):
    """An npz file with a private split alone matters here."""
    arrays = {"private_x": np.array(x), "private_y": np.array(y)}
    return write_arrays(path / "a.npz", labels, private_id=ids, **arrays)


def test_bad_rows_are_dropped_and_row_numbers_stay(tmp_path):
    x = np.arange(14.0).reshape(7, 2)
    x[1, 0], x[2, 1], x[3, 0] = np.nan, -np.inf, 1e300  # the last is infinite as float32
    y = np.array([0, 1, 2, 0, 3, -1, 2])
    for ids, kept in ((None, [0, 6]), (70 - 10 * np.arange(7), [70, 10])):
        records = open_records(private(tmp_path, x, y, ids), VECTORS)
        assert (records.ids.tolist(), records.labels.tolist()) == (kept, [0, 2])
        np.testing.assert_array_equal(records.inputs, x[[0, 6]])
        assert records.inputs.dtype == np.float32
        assert records.labels.dtype == records.ids.dtype == np.int64


def test_a_bad_row_displaces_no_good_row_of_its_id_and_the_first_good_one_stays(tmp_path):
    x = [[np.nan, 0], [1, 1], [2, 2], [3, 3]]
    config = private(tmp_path, x, [0, 9, 1, 2], np.array([7, 7, 7, 7]))
    assert open_records(config, VECTORS).inputs.tolist() == [[2, 2]]


@pytest.mark.parametrize("image", [False, True])
def test_no_rows_at_all(tmp_path, image):
    task = Task(ClassLabels(("a", "b")), (4, 4, 1)) if image else VECTORS
    x = np.zeros((0, 4, 4), dtype=np.uint8) if image else np.zeros((0, 2))
    records = open_records(private(tmp_path, x, np.zeros(0, dtype=int)), task)
    assert records.inputs.shape == (0, *task.input_shape)
    assert records.labels.shape == records.ids.shape == (0,)


X, Y = np.zeros((17, 2)), np.zeros(17, dtype=int)


@pytest.mark.parametrize(
    ("labels", "x", "y", "ids", "name"),
    [
        ("class", np.zeros((17, 3)), Y, None, "private_x"),
        ("class", X.astype(np.uint8), Y, None, "private_x"),
        ("class", X, Y[1:], None, "private_y"),
        ("class", X, Y.astype("S"), None, "private_y"),
        ("class", X, Y, np.arange(18), "private_id"),
        ("class", X, np.array([{}] * 17, dtype=object), None, "private_y"),
        ("attributes", X, np.zeros((17, 5), dtype=int), None, "private_y"),
        ("attributes", X, Y, None, "private_y"),
        ("value", X, X[:, :1], None, "private_y"),
        ("value", X, np.array(list("abcdefghijklmnopq")), None, "private_y"),
    ],
)
@pytest.mark.parametrize("blocks", [False, True])
def test_a_misfit_is_named_without_the_number_of_rows(tmp_path, labels, x, y, ids, name, blocks):
    task = Task(label_space(labels, ("a", "b", "c", "d"), (0.0, 1.0)), (2,))
    config = private(tmp_path, x, y, ids, labels)
    with pytest.raises(InvalidInput) as caught:
        list(stream_records(config, task, 3)) if blocks else open_records(config, task)
    assert caught.value.name == name
    assert not any(count in str(caught.value) for count in ("16", "17", "18"))


@pytest.mark.parametrize("folder", [True, False])
def test_blocks_of_arrays_that_are_stored_by_columns(tmp_path, folder):
    x, y = np.arange(22.0).reshape(11, 2), np.array([0, 1, 2, np.nan, 1.5, 1] * 2)[:11]
    if folder:
        np.save(tmp_path / "private_x.npy", np.asfortranarray(x))
        np.save(tmp_path / "private_y.npy", y)
        config = DataConfig("arrays", path=str(tmp_path))
    else:
        config = private(tmp_path, np.asfortranarray(x), y)
    parts = [rows for _, _, rows in stream_records(config, VECTORS, 4, start=2)]
    assert np.concatenate([part.inputs for part in parts]).tolist() == x[[2, 5, 6, 7, 8]].tolist()
    assert np.concatenate([part.labels for part in parts]).tolist() == [2, 1, 0, 1, 2]


def test_records_and_what_was_read_do_not_print_their_rows(tmp_path):
    x, ids = np.full((3, 2), 123.0), np.array([777, 778, 779])
    config = private(tmp_path, x, [0, 1, 2], ids)
    records = open_records(config, VECTORS)
    text = repr(records) + str(records) + repr(ingest(config, VECTORS)) + repr([records])
    text = re.sub("0x[0-9a-f]+", "", text)  # an address may hold any digits
    assert not any(word in text for word in ("123", "777", "array", "(3,"))
    assert isinstance(records, Records)


# --- folders


def folder_config(image_folders):
    return DataConfig(source="folder", image_size=8, **image_folders)


def test_folder_ids_are_hashes_of_the_relative_path(image_folders):
    config = folder_config(image_folders)
    records = open_records(config, describe(config))
    paths = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(6)]
    expected = [int(hashlib.sha256(path.encode()).hexdigest()[:16], 16) // 2 for path in paths]
    assert records.ids.tolist() == expected
    assert records.labels.tolist() == [0] * 6 + [1] * 6
    blue = (records.inputs[..., 2] > records.inputs[..., 0]).all(axis=(1, 2))
    assert blue.tolist() == [False] * 6 + [True] * 6


def spoil(folder, monkeypatch):
    """Six bad rows of every kind that a folder can hold, and files that are no images."""
    (folder / "cat" / "0.png").write_bytes(b"")
    (folder / "cat" / "1.png").write_bytes((folder / "cat" / "1.png").read_bytes()[:45])
    (folder / "dog" / "0.png").write_text("a text file")
    Image.new("RGB", (3000, 3000)).save(folder / "dog" / "1.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2_000_000)  # 9 million: "decompression bomb"
    (folder / "emu").mkdir()
    Image.new("RGB", (9, 9)).save(folder / "emu" / "0.png")
    Image.new("RGB", (9, 9)).save(folder / "loose.png")
    (folder / "cat" / "notes.txt").write_text("no image")
    (folder / "cat" / ".hidden.png").write_text("no image")


def test_bad_images_vanish_without_a_trace(image_folders, monkeypatch, capfd, recwarn, caplog):
    config = folder_config(image_folders)
    task = describe(config)
    before = open_records(config, task)
    spoil(Path(image_folders["private"]), monkeypatch)
    after = open_records(config, task)
    kept = [2, 3, 4, 5, 8, 9, 10, 11]
    np.testing.assert_array_equal(after.inputs, before.inputs[kept])
    np.testing.assert_array_equal(after.ids, before.ids[kept])
    assert (capfd.readouterr(), list(recwarn), caplog.records) == (("", ""), [], [])


def test_an_empty_private_folder_is_no_records_and_a_missing_one_an_error(image_folders, tmp_path):
    (tmp_path / "empty").mkdir()
    config = folder_config(image_folders | {"private": str(tmp_path / "empty")})
    assert open_records(config, describe(config)).inputs.shape == (0, 8, 8, 3)
    for missing, error in ((str(tmp_path / "nowhere"), MissingData), (None, InvalidInput)):
        config = folder_config(image_folders | {"private": missing})
        with pytest.raises(error, match=r"data\.private"):
            open_records(config, describe(config))


def test_progress_tells_percent_not_how_many(image_folders):
    config, calls = folder_config(image_folders), list[tuple[int, int]]()
    open_records(config, describe(config), lambda done, total: calls.append((done, total)))
    assert calls == [(100, 100)]


# --- block by block


def mixed(folder, reader, unit):
    """Good and bad rows of several persons, as one reader has them."""
    rng = np.random.default_rng(0)
    x, y, ids = rng.normal(size=(53, 2)), rng.integers(-1, 4, 53), rng.permutation(53) * 3
    x[::7] = np.nan
    persons = np.array(["", "ann", "bob", "eve"])[rng.integers(0, 4, 53)]
    if reader == "mnist5k":
        return DataConfig(source="mnist5k")
    if reader == "folder":
        for i in range(7):
            place = folder / "ab"[i % 2] / "pq"[i // 2 % 2] / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (9, 9), i * 30).save(place)
        (folder / "a" / "p" / "bad.png").write_text("no image")
        return DataConfig("folder", private=str(folder), image_size=8, channels=1, person="path")
    if reader.startswith("table"):
        lines = [f"{a},{b},{'abc?'[c]},{p}" for (a, b), c, p in zip(x, y, persons, strict=True)]
        settings = write_tables(folder, person="who")
        write_splits(folder, ["1,2,a,x", "2,5,b,y"], HEADER + ",who")
        if reader == "table with ids":
            lines = [f"{line},{i}" for line, i in zip(lines, ids, strict=True)]
        header = HEADER + ",who" + ",record_id" * (reader == "table with ids")
        write_splits(folder, {"private": lines}, header)
        return DataConfig(**settings)
    extra = {"private_id": ids} if "ids" in reader else {}
    extra |= {"private_person": persons} if unit == "person" else {}
    place = folder / ("arrays" if reader == "npy" else "a.npz")
    config = write_arrays(place, private_x=x, private_y=y, **extra)
    if "compressed" in reader:
        np.savez_compressed(place, **np.load(place))
    return config


@pytest.mark.parametrize(
    ("reader", "unit"),
    [
        (reader, unit)
        for reader in ("npz", "npz, ids", "compressed", "npy", "table", "table with ids", "folder")
        for unit in ("row", "person")
    ]
    + [("mnist5k", "row")],
)
def test_rows_read_in_blocks_are_the_rows(tmp_path, monkeypatch, reader, unit):
    """Also from a later row on; a member of an npz file is never loaded as one array."""
    config = mixed(tmp_path, reader, unit)
    image = Task(ClassLabels(("a", "b")), (8, 8, 1))
    task = {"folder": image, "mnist5k": describe(DataConfig())}.get(reader, VECTORS)
    whole = open_records(config, task, unit=unit)
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", None)
    few, many = ((999, 0), (999, 2)), ((1, 0), (3, 0), (53, 0), (100, 0), (2, 4))
    for size, start in few if reader == "mnist5k" else many:
        blocks = list(stream_records(config, task, size, start, unit))
        total = blocks[-1][1]
        ends = [min(start + size * (i + 1), total) for i in range(len(blocks))]
        assert [done for done, _, _ in blocks] == ends
        joined = blocks[0][2]
        for _, _, block in blocks[1:]:
            joined = joined.joined(block)
        assert 0 < len(joined.ids) <= len(whole.ids)
        assert start or len(joined.ids) == len(whole.ids)
        assert (joined.persons is None) == (unit == "row")
        for name in COLUMNS[: 3 + (unit == "person")]:
            later = getattr(whole, name)[len(whole.ids) - len(joined.ids) :]
            np.testing.assert_array_equal(getattr(joined, name), later, strict=True)
