"""What TensorBoard reads of rounds: numbers, images with what is said of them, features."""

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
from google.protobuf.text_format import Parse
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from labelwall.student.asking.features import PublicFeatures
from labelwall.student.asking.public_rows import PublicRows
from labelwall.student.board import save_board
from labelwall.student.public_map import save_map
from labelwall.student.results import Estimate, ShownImage, ShownRows
from labelwall.student.round_files import BOARD, MAP, RoundFiles
from labelwall.wall.messages import ExtractorSpec, Outcome
from labelwall.wall.progress import no_progress
from tests.experiment import tiny
from tests.experiment.results import made_round
from tests.student.public import NAMES, public_rows

ROWS, SHAPE = 130, (40, 20, 3)
ROUNDS = [
    made_round(label_accuracy=0.5, answered=65),
    made_round(student_accuracy=0.75, estimate=Estimate(0.625, 0.1, "noisy counts"), answered=64),
]


def images() -> PublicRows:
    """Public images of one colour each."""
    colours = np.random.default_rng(1).integers(0, 256, (ROWS, 1, 1, 3))
    inputs = (colours + np.zeros((1, *SHAPE), dtype=int)).astype(np.uint8)
    noisy = inputs ^ np.random.default_rng(2).integers(0, 16, inputs.shape, dtype=np.uint8)
    public = public_rows(noisy, None)
    features = PublicFeatures(public.settings, {"public": noisy}, no_progress)
    return replace(public, first=ExtractorSpec("hog", SHAPE, len(NAMES)), features=features)


def said_of(colours: list[str]) -> list[ShownImage]:
    found = []
    for number, colour in enumerate(colours):
        Image.new("RGB", (12, 10), colour).save(content := io.BytesIO(), "jpeg")
        jpeg = base64.b64encode(content.getvalue()).decode()
        found.append(ShownImage(jpeg=jpeg, label=NAMES[0], said="o|wl", sure=0.4 + number / 10))
    return found


def board_of(public: PublicRows, shown: ShownRows | None, path: Path) -> Path:
    """The folder that TensorBoard reads, of two rounds that release every other label."""
    path.mkdir()
    folder = RoundFiles(path)
    for number in (1, 2):
        half = np.arange(ROWS)[number - 1 :: 2]
        outcomes = np.full(len(half), Outcome.ANSWERED, dtype=np.uint8)
        folder.save_answers(number, half, half % 3, outcomes)
        save_map(public, ROUNDS[:number], folder)
        save_board(public, ROUNDS[:number], shown, folder)
    return path / BOARD


def test_images_and_what_is_said_of_them_are_read_back(tmp_path: Path) -> None:
    unsure, against = said_of(["red", "lime", "blue"]), said_of(["white", "yellow"])
    shown = ShownRows(model="", rows=9, unsure=tuple(unsure), against=tuple(against))
    board = board_of(images(), shown, tmp_path / "run")
    events = EventAccumulator(str(board)).Reload()
    assert [event.step for event in events.Images("public images")] == [1, 2]
    sheet = Image.open(io.BytesIO(events.Images("public images")[0].encoded_image_string))
    assert sheet.size == (4 * 12, 2 * 10)
    centres = [(6, 5), (18, 5), (30, 5), (42, 5), (6, 15), (18, 15)]
    expected = ["red", "lime", "blue", "white", "yellow", "black"]  # black: no image
    for centre, colour in zip(centres, expected, strict=True):
        drawn = Image.new("RGB", (1, 1), colour).getpixel((0, 0))
        np.testing.assert_allclose(sheet.getpixel(centre), drawn, atol=4)
    (_, told) = events.Tensors("public images: what is said of them")
    lines = told.tensor_proto.string_val[0].decode().splitlines()[2:]
    assert lines[:2] == ["| 1 | cat | o\\|wl | 0.40 |", "| 2 | cat | o\\|wl | 0.50 |"]
    assert len(lines) == 5


def test_numbers_are_curves_over_the_rounds(tmp_path: Path) -> None:
    events = EventAccumulator(str(board_of(images(), None, tmp_path / "run"))).Reload()
    curves = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    assert curves == {
        "right by round/student, test rows": [(2, 0.75)],
        "right by round/labels, public rows": [(1, 0.5)],
        "right by round/labels, estimate": [(2, 0.625)],
        "rows by round/answered": [(1, 65), (2, 64)],
    }
    assert events.Tags()["images"] == []


def test_features_are_those_of_the_map_with_its_labels_and_pictures(tmp_path: Path) -> None:
    public = images()
    board = board_of(public, None, tmp_path / "run")
    config = Parse((board / "projector_config.pbtxt").read_text(), ProjectorConfig())
    assert [entry.tensor_name for entry in config.embeddings] == ["round 1", "round 2"]
    for number, entry in enumerate(config.embeddings, start=1):
        with np.load(tmp_path / "run" / f"round_{number}" / MAP) as stored:
            rows, labels = stored["rows"], stored["labels"]
        features = public.features.quantised(public.first)[rows]
        np.testing.assert_array_equal(np.loadtxt(board / entry.tensor_path, int), features)
        names = (board / entry.metadata_path).read_text().split("\n")
        assert names == [NAMES[label] if label >= 0 else "no label" for label in labels]
        sheet = np.asarray(Image.open(board / entry.sprite.image_path)).astype(int)
        wide, high = entry.sprite.single_image_dim
        assert (wide, high) == (16, 32)
        across = sheet.shape[1] // wide
        for place, row in enumerate(rows):
            top, left = place // across * high, place % across * wide
            drawn = sheet[top : top + high, left : left + wide].mean(axis=(0, 1))
            np.testing.assert_allclose(drawn, public.data.inputs[row].mean(axis=(0, 1)), atol=2)
    assert "no label" in (board / "round_1/labels.tsv").read_text()


def test_vectors_have_features_and_no_pictures_and_the_same_bytes_again(tmp_path: Path) -> None:
    public = public_rows(tiny.rows(ROWS, 6)[0], None)
    boards = [board_of(public, None, tmp_path / name) for name in ("one", "two")]
    first, again = (
        {path.relative_to(board): path.read_bytes() for path in board.rglob("*.*")}
        for board in boards
    )
    assert first == again
    assert {path.suffix for path in first} == {".tfevents", ".tsv", ".pbtxt"}
    assert b"sprite" not in first[Path("projector_config.pbtxt")]
