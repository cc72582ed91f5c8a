"""Private rows: what is dropped, what stays, and that neither shows."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwall.teacher.records.sources import Records, ingest, open_records, stream_records
from labelwall.wall.datasets.sources import DataConfig, Task, describe
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.labels.classes import ClassLabels

VECTORS = Task(ClassLabels(("a", "b", "c")), (2,))


def write_private(
    path: Path, x: np.ndarray, y: np.ndarray, ids: np.ndarray | None = None
) -> DataConfig:
    np.savez(path, private_x=x, private_y=y, **({} if ids is None else {"private_id": ids}))
    return DataConfig(source="arrays", path=str(path))


def test_arrays_keep_rows_labels_and_ids(tmp_path):
    x = np.arange(10.0).reshape(5, 2)
    config = write_private(
        tmp_path / "a.npz",
        x,
        np.array([0, 1, 2, 0, 1], dtype=np.uint8),
        np.array([50, 40, 30, 20, 10]),
    )
    records = open_records(config, VECTORS)
    np.testing.assert_array_equal(records.inputs, x.astype(np.float32))
    assert (records.inputs.dtype, records.labels.dtype, records.ids.dtype) == (
        np.float32,
        np.int64,
        np.int64,
    )
    assert records.labels.tolist() == [0, 1, 2, 0, 1]
    assert records.ids.tolist() == [50, 40, 30, 20, 10]


def test_bad_rows_are_dropped_and_row_numbers_stay(tmp_path):
    x = np.arange(14.0).reshape(7, 2)
    x[1, 0], x[2, 1], x[3, 0] = np.nan, -np.inf, 1e300  # the last is infinite as float32
    records = open_records(
        write_private(tmp_path / "a.npz", x, np.array([0, 1, 2, 0, 3, -1, 2])), VECTORS
    )
    assert records.ids.tolist() == [0, 6]
    assert records.labels.tolist() == [0, 2]


def test_a_bad_row_displaces_no_good_row_of_its_id_and_the_first_good_one_stays(tmp_path):
    x = np.array([[np.nan, 0], [1, 1], [2, 2], [3, 3]])
    records = open_records(
        write_private(tmp_path / "a.npz", x, np.array([0, 9, 1, 2]), np.array([7, 7, 7, 7])),
        VECTORS,
    )
    assert records.inputs.tolist() == [[2, 2]]


@pytest.mark.parametrize("image", [False, True])
def test_no_rows_at_all(tmp_path, image):
    task = Task(ClassLabels(("a", "b")), (4, 4, 1)) if image else VECTORS
    x = np.zeros((0, 4, 4), dtype=np.uint8) if image else np.zeros((0, 2))
    records = open_records(write_private(tmp_path / "a.npz", x, np.zeros(0, dtype=int)), task)
    assert records.inputs.shape == (0, *task.input_shape)
    assert records.labels.shape == records.ids.shape == (0,)


@pytest.mark.parametrize(
    ("x", "y", "ids", "name"),
    [
        (np.zeros((17, 3)), np.zeros(17, dtype=int), None, "private_x"),
        (np.zeros((17, 2), dtype=np.uint8), np.zeros(17, dtype=int), None, "private_x"),
        (np.zeros((17, 4, 4), dtype=np.uint8), np.zeros(17, dtype=int), None, "private_x"),
        (np.zeros((17, 2)), np.zeros(16, dtype=int), None, "private_y"),
        (np.zeros((17, 2)), np.zeros(17), None, "private_y"),
        (np.zeros((17, 2)), np.zeros((17, 1), dtype=int), None, "private_y"),
        (np.zeros((17, 2)), np.zeros(17, dtype=int), np.arange(18), "private_id"),
        (np.zeros((17, 2)), np.array([{}] * 17, dtype=object), None, "private_y"),
    ],
)
def test_a_misfit_is_named_without_the_number_of_rows(tmp_path, x, y, ids, name):
    with pytest.raises(InvalidInput) as caught:
        open_records(write_private(tmp_path / "a.npz", x, y, ids), VECTORS)
    assert caught.value.name == name
    assert not any(count in str(caught.value) for count in ("16", "17", "18"))


def test_records_and_what_was_found_do_not_print_their_rows(tmp_path):
    config = write_private(
        tmp_path / "a.npz", np.full((3, 2), 123.0), np.array([0, 1, 2]), np.array([777, 778, 779])
    )
    records = open_records(config, VECTORS)
    text = repr(records) + str(records) + repr(ingest(config, VECTORS)) + repr([records])
    assert not any(word in text for word in ("123", "777", "array", "(3,"))
    assert isinstance(records, Records)


# --- folders


def folder_config(image_folders: dict[str, str]) -> DataConfig:
    return DataConfig(source="folder", image_size=8, **image_folders)


def test_folder_ids_are_hashes_of_the_relative_path_and_do_not_move(image_folders):
    config = folder_config(image_folders)
    before = open_records(config, describe(config))
    paths = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(6)]
    expected = [int(hashlib.sha256(path.encode()).hexdigest()[:16], 16) // 2 for path in paths]
    assert before.ids.tolist() == expected
    assert before.labels.tolist() == [0] * 6 + [1] * 6
    assert (before.inputs[..., 2] > before.inputs[..., 0]).all(axis=(1, 2)).tolist() == [
        False
    ] * 6 + [True] * 6
    Image.new("RGB", (5, 5)).save(Path(image_folders["private"]) / "cat" / "00.png")
    after = open_records(config, describe(config))
    kept = np.isin(after.ids, before.ids)
    assert (len(after.ids), int(kept.sum())) == (13, 12)
    np.testing.assert_array_equal(after.inputs[kept], before.inputs)


def spoil(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six bad rows of every kind that a folder can hold, and files that are no images."""
    (private / "cat" / "0.png").write_bytes(b"")
    (private / "cat" / "1.png").write_bytes((private / "cat" / "1.png").read_bytes()[:45])
    (private / "dog" / "0.png").write_text("a text file")
    Image.new("RGB", (3000, 3000)).save(private / "dog" / "1.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2_000_000)  # 9 million: "decompression bomb"
    (private / "emu").mkdir()
    Image.new("RGB", (9, 9)).save(private / "emu" / "0.png")
    Image.new("RGB", (9, 9)).save(private / "loose.png")
    (private / "cat" / "notes.txt").write_text("no image")
    (private / "cat" / ".hidden.png").write_text("no image")


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


def test_large_images_that_pillow_only_warns_about_stay_quiet(image_folders, monkeypatch, recwarn):
    config = folder_config(image_folders)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # 120 pixels: a warning, not an error
    with pytest.warns(Image.DecompressionBombWarning):
        Image.open(Path(image_folders["private"]) / "cat" / "0.png")
    recwarn.clear()
    assert len(open_records(config, describe(config)).ids) == 12
    assert not [
        warning
        for warning in recwarn
        if issubclass(warning.category, Image.DecompressionBombWarning)
    ]


def test_an_empty_private_folder_is_no_records_and_a_missing_one_an_error(image_folders, tmp_path):
    (tmp_path / "empty").mkdir()
    config = folder_config(image_folders | {"private": str(tmp_path / "empty")})
    assert open_records(config, describe(config)).inputs.shape == (0, 8, 8, 3)
    for missing, error in ((str(tmp_path / "nowhere"), MissingData), (None, InvalidInput)):
        config = folder_config(image_folders | {"private": missing})
        with pytest.raises(error, match=r"data\.private"):
            open_records(config, describe(config))


def test_progress_tells_percent_not_how_many(image_folders):
    config = folder_config(image_folders)
    heard: list[tuple[int, int]] = []
    open_records(config, describe(config), lambda done, total: heard.append((done, total)))
    assert heard == [(100, 100)]


# --- block by block
# ------------------------------------------------------------------------------------------------


def joined(config: DataConfig, task: Task, size: int, start: int = 0) -> Records:
    blocks = list(stream_records(config, task, size, start))
    assert [found for found, _, _ in blocks] == [
        min(start + size * (i + 1), blocks[-1][1]) for i in range(len(blocks))
    ]
    whole = blocks[0][2]
    for _, _, block in blocks[1:]:
        whole = whole.joined(block)
    return whole


def assert_same(one: Records, other: Records) -> None:
    for name in ("inputs", "labels", "ids"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == getattr(other, name).dtype


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("with_ids", [False, True])
def test_an_npz_file_read_in_blocks_is_the_file(tmp_path, monkeypatch, compressed, with_ids):
    """Without a block's worth of memory for the whole array: its member is never loaded as one."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(53, 2)), rng.integers(-1, 4, 53)
    x[::7] = np.nan
    ids = {"private_id": rng.permutation(53) * 3} if with_ids else {}
    (np.savez_compressed if compressed else np.savez)(
        tmp_path / "a.npz", private_x=x, private_y=y, **ids
    )
    config = DataConfig(source="arrays", path=str(tmp_path / "a.npz"))
    whole = open_records(config, VECTORS)
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", None)
    for size in (1, 10, 53, 100):
        assert_same(joined(config, VECTORS, size), whole)
    later = joined(config, VECTORS, 10, start=30)
    assert_same(
        later,
        Records(*(getattr(whole, name)[-len(later.ids) :] for name in ("inputs", "labels", "ids"))),
    )
    assert 0 < len(later.ids) < len(whole.ids)


def test_a_folder_read_in_blocks_is_the_folder(tmp_path):
    for i in range(7):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        Image.new("L", (9, 9), i * 30).save(tmp_path / "ab"[i % 2] / f"{i}.png")
    (tmp_path / "a" / "bad.png").write_text("no image")
    config, task = (
        DataConfig(source="folder", private=str(tmp_path), image_size=8, channels=1),
        Task(ClassLabels(("a", "b")), (8, 8, 1)),
    )
    assert_same(joined(config, task, 3), open_records(config, task))


def test_published_rows_in_blocks_are_the_published_rows():
    config = DataConfig(source="mnist5k")
    task = describe(config)
    assert_same(joined(config, task, 999), open_records(config, task))


def test_arrays_of_another_length_are_refused_in_blocks_too(tmp_path):
    for rows in (3, 5):
        config = write_private(tmp_path / "a.npz", np.zeros((4, 2)), np.zeros(rows, dtype=int))
        with pytest.raises(InvalidInput, match="private_y"):
            list(stream_records(config, VECTORS, 3))


def test_an_npz_file_is_read_once_however_many_blocks_there_are(tmp_path, monkeypatch):
    """Bytes read of the zipped members: their size and one start, not one for each block."""
    config = write_private(tmp_path / "a.npz", np.zeros((4000, 8)), np.zeros(4000, dtype=int))
    read, taken = zipfile.ZipExtFile.read, [0]

    def counting(self, n=-1):
        found = read(self, n)
        taken[0] += len(found)
        return found

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counting)
    assert len(list(stream_records(config, Task(ClassLabels(("a",)), (8,)), 10))) == 400
    assert taken[0] < 1.01 * 4000 * 9 * 8


@pytest.mark.parametrize("x", [np.asfortranarray(np.zeros((4, 2))), np.array([{}] * 4)])
def test_arrays_that_are_not_rows_of_numbers_have_no_blocks(tmp_path, x):
    config = write_private(tmp_path / "a.npz", x, np.zeros(4, dtype=int))
    with pytest.raises(InvalidInput, match="private_x"):
        list(stream_records(config, VECTORS, 2))
