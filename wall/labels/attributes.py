"""Several labels a row: each of some named attributes is present (1) or absent (0).

A private row's code has bit j set where attribute j is present. A released label may be ABSTAINED
for some attributes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..errors import InvalidInput
from ..messages import ABSTAINED
from .base import LabelSpace

MOST_ATTRIBUTES = 62  # bits of a code


def pack(bits: np.ndarray) -> np.ndarray:
    """Codes int64 [n] of int64 [n, c], bit j for column j; -1 for a row with another entry than 0
    and 1.
    """
    places = np.arange(bits.shape[1], dtype=np.int64)
    codes = (np.clip(bits, 0, 1) << places).sum(axis=1, dtype=np.int64)
    return np.where(((bits == 0) | (bits == 1)).all(axis=1), codes, -1)


def unpack(codes: np.ndarray, attributes: int) -> np.ndarray:
    """Inverse of ``pack`` for codes of at least 0: int64 [n, attributes] of 0 and 1."""
    return (codes[:, None] >> np.arange(attributes, dtype=np.int64)) & 1


@dataclass(frozen=True)
class AttributeLabels(LabelSpace):
    """``names``: the attributes, in order.

    Truth and labels are int64 [n, c], a column for each of them.

    Raises InvalidInput for more than MOST_ATTRIBUTES.
    """

    kind: ClassVar[str] = "attributes"
    loss: ClassVar[str] = "binary_cross_entropy"
    form: ClassVar[str] = "whole numbers [n, attributes], at least 2 attributes"
    valid: ClassVar[str] = "0 and 1"
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.names) > MOST_ATTRIBUTES:
            raise InvalidInput(
                "data.classes", f"at most {MOST_ATTRIBUTES} attributes", len(self.names)
            )

    @classmethod
    def of(cls, count: int) -> AttributeLabels:
        """``count`` attributes named "0", "1" and so on."""
        return cls(tuple(map(str, range(count))))

    @property
    def num_labels(self) -> int:
        return 1 << len(self.names)

    def encode(self, name: str, truth: np.ndarray) -> np.ndarray:
        return pack(self.canonical(name, truth))

    def fits(self, truth: np.ndarray) -> bool:
        if truth.dtype.kind not in "iu" or truth.ndim != 2:
            return False
        return truth.shape[1] == len(self.names) if self.names else truth.shape[1] > 1

    def is_valid(self, truth: np.ndarray) -> np.ndarray:
        return (truth == 0) | (truth == 1)

    def numbered(self, truth: np.ndarray) -> AttributeLabels:
        return self if self.names else self.of(truth.shape[1])

    def expand(self, codes: np.ndarray) -> np.ndarray:
        return unpack(codes, len(self.names))

    def no_labels(self, rows: int) -> np.ndarray:
        return np.full((rows, len(self.names)), ABSTAINED, dtype=np.int64)

    def text(self, label: np.ndarray) -> str | None:
        """The attributes present, those not released with a question mark."""
        if (label == ABSTAINED).all():
            return None
        marked = zip(self.names, label.tolist(), strict=True)
        shown = [name + "?" * (bit == ABSTAINED) for name, bit in marked if bit]
        return ", ".join(shown) or "none of them"

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return (outputs > 0).astype(np.int64)

    def probabilities(self, outputs: np.ndarray, temperature: float = 1.0) -> np.ndarray:
        """Of each attribute being present."""
        from scipy.special import expit  # slow

        shares: np.ndarray = expit(outputs.astype(np.float64) / temperature)
        return shares

    def certainty(self, probabilities: np.ndarray) -> np.ndarray:
        return np.maximum(probabilities, 1 - probabilities)

    def confusion(self, truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """int64 [c, 2, 2], by attribute, true and predicted."""
        counts = [((truth == i) & (predicted == j)).sum(axis=0) for i, j in np.ndindex(2, 2)]
        return np.stack(counts, axis=-1).reshape(-1, 2, 2)

    def tally(self, codes: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
        return self.names, self.expand(codes).sum(axis=0)
