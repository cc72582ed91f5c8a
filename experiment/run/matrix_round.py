"""A round on the public side that asks by matrices: fit to noisy counts, then label any rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from ...teacher.features.embedder import unit_length
from ...teacher.mechanisms.registry import from_slot
from ...wall.matrix import Matrix, NoisyCounts
from ...wall.messages import Answers, ExtractorSpec
from ..config.config import Config
from .fitted import Fitted, Question
from .linear_round import fit_weights
from .quality import Estimate
from .query_selection import choose_queries
from .reverse_knn_round import fit_cells

FIT_BY: dict[str, Callable[[Question], Fitted]] = {"cells": fit_cells, "weights": fit_weights}


class Counting(Protocol):
    """What such a round needs of a teacher, wherever it runs."""

    def count(self, matrix: Matrix) -> NoisyCounts: ...


def ask_matrices(
    teacher: Counting,
    config: Config,
    number: int,
    extractor: ExtractorSpec,
    features: np.ndarray,
    classes: int,
    folder: Path,
    rows: np.ndarray | None = None,
) -> tuple[Answers, Estimate | None]:
    """Labels of ``rows`` by what round ``number`` counts, with matrices from PUBLIC ``features``.

    Both are features of the ``extractor``, int8 [n, d]; the rows are those of the matrices where
    ``rows`` is None. ``folder``: keeps the matrices (``Question``). The estimate is of the labels
    of ``features``. Raises InvalidInput where there are too few of them.
    """
    slot = config.slots()[number - 1]
    asked = from_slot(config.plan().slots[slot]).asks
    assert asked.matrix is not None
    question = Question(
        count=teacher.count,
        features=features,
        length=unit_length(extractor, features.shape[1]),
        classes=classes,
        asked=asked,
        slot=slot,
        seed=config.seed * 1000 + number,
        extractor=extractor.sha256(),
        folder=folder,
    )
    fitted = FIT_BY[asked.matrix](question)
    labelled = features if rows is None else rows
    return Answers(*fitted.label(labelled), fitted.receipt), fitted.estimate


def rows_of_round(config: Config, number: int, public: int) -> np.ndarray:
    """Public rows, of so many, that a round asks about whose price does not depend on them.

    int64 [n]. Every round may ask about all of them.
    """
    count = config.rounds[number - 1].queries or public
    return choose_queries(config.seed, number, np.zeros(public, dtype=np.uint8), count)
