"""The custodian's preview: counts against rows made by hand, and its mark as private."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from labelwall.teacher.records.inspect import preview
from labelwall.wall.datasets.data_config import DataConfig
from tests.wall.datasets.small import write_arrays, write_lines, write_splits


def arrays(path, x, y, ids):
    rows = {"private_x": x, "private_y": y, "private_id": ids}
    public = np.ones((3, 2))
    return write_arrays(path / "a.npz", public_x=public, test_x=public, test_y=np.arange(3), **rows)


def counted(text, title):
    """The lines of one table of a preview, in words."""
    lines = text.split(f"{title}\n")[1].split("\n\n")[0].splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines]


def test_counts_of_good_and_bad_rows(tmp_path):
    x = np.arange(18.0).reshape(9, 2)
    x[0] = np.nan  # row 0: not finite
    y = np.array([0, 7, -1, 1, 1, 2, 1, 1, 0])  # rows 1 and 2: outside the classes
    ids = np.array([0, 1, 2, 3, 4, 5, 6, 6, 8])  # row 7: the id of row 6
    text = preview(arrays(tmp_path, x, y, ids))
    assert "9 rows, 5 usable" in text
    assert counted(text, "usable rows by class") == [("0", "1"), ("1", "3"), ("2", "1")]
    bad = counted(text, "rows that a run drops silently")
    assert [count for count, _ in bad] == ["0", "1", "2", "1", "0"]
    told = counted(text, "their labels, as written (classes: 0, 1, 2)")
    assert sorted((count, words.split(":")[0]) for count, words in told) == [
        ("1", "'-1'"), ("1", "'0'"), ("1", "'1'"), ("1", "'7'"),
    ]  # fmt: skip
    assert "0 rows, 0 usable" in preview(arrays(tmp_path, x[:0], y[:0], y[:0]))


def test_an_image_folder_with_bad_files(image_folders):
    private = Path(image_folders["private"])
    (private / "cat" / "0.png").write_bytes(b"")
    (private / "emu").mkdir()
    Image.new("RGB", (40, 30)).save(private / "emu" / "0.png")
    (private / "notes.txt").write_text("no image")
    text = preview(DataConfig(source="folder", **image_folders))
    assert "PRIVATE" in text.splitlines()[0]
    assert "not for release" in text.splitlines()[0]
    assert "13 rows, 11 usable" in text
    assert "no images, not read: 1" in text
    bad = counted(text, "rows that a run drops silently")
    assert [count for count, _ in bad] == ["1", "0", "1", "0", "0"]
    assert counted(text, "usable rows by class") == [("cat", "5"), ("dog", "6")]
    told = counted(text, "their labels, as written (classes: cat, dog)")
    assert {words.split(",")[0] for _, words in told} == {
        "'cat': images that can not be decoded",
        "'emu': labels outside the public classes",
    }


def test_labels_of_a_table_that_are_written_otherwise(tmp_path):
    """Most frequent first, and no more than fit on a page."""
    labels = ["Ja"] * 40 + ["No "] * 9 + ["nein "] * 8 + [f"spelling {n}" for n in range(22)]
    cells = {"private": labels, "public": ["yes", "no"] * 5}
    lines = {name: [f"{n},{cell}" for n, cell in enumerate(own)] for name, own in cells.items()}
    places = write_splits(tmp_path, lines, "a,label")
    text = preview(DataConfig(source="table", classes=["yes", "no"], **places))
    told = counted(text, "their labels, as written (classes: yes, no)")
    assert [(count, words.split(":")[0]) for count, words in told[:2]] == [
        ("40", "'Ja'"), ("8", "'nein'"),
    ]  # fmt: skip
    assert len(told) == 21
    assert told[-1] == ("and", "4 more")


def test_columns_that_can_not_be_read_are_shown(tmp_path):
    """The private file has decimal commas, the public one points."""
    rows = [f"{n}.5,{n % 7}.25,{'ab'[n % 2]}" for n in range(30)]
    files = write_splits(tmp_path, rows, "size,weight,label")
    config, title = DataConfig(source="table", **files), "columns that are not as the public rows"
    assert title not in preview(config)
    rows = [row.replace(",", ";").replace(".", ",") for row in rows]
    write_lines(tmp_path, "private.csv", rows, "size;weight;label")
    text = preview(config)
    assert "size: 30 of 30 cells are no number, as '0,5'" in text.split(title)[1]
    assert "30 rows, 30 usable" in text


def test_persons_flat_images_and_attributes_are_told(tmp_path):
    """What the custodian can not see elsewhere, and a run may not say."""
    for number in range(4):
        for split in ("private", "public", "test"):
            place = tmp_path / split / f"p{number % 3}"
            place.mkdir(parents=True, exist_ok=True)
            grey = np.arange(64, dtype=np.uint16).reshape(8, 8) * (62 if split == "private" else 1)
            shown = Image.fromarray(grey if split == "private" else grey.astype(np.uint8))
            shown.save(place / f"{number}.png")
    files = [f"p{number % 3}/{number}.png" for number in range(4)]
    for split, cells in (("private", ["1", "0", "maybe", "1"]), ("test", ["0", "1", "1", "0"])):
        lines = [f"{file},{cell}" for file, cell in zip(files, cells, strict=True)]
        (tmp_path / split / "metadata.csv").write_text("\n".join(["path,round", *lines, ""]))
    places = {split: str(tmp_path / split) for split in ("private", "public", "test")}
    config = DataConfig("folder", labels="attributes", person="path", image_size=8, **places)
    text = preview(config, unit="person")
    assert "persons with usable rows: 2, with 1 to 2 rows each" in text
    assert "half of the images have no contrast above 15 of 255" in text
    assert "'maybe': labels outside the public classes" in text
    assert "contrast" not in preview(replace(config, white=4095.0), unit="person")
    flat = {"private": places["test"], "public": places["public"], "test": places["private"]}
    assert "contrast" not in preview(DataConfig("folder", image_size=8, **flat))  # of 8 bits
