"""What a round that asks by matrices sees, and what it stores."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...wall.features.embedder import unit_length
from ...wall.files import reading, write_arrays, write_file
from ...wall.matrices import Matrix, NoisyCounts
from ...wall.messages import ExtractorSpec
from ...wall.questions import Round
from ..linear.labelled import PublicLabels
from ..linear.linear_model import LinearModel
from ..linear.neighbours import Says
from ..round_files import CLASSIFIER, PROBABILITIES

Count = Callable[[Matrix], NoisyCounts]  # what such a round needs of a teacher


@dataclass(frozen=True, kw_only=True)
class MatrixRound:
    """A ``planned`` round that asks by matrices of PUBLIC rows.

    Matrices are stored before they are sent: a resumed round must send the same ones, since others
    would be charged again.

    Args:
        count: the teacher's noisy counts by a matrix.
        extractor: of the features.
        features: int8 [n, d], of the rows that matrices are made from.
        rows: int8 [m, d], of the rows to label; None: the same ones.
        labelled: rows that are learned, too.
        drawn: whether ``features`` are of drawn rows, which tell nothing of the records.
        balanced: whether a linear classifier favours each class alike.
        last: file of an earlier classifier of these features, which counts as well.
        folder: of the round; None for a rehearsal, which stores nothing and estimates nothing of a
            linear model.
    """

    count: Count
    planned: Round
    extractor: ExtractorSpec
    features: np.ndarray = field(repr=False)
    rows: np.ndarray | None = field(default=None, repr=False)
    labelled: PublicLabels | None = None
    drawn: bool = False
    balanced: bool = False
    last: Path | None = None
    folder: Path | None

    @property
    def to_label(self) -> np.ndarray:
        """Features of the rows to label, int8 [m, d]."""
        return self.features if self.rows is None else self.rows

    @property
    def length(self) -> float:
        """Length of a unit vector after quantisation."""
        return unit_length(self.extractor, self.features.shape[1])

    def stored(self, file: str, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array ``name`` of an npz file, which is made and written if it is missing."""
        if self.folder is None:
            return make()
        if not (path := self.folder / file).exists():
            write_arrays(path, **{name: make()})
        with reading(path), np.load(path, allow_pickle=False) as stored:
            return np.asarray(stored[name])

    def store(self, model: LinearModel, says: Says) -> None:
        """Leave a classifier and, for classes, what it ``says`` of the features, in their order."""
        if self.folder is None:
            return
        if model.labels == "class":
            write_arrays(self.folder / PROBABILITIES, says(self.features))
        write_file(self.folder / CLASSIFIER, model.to_bytes(self.extractor.sha256()))
