"""Columns and words that a model's answers depend on, by public rows alone."""

import re
from collections import Counter

import numpy as np

from ..wall.datasets.data_config import DataConfig
from ..wall.datasets.tables import encoding, split_rows
from ..wall.datasets.texts import NGrams, cleaned
from ..wall.messages import ExtractorSpec
from .asking.public_rows import PublicRows
from .student_model import outputs, preprocessed

MOST_ENTRIES, MOST_COLUMNS = 200, 20  # numbers of a row; columns that are told
MOST_WORDS, LEAST_TEXTS, WORDS = 2_000, 5, 8  # tried; with a word; told of each class
WORD = re.compile(r"[^\W\d_]{3,}")


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
        said = outputs(module, rows, model.num_classes)
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
    logits = outputs(preprocessed(model), rows, model.num_classes).astype(np.float64)
    for_class = logits - logits.mean(axis=1, keepdims=True)
    for_class -= for_class.mean(axis=0)
    best = np.argsort(-for_class, axis=0, kind="stable")[:WORDS]
    names = public.task.labels.names
    return {name: tuple(words[best[:, at]]) for at, name in enumerate(names)}
