"""What rounds that ask by matrices have in common: their question, and what they are fitted to."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...teacher.mechanisms.base import Asks
from ...wall.matrix import Matrix, NoisyCounts
from ...wall.messages import Receipt
from .quality import Estimate


@dataclass(frozen=True)
class Question:
    """A round's question.

    Args:
        count: the teacher's method.
        features: of PUBLIC rows, int8 [n, d].
        length: of a unit vector after quantisation (``Embedder.length``).
        classes: their number.
        asked: what the mechanism says of its matrices.
        slot: the entry of the plan that pays.
        seed: of public randomness.
        extractor: hash of the extractor of the features.
        folder: where the matrices are written before they are sent. A resumed round must send the
            same ones, since others would be charged again.
    """

    count: Callable[[Matrix], NoisyCounts] = field(repr=False)
    features: np.ndarray = field(repr=False)
    length: float
    classes: int
    asked: Asks
    slot: int
    seed: int
    extractor: str
    folder: Path

    def stored(self, file: str, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array ``name`` of an npz ``file`` of the folder, made and written where missing."""
        if not (self.folder / file).exists():
            content = io.BytesIO()
            np.savez(content, **{name: make()})  # type: ignore[arg-type]
            self.write(file, content.getvalue())
        with np.load(self.folder / file, allow_pickle=False) as stored:
            found: np.ndarray = stored[name]
        return found

    def write(self, file: str, content: bytes) -> None:
        """Write a file of the folder atomically."""
        scratch = self.folder / f"{file}.part"
        scratch.write_bytes(content)
        scratch.replace(self.folder / file)


@dataclass(frozen=True)
class Fitted:
    """What labels rows for nothing.

    ``label``: (labels int64 [n], outcomes uint8 [n]) of features int8 [n, d]. ``receipt``: of all
    that was asked. ``estimate``: of the question's rows' labels; None where counts tell nothing.
    """

    label: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] = field(repr=False)
    receipt: Receipt
    estimate: Estimate | None = None
