"""A round on the public side that asks by matrices: fit to noisy counts, then label any rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from labelwall.experiment.config.config import Config
from labelwall.experiment.run.fitted import Fitted, Question
from labelwall.experiment.run.judge import Estimate
from labelwall.experiment.run.linear_round import fit_weights
from labelwall.experiment.run.query_selection import choose_queries
from labelwall.experiment.run.reverse_knn_round import fit_cells
from labelwall.teacher.features.embedder import unit_length
from labelwall.teacher.mechanisms.registry import from_slot
from labelwall.wall.matrix import Matrix, NoisyCounts
from labelwall.wall.messages import Answers, ExtractorSpec

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
