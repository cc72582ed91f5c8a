"""No private text decides what another is, and none stops a run: columns and folders of texts."""

from pathlib import Path

import pytest

from labelwall.wall.datasets.config import DataConfig
from labelwall.wall.guarantee import UNITS, Unit
from tests.teacher.records.neighbours import TEXTS, Row, csv_bytes, tried
from tests.wall.datasets.small import PUBLIC_TEXTS, text_of, write_text_folders

ROWS = [
    {"record_id": f"r{n}", "who": f"p{n}", "label": kind, "body": text_of(kind, 100 + n)}
    for n, kind in enumerate(("cat", "dog", "cat"))
]
NEW = {"record_id": "new", "who": "new", "label": "dog", "body": text_of("dog", 7)}


@pytest.mark.parametrize("unit", UNITS)
def test_a_column_of_texts(tmp_path: Path, unit: Unit) -> None:
    kinds = ("cat", "dog") * (len(PUBLIC_TEXTS) // 2)
    public = "\n".join(["body,label", *map(",".join, zip(PUBLIC_TEXTS, kinds, strict=True))])
    places = {name: str(tmp_path / f"{name}.csv") for name in ("private", "public", "test")}
    for name in ("public", "test"):
        Path(places[name]).write_text(public)
    config = DataConfig("table", person="who", **places)

    def write(rows: list[Row]) -> None:
        Path(places["private"]).write_bytes(csv_bytes(rows, list(NEW)))

    long = " ".join(PUBLIC_TEXTS * 20).encode()
    assert tried(ROWS, {"body": [*TEXTS, long]}, NEW, write, config, unit) == 3 + 3 * (
        2 + len(TEXTS)
    )


@pytest.mark.parametrize("unit", UNITS)
def test_a_folder_of_texts(tmp_path: Path, unit: Unit) -> None:
    places = write_text_folders(tmp_path, private=0)
    config = DataConfig("table", person="path", **places)
    root, content = Path(places["private"]), [b"", b"\xff\xfe", b"a\0b", b"\xef\xbb\xbfx" * 99_999]

    def write(rows: list[Row]) -> None:
        for path in root.rglob("*.txt"):
            path.unlink()
        for row in rows:
            place = root / row["label"] / row["who"] / f"{row['record_id']}.txt"
            place.parent.mkdir(parents=True, exist_ok=True)
            body = row["body"]
            if body is None:  # can not be read
                place.symlink_to("nowhere.txt")
            else:
                place.write_bytes(body if isinstance(body, bytes) else body.encode())

    damages = {"body": [*content, None], "label": ["ghost", "dog"]}
    assert tried(ROWS, damages, NEW, write, config, unit) == 3 + 3 * 8
