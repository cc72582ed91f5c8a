"""No row decides what another is, for image folders and their lists of attributes and persons."""

import io
import shutil

import pytest
from PIL import Image

from labelwall.wall.datasets.config import DataConfig
from tests.teacher.records.neighbours import TEXTS, Row, csv_bytes, tried


def image_bytes(shade, size=(8, 8), form="PNG"):
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade, 2 * shade, 0)).save(buffer, format=form)
    return buffer.getvalue()


def too_large():
    """A grey PNG of 13,300 x 13,300 pixels by its header, which Pillow would decode."""
    buffer = io.BytesIO()
    Image.new("1", (13_300, 13_300)).save(buffer, format="PNG")
    return buffer.getvalue()


IMAGES = [image_bytes(9 * n) for n in range(4)]
FILES: list[Row] = [
    {"path": f"{'ab'[n % 2]}/p{n}/{n}.png", "file": IMAGES[n], "who": f"p{n}", "x": "1", "y": "0"}
    for n in range(4)
]
BAD = [b"", b"text", IMAGES[0][:50], image_bytes(1, (3, 90)), image_bytes(1, form="TIFF")]
BAD += [image_bytes(1, form="GIF"), image_bytes(200, form="JPEG"), too_large()]
PATHS = ["c/p0/0.png", "0.png", "a/0.png", "a/p9/\u00e9.png", "a/p9/9.txt", "a/.p/0.png"]


def folder_config(root, **settings):
    """Public and test folders with both classes and an attributes.csv."""
    for split in ("public", "test"):
        for name in ("a", "b"):
            (root / split / name).mkdir(parents=True, exist_ok=True)
            (root / split / name / "0.png").write_bytes(image_bytes(7))
        (root / split / "attributes.csv").write_text("path,x,y\na/0.png,1,0\nb/0.png,0,1\n")
    places = {split: str(root / split) for split in ("private", "public", "test")}
    return DataConfig("folder", image_size=8, **places, **settings)


def write_folder(root, rows):
    """The images, an attributes.csv and a persons.csv, by the rows' columns."""
    folder = root / "private"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for row in rows:
        path = folder / row.get("place", row["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(row["file"])
    (folder / "attributes.csv").write_bytes(csv_bytes(rows, ["path", "x", "y"]))
    (folder / "persons.csv").write_bytes(csv_bytes(rows, ["path", "who"]))


@pytest.mark.parametrize(
    ("labels", "person"),
    [("class", "path"), ("class", "persons.csv"), ("attributes", "persons.csv")],
)
def test_files_and_lines_of_image_folders(tmp_path, labels, person):
    config = folder_config(tmp_path, labels=labels, person=person)
    rows = [row | {"place": row["path"]} for row in FILES]
    lines = [text for text in TEXTS if text not in ("", " ", ",")]
    damages = {"file": BAD, "place": PATHS, "path": lines, "who": TEXTS, "x": TEXTS}
    if person == "path":
        damages = {"file": BAD, "place": PATHS}
    elif labels == "class":
        del damages["x"]
    new = FILES[0] | {"path": "b/new/n.png", "place": "b/new/n.png", "who": "new"}
    count = tried(rows, damages, new, lambda r: write_folder(tmp_path, r), config, "person")
    assert count >= (50 if person == "path" else 200)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_beyond_the_limit_are_refused_by_their_header(monkeypatch, tmp_path):
    from PIL import PngImagePlugin

    from labelwall.wall.datasets.readers import MAX_PIXELS, decode

    (tmp_path / "bomb.png").write_bytes(too_large())
    assert MAX_PIXELS < 13_300**2
    assert decode(tmp_path / "bomb.png", 8, 3) is None
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", lambda self: pytest.fail("decoded"))
    assert decode(tmp_path / "bomb.png", 8, 3) is None
