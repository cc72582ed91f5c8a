"""Arrays of one's own in an npz file: images or feature vectors, with classes, attributes or
values.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..errors import InvalidInput, shape_text
from ..labels.base import LabelSpace
from ..progress import TaskProgress
from . import readers
from .base import DataSet, Labels, PublicRows, Settings


class Arrays(DataSet):
    """Classes and attributes without declared names get numbers, as many as test_y shows."""

    name = "arrays"
    kinds: tuple[Labels, ...] = ("class", "attributes", "value")
    takes_names = True
    persons = "member"

    def label_space(self, config: Settings) -> LabelSpace:
        space = config.declared_labels
        return space if space.names else space.numbered(_labels(config, "test_y", None))

    def input_shape(self, config: Settings) -> tuple[int, ...]:
        return _inputs(config, "public_x").shape[1:]

    def read_public(self, config: Settings, progress: TaskProgress | None) -> PublicRows:
        inputs, test_inputs = _inputs(config, "public_x"), _inputs(config, "test_x")
        if test_inputs.dtype != inputs.dtype or test_inputs.shape[1:] != inputs.shape[1:]:
            rule = f"{shape_text(inputs)}, as public_x is"
            raise InvalidInput("test_x", rule, shape_text(test_inputs))
        test_labels = _labels(config, "test_y", len(test_inputs))
        has_labels = readers.has_member(readers.require_arrays(config.path), "public_y")
        labels = _labels(config, "public_y", len(inputs)) if has_labels else None
        return inputs, labels, test_inputs, test_labels


def _inputs(config: Settings, name: Literal["public_x", "test_x"]) -> np.ndarray:
    """A PUBLIC array of inputs, canonical, finite and not empty."""
    rows = readers.canonical_rows(name, readers.required_member(config.path, name))
    if len(rows) == 0:
        raise InvalidInput(name, "at least one row", "none")
    if not np.isfinite(rows).all():
        row = int(np.argmin(np.isfinite(rows).all(axis=1)))
        raise InvalidInput(name, "finite", f"NaN, or a number beyond float32, in row {row}")
    return rows


def _labels(config: Settings, name: Literal["public_y", "test_y"], rows: int | None) -> np.ndarray:
    """PUBLIC labels; ``rows``: how many there must be."""
    return config.declared_labels.check_public(
        name, readers.required_member(config.path, name), rows
    )
