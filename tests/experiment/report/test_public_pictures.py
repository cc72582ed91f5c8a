"""What the page shows of public rows: which rows, what of them, nothing of damaged files."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from labelwall.experiment.report.pictures import MOST_MAPS, training
from labelwall.student.round_files import BOARD, EVENTS, MAP
from labelwall.wall.files import write_arrays
from tests.experiment.report.finished_run import CLASSES, change, page_in, page_of

POINT = re.compile(r"M\d+ \d+h0")


def test_images_are_public_rows_with_what_was_released_of_them(rendered: Path) -> None:
    with np.load(rendered.parent / "data.npz") as rows:
        pools = [rows[f"{split}_x"].astype(float) for split in ("public", "private", "test")]
    everything = np.concatenate(pools)
    released = np.full(len(pools[0]), -1)
    for number in (1, 2):
        with np.load(rendered / f"round_{number}/answers.npz") as stored:
            released[stored["rows"][stored["outcomes"] < 2]] = stored["labels"][
                stored["outcomes"] < 2
            ]
    shown = json.loads((rendered / "shown.json").read_text())
    images = [*shown["unsure"], *shown["against"]]
    assert len(shown["unsure"]) == 8
    for one in images:
        picture = Image.open(io.BytesIO(base64.b64decode(one["jpeg"])))
        assert picture.format == "JPEG"
        row = int(np.abs(everything - np.asarray(picture)).mean(axis=(1, 2, 3)).argmin())
        assert row < len(released)  # public
        assert one["label"] == ("" if released[row] < 0 else CLASSES[released[row]])
    assert all(one["label"] not in ("", one["said"]) for one in shown["against"])
    sure = [one["sure"] for one in shown["unsure"]]
    assert sure == sorted(sure)
    page = page_in(rendered)
    assert page.images == [f"data:image/jpeg;base64,{one['jpeg']}" for one in images]
    assert sum(map(len, page.images)) < 62_000
    board = EventAccumulator(str(rendered / BOARD)).Reload()
    assert [event.step for event in board.Images("public images")] == [1, 2]
    (_, told) = board.Tensors("public images: what is said of them")
    lines = told.tensor_proto.string_val[0].decode().splitlines()[2:]
    assert [line.split(" | ")[-1] for line in lines] == [f"{one['sure']:.2f} |" for one in images]


def test_asked_rows_are_answered_or_abstained_on(rendered: Path) -> None:
    shown = json.loads((rendered / "shown.json").read_text())
    outcomes = dict[int, int]()
    for number in (1, 2):
        with np.load(rendered / f"round_{number}/answers.npz") as stored:
            outcomes |= dict(zip(stored["rows"].tolist(), stored["outcomes"].tolist(), strict=True))
    answered, abstained = np.array([*shown["answered"].values()]).sum(axis=0).tolist()
    assert answered == [*outcomes.values()].count(0)
    assert abstained == [*outcomes.values()].count(1)
    assert "Answered and abstained" in page_in(rendered).text


def test_a_map_has_a_point_for_each_row_of_the_first_and_the_last_rounds(copied: Path) -> None:
    rounds = json.loads((copied / "summary.json").read_text())["rounds"]
    change(copied / "summary.json", rounds=[*rounds, *rounds])
    rng = np.random.default_rng(0)
    for number in range(1, 5):
        folder = copied / f"round_{number}"
        folder.mkdir(exist_ok=True)
        places, labels = rng.random((100 + number, 2)), np.arange(100 + number) % 4 - 1
        write_arrays(folder / MAP, rows=np.arange(100), places=places, labels=labels)
    text = page_of(copied).text
    assert MOST_MAPS == 3
    assert len(POINT.findall((copied / "report.html").read_text())) == 101 + 103 + 104
    assert [n for n in range(1, 5) if f"Round {n} , " in text] == [1, 3, 4]
    assert "no label" in text


@pytest.mark.parametrize("content", [None, b"{", b"PK\x03\x04 no archive"])
def test_damaged_files_leave_their_pictures_out(copied: Path, content: bytes | None) -> None:
    for path in (copied / "shown.json", copied / "round_2" / EVENTS, copied / "round_1" / MAP):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
    page = page_of(copied)
    assert not page.images
    assert "Public rows by round" not in page.text
    assert not training(copied / "round_2")


def test_places_of_classes_that_are_not_there_are_no_map(copied: Path) -> None:
    places = np.zeros((100, 2))
    write_arrays(copied / "round_1" / MAP, places=places, labels=np.full(100, len(CLASSES)))
    assert "Public rows by round" not in page_of(copied).text


def test_columns_and_words_are_text(copied: Path) -> None:
    told = {"columns": {"<i>age</i>": {CLASSES[0]: 0.25, CLASSES[1]: 0.05}, "b": {CLASSES[1]: 0.1}}}
    change(copied / "shown.json", words={CLASSES[2]: ["hoot", "<u>"]}, **told)
    page = page_of(copied)
    assert "<i>age</i> 30.0% b 10.0%" in page.text
    assert "<b>owl</b> hoot, <u>" in page.text
    html = (copied / "report.html").read_text()
    assert [float(w) for w in re.findall(r"width:([\d.]+)%\"></b>", html)][:3] == [83.3, 16.7, 33.3]
