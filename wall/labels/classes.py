"""One class a row: the label is the index of its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..messages import ABSTAINED
from .base import LabelSpace


@dataclass(frozen=True)
class ClassLabels(LabelSpace):
    """``names``: the classes, in order.

    Truth, codes and labels are one: int64 [n], indices of the names.
    """

    kind: ClassVar[str] = "class"
    loss: ClassVar[str] = "cross_entropy"
    form: ClassVar[str] = "whole numbers [n]"
    valid: ClassVar[str] = "from 0 to the number of classes less 1"
    names: tuple[str, ...]

    @classmethod
    def of(cls, count: int) -> ClassLabels:
        """``count`` classes named "0", "1" and so on."""
        return cls(tuple(map(str, range(count))))

    @property
    def num_labels(self) -> int:
        return len(self.names)

    def fits(self, truth: np.ndarray) -> bool:
        return truth.dtype.kind in "iu" and truth.ndim == 1

    def is_valid(self, truth: np.ndarray) -> np.ndarray:
        return (truth >= 0) & (truth < (len(self.names) or np.inf))

    def numbered(self, truth: np.ndarray) -> ClassLabels:
        return self if self.names else self.of(max(2, 1 + int(truth.max())))

    def text(self, label: np.ndarray) -> str | None:
        return None if label == ABSTAINED else self.names[int(label)]

    def strata(self, labels: np.ndarray) -> np.ndarray:
        """The classes themselves: screening passes some of them far less often than others."""
        return labels

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.argmax(axis=1)

    def probabilities(self, outputs: np.ndarray, temperature: float = 1.0) -> np.ndarray:
        """They add up to 1 in a row: one class is right."""
        from scipy.special import softmax  # slow

        shares: np.ndarray = softmax(outputs.astype(np.float64) / temperature, axis=1)
        return shares

    def certainty(self, probabilities: np.ndarray) -> np.ndarray:
        return probabilities.max(axis=1)

    def confusion(self, truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """int64 [c, c], true class by row."""
        counts = np.zeros((len(self.names), len(self.names)), dtype=np.int64)
        np.add.at(counts, (truth, predicted), 1)
        return counts

    def tally(self, codes: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
        return self.names, np.bincount(codes, minlength=len(self.names))
