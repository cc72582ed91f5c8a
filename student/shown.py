"""What a report shows of the public rows by the kept model: images, abstentions, columns, words.

It follows from released values and public rows alone.
"""

import base64
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from ..wall.datasets.data_config import DataConfig
from ..wall.datasets.tables import encoding, split_rows
from ..wall.datasets.texts import NGrams, cleaned
from ..wall.labels import LabelSpace, has_label
from ..wall.messages import ExtractorSpec, Outcome
from .asking.public_rows import PublicRows
from .learning import released
from .public_map import some_rows
from .results import RoundResult, ShownImage, ShownRows, estimates, worse_rounds
from .round_files import RoundFiles
from .student_model import module_outputs, outputs, preprocessed

MOST_IMAGES, MOST_ROWS = 300, 1_000  # public rows that the model is asked about
SHOWN_IMAGES, SIDE, JPEG_BYTES = 8, 96, 2_800  # of each kind; pixels and bytes of one at most
MOST_ENTRIES, MOST_COLUMNS = 200, 20  # numbers of a row; columns that are told
MOST_WORDS, LEAST_TEXTS, WORDS = 2_000, 5, 8  # tried; with a word; told of each class
WORD = re.compile(r"[^\W\d_]{3,}")


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


def picture(pixels: np.ndarray, side: int = SIDE) -> Image.Image:
    """A picture of uint8 [h, w, c], with at most so many pixels of a ``side``."""
    image = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    image.thumbnail((side, side))
    return image


def _jpeg(pixels: np.ndarray) -> str:
    """A small JPEG in base64, of uint8 [h, w, c]."""
    image = picture(pixels)
    for quality in (90, 75, 50, 25):
        image.save(content := io.BytesIO(), "jpeg", quality=quality)
        if content.tell() <= JPEG_BYTES:
            break
    return base64.b64encode(content.getvalue()).decode()


def columns_that_matter(
    public: PublicRows, model: ExtractorSpec, inputs: np.ndarray
) -> dict[str, dict[str, float]]:
    """How much the answers to ``inputs``, float32 [n, d], change if one column is shuffled.

    By column, the most important first: the mean part of the probability that moves to other
    classes, by the class that was most probable; of attributes the mean change of a probability,
    of values that of the answer in its deviations, under "". Empty for texts and for many numbers.
    """
    parts, space = _columns(public.settings.data, inputs.shape[1]), public.task.labels
    module = preprocessed(model)

    def answers(rows: np.ndarray) -> np.ndarray:
        said = module_outputs(module, rows, model.num_classes)
        return said.astype(np.float64) if space.kind == "value" else space.probabilities(said)

    before, found = answers(inputs), dict[str, dict[str, float]]()
    unit = max(float(before.std()), 1e-12) if space.kind == "value" else 1.0
    order = np.random.default_rng(0).permutation(len(inputs))
    for name, entries in parts.items():
        changed = inputs.copy()
        changed[:, entries] = inputs[order, entries]
        change = np.abs(answers(changed) - before)
        if space.kind == "class":
            moved = np.bincount(before.argmax(axis=1), change.sum(axis=1) / 2, before.shape[1])
            shares = zip(space.names, moved / len(inputs), strict=True)
            found[name] = {of: round(float(share), 6) for of, share in shares if share}
        else:
            found[name] = {"": round(float(change.mean()) / unit, 6)}
    moving = [name for name in found if sum(found[name].values()) > 0]
    moving.sort(key=lambda name: -sum(found[name].values()))
    return {name: found[name] for name in moving[:MOST_COLUMNS]}


def _columns(data: DataConfig, width: int) -> dict[str, slice]:
    """Entries of a row by the name of their column; none for texts and for many numbers."""
    if data.source == "table":
        table, names, first = encoding(data), dict[str, slice](), 0
        for column in () if table.of_text else table.columns:
            names[column.name] = slice(first, first + column.width)
            first += column.width
        return names
    return {
        f"number {n + 1}": slice(n, n + 1) for n in range(width if width <= MOST_ENTRIES else 0)
    }


def words_by_class(public: PublicRows, model: ExtractorSpec) -> dict[str, tuple[str, ...]]:
    """Words of public texts that, as a whole text, speak most for each class.

    Empty if rows are no texts, or if a sentence model reads them.
    """
    data = public.settings.data
    if data.source != "table" or not (table := encoding(data)).of_text:
        return {}
    (column,) = table.columns
    if not isinstance(column.encoder, NGrams):
        return {}
    texts = cleaned(split_rows(data, "public").columns[column.name])
    counts = Counter(word for text in texts for word in {*WORD.findall(text.lower())})
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:MOST_WORDS]
    words = np.array([w for w in frequent if counts[w] >= LEAST_TEXTS], dtype=object)
    if not len(words):
        return {}
    rows = table.inputs("words", {column.name: words})
    logits = outputs(model, rows).astype(np.float64)
    for_class = logits - logits.mean(axis=1, keepdims=True)
    for_class -= for_class.mean(axis=0)
    best = np.argsort(-for_class, axis=0, kind="stable")[:WORDS]
    names = public.task.labels.names
    return {name: tuple(words[best[:, at]]) for at, name in enumerate(names)}
