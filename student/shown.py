"""What a report shows of the public rows by the kept model: images, abstentions, columns, words.

It follows from released values and public rows alone.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from ..wall.labels import LabelSpace, has_label
from ..wall.messages import ExtractorSpec, Outcome
from .asking.asking_features import estimates
from .asking.estimates import worse_rounds
from .asking.public_rows import PublicRows
from .learning import released
from .matters import columns_that_matter, words_by_class
from .public_map import some_rows
from .results import RoundResult, ShownImage, ShownRows
from .round_files import RoundFiles
from .train import outputs

MOST_IMAGES, MOST_ROWS = 300, 1_000  # public rows that the model is asked about
SHOWN_IMAGES, SIDE, JPEG_BYTES = 8, 96, 2_800  # of each kind; pixels and bytes of one at most


def shown(
    public: PublicRows, model: ExtractorSpec, results: Sequence[RoundResult], folder: RoundFiles
) -> ShownRows:
    """What is shown of the ``model``, which the last of these rounds taught."""
    space, size, number = public.task.labels, len(public.data.inputs), len(results)
    images = public.data.inputs.ndim == 4
    rows = some_rows(size, MOST_IMAGES if images else MOST_ROWS)
    inputs = public.data.inputs[rows]
    found = ShownRows(model=model.sha256(), rows=len(rows))
    if not images:
        found = replace(found, columns=columns_that_matter(public, model, inputs))
    if space.kind != "class":
        return found
    chances = space.probabilities(outputs(model, inputs))
    worse = worse_rounds(estimates(results, results[-1].period))
    labels = released(folder, number, size, worse)[0][rows]
    was_asked = _asked(folder, number, size)[rows]
    found = replace(found, answered=_answered(space, chances, labels, was_asked))
    if not images:
        return replace(found, words=words_by_class(public, model))
    sure, said = chances.max(axis=1), chances.argmax(axis=1)
    least, most = np.argsort(sure, kind="stable"), np.argsort(-sure, kind="stable")
    differ = most[has_label(labels[most]) & (said[most] != labels[most])]

    def picked(order: np.ndarray) -> tuple[ShownImage, ...]:
        return tuple(
            ShownImage(
                jpeg=_jpeg(inputs[row]),
                label=space.text(labels[row]) or "",
                said=space.names[said[row]],
                sure=round(float(sure[row]), 4),
            )
            for row in order[:SHOWN_IMAGES]
        )

    return replace(found, unsure=picked(least), against=picked(differ))


def _asked(folder: RoundFiles, number: int, size: int) -> np.ndarray:
    """Which public rows the teacher answered or abstained on, in the first rounds: bool [size]."""
    was_asked = np.zeros(size, dtype=bool)
    for earlier in range(1, number + 1):
        rows, _, outcomes = folder.load_answers(earlier)
        was_asked[rows[outcomes != Outcome.CAP_REACHED]] = True
    return was_asked


def _answered(
    space: LabelSpace, chances: np.ndarray, labels: np.ndarray, was_asked: np.ndarray
) -> dict[str, tuple[int, int]]:
    """Asked rows by the class that the model says, with a label and without, for ``ShownRows``."""
    said, with_label = chances.argmax(axis=1), has_label(labels)
    if not (was_asked & ~with_label).any():
        return {}
    count = len(space.names)
    given, withheld = (
        np.bincount(said[was_asked & which], minlength=count) for which in (with_label, ~with_label)
    )
    pairs = zip(given.tolist(), withheld.tolist(), strict=True)
    return {name: pair for name, pair in zip(space.names, pairs, strict=True) if any(pair)}


def _jpeg(pixels: np.ndarray) -> str:
    """A small JPEG in base64, of uint8 [h, w, c]."""
    image = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    image.thumbnail((SIDE, SIDE))
    for quality in (90, 75, 50, 25):
        image.save(content := io.BytesIO(), "jpeg", quality=quality)
        if content.tell() <= JPEG_BYTES:
            break
    return base64.b64encode(content.getvalue()).decode()
