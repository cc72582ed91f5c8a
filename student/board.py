"""What TensorBoard shows of a run's rounds beside their trainings: shares, images, features.

It follows from released values and public rows alone.
"""

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

from ..wall.files import reading, write_file
from .asking.asking_features import features_of
from .asking.public_rows import PublicRows
from .events import numbers, write_events
from .results import RoundResult, ShownImage, ShownRows
from .round_files import BOARD, MAP, RoundFiles
from .shown import picture

ACROSS, SIDE = 4, 32  # images in a line of those that are shown; pixels of one beside its features
FEATURES, LABELS, IMAGES = "features.tsv", "labels.tsv", "images.png"
TEXT = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))


def save_board(
    public: PublicRows, results: Sequence[RoundResult], shown: ShownRows | None, folder: RoundFiles
) -> None:
    """Store the last round's numbers, its ``shown`` images, and its map's rows with features."""
    number, last, board = len(results), results[-1], folder.path / BOARD
    named = {f"right by round/{name}": share for name, share in last.shares.items()}
    named |= {f"error by round/{name}": one for name, one in (last.student_errors or {}).items()}
    values = numbers(named | {"rows by round/answered": last.answered})
    if shown is not None and (images := [*shown.unsure, *shown.against]):
        values += _images(images)
    write_events(board / f"{number:03}.tfevents", [(number, values)])
    if (path := folder.round(number) / MAP).exists():
        with reading(path), np.load(path) as stored:
            rows, labels = stored["rows"], stored["labels"]
        features = public.features.quantised(features_of(public, last, folder).spec)[rows]
        names = [_word(public.task.labels.text(label) or "no label") for label in labels]
        _save_features(board, number, features, names, public.data.inputs[rows])


def _images(images: Sequence[ShownImage]) -> list[Summary.Value]:
    """One picture of all images, and a table of what is said of each."""
    pictures = [Image.open(io.BytesIO(base64.b64decode(image.jpeg))) for image in images]
    sheet = _sheet(pictures, ACROSS)
    lines = ["| image | released label | student | certainty |", "|---|---|---|---|"]
    lines += [
        f"| {n} | {_word(image.label)} | {_word(image.said)} | {image.sure:.2f} |"
        for n, image in enumerate(images, start=1)
    ]
    seen = Summary.Image(height=sheet.height, width=sheet.width, encoded_image_string=_png(sheet))
    told = TensorProto(dtype=DT_STRING, string_val=["\n".join(lines).encode()])
    return [
        Summary.Value(tag="public images", image=seen),
        Summary.Value(tag="public images: what is said of them", tensor=told, metadata=TEXT),
    ]


def _save_features(
    board: Path, number: int, features: np.ndarray, labels: Sequence[str], inputs: np.ndarray
) -> None:
    """Store features, int8 [n, d], of public ``inputs`` for the projector, beside earlier ones."""
    (own := board / f"round_{number}").mkdir(exist_ok=True)
    write_file(own / LABELS, "\n".join(labels))
    write_file(own / FEATURES, "\n".join("\t".join(map(str, row)) for row in features.tolist()))
    config, thumbs = ProjectorConfig(), list[Image.Image]()
    if inputs.ndim == 4:
        thumbs = [picture(pixels, SIDE) for pixels in inputs]
        write_file(board / IMAGES, _png(_sheet(thumbs, int(np.ceil(np.sqrt(len(thumbs)))))))
    for known in range(1, number + 1):
        if (board / f"round_{known}" / FEATURES).exists():
            place = f"round_{known}"
            entry = config.embeddings.add(tensor_name=f"round {known}")
            entry.tensor_path, entry.metadata_path = f"{place}/{FEATURES}", f"{place}/{LABELS}"
            if thumbs:
                entry.sprite.image_path = IMAGES  # a map has the same rows in each round
                entry.sprite.single_image_dim.extend(thumbs[0].size)
    write_file(board / "projector_config.pbtxt", str(config))


def _sheet(pictures: Sequence[Image.Image], across: int) -> Image.Image:
    """Pictures of one size side by side, so many in a line."""
    wide, high = pictures[0].size
    sheet = Image.new("RGB", (across * wide, -(-len(pictures) // across) * high))
    for place, one in enumerate(pictures):
        sheet.paste(one, (place % across * wide, place // across * high))
    return sheet


def _png(image: Image.Image) -> bytes:
    image.save(content := io.BytesIO(), "png")
    return content.getvalue()


def _word(text: str) -> str:
    """A name in a cell of a table."""
    return " ".join(text.split()).replace("|", r"\|")
