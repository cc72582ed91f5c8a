"""The label spaces by the names that configurations and trainings use."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidInput
from .attributes import AttributeLabels
from .base import LabelSpace
from .classes import ClassLabels
from .values import ValueLabels


def numbered_space(kind: str, count: int) -> LabelSpace:
    """A space of ``count`` classes or attributes, or of values, where names do not matter.

    Raises InvalidInput for an unknown kind.
    """
    return label_space(kind, list(map(str, range(count))), (0.0, 1.0))


def label_space(kind: str, names: Sequence[str] = (), bounds: Sequence[float] = ()) -> LabelSpace:
    """The space called ``kind``, with the names of classes or attributes, or the bounds of values.

    Raises InvalidInput for an unknown kind, and for names or bounds that break the space's rules.
    """
    if kind == ValueLabels.kind:
        low, high = bounds
        return ValueLabels(low, high)
    named = {space.kind: space for space in (ClassLabels, AttributeLabels)}
    if kind not in named:
        known = ", ".join([*named, ValueLabels.kind])
        raise InvalidInput("data.labels", f"one of {known}", kind)
    return named[kind](tuple(names))
