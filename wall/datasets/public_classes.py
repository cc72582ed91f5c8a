"""The classes that PUBLIC labels name: which they are, and what a reader should know of them."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import InvalidInput, listed
from ..labels import NO_LABEL, class_names, code_of
from .columns import number_form, numbers, texts
from .data_config import MANY, as_values

MOST_NUMBERS = 20  # classes that are numbers with fractions


def classes_by_column(
    test: Iterable[object], public: Iterable[object], column: str, split: str
) -> list[str]:
    """The classes that the cells of a column of labels name, of the test and the public rows.

    ``split``: where rows are to have labels, in errors. Raises InvalidInput for fewer than two
    classes, and for numbers that are measured.
    """
    classes = class_names(test, public)
    if len(classes) < 2:
        rule = f"a column with at least 2 classes in the rows of {split}"
        raise InvalidInput("data.label", rule, f"{column}: {', '.join(classes)}")
    if len(classes) > MOST_NUMBERS and (_as_numbers(classes) % 1 > 0).any():
        rule = "a column of classes, not of numbers that are measured"
        found = f"{column}: {len(classes)} different values"
        cure = "Values: --data.labels value --data.bounds '[LOW, HIGH]'. Classes: --data.classes."
        raise InvalidInput("data.label", rule, found, cure)
    return classes


def _as_numbers(classes: Sequence[str]) -> np.ndarray:
    """PUBLIC classes as numbers, float64 [n], as most are written; all NaN if most are none."""
    names = np.array(classes, dtype=object)
    read = numbers(names, 1, number_form(names))[:, 0]
    return read if np.isfinite(read).mean() > 0.5 else np.full(len(names), np.nan)


def classes_read(names: Sequence[str], public: np.ndarray) -> list[str]:
    """Lines about the classes of a column, and about cells of ``public`` rows that are none."""
    lines, folded = list[str](), Counter(name.casefold() for name in names)
    if alike := [name for name in names if folded[name.casefold()] > 1]:
        lines.append(f"these classes differ by their case alone: {listed(alike)}")
    if len(names) > MANY and np.isfinite(_as_numbers(names)).any():
        lines.append(as_values(len(names)))
    known, given = code_of(names), [text for text in texts(public) if text.lower() not in NO_LABEL]
    if given and not any(known(text) >= 0 for text in given):
        lines.append(
            f"data.public: none of {len(given)} labels is one of these classes, as {given[0]!r}"
        )
    return lines
