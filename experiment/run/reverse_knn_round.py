"""A round of reverse kNN on the public side.

Public rows are clustered, one histogram is asked for, and the rows inherit its labels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from labelwall.experiment.run.clusters import k_means
from labelwall.experiment.run.judge import Estimate, by_counts
from labelwall.teacher.mechanisms.base import Asks
from labelwall.wall.cells import CellCounts, Cells, inherit, nearest_cells
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import Answers

ITERATIONS = 50  # of Lloyd's algorithm; later ones move centres by less than their rounding


def ask_cells(
    count: Callable[[Cells], CellCounts],
    features: np.ndarray,
    asked: Asks,
    *,
    slot: int,
    seed: int,
    centers_file: Path,
) -> tuple[Answers, Estimate | None]:
    """Labels of PUBLIC rows by one noisy histogram over clusters, and how many are right.

    ``features``: int8 [n, d] of the rows, as the teacher has them; ``count``: the teacher's method.
    ``centers_file``: npz file for the clusters, written before the question. A resumed round must
    send the same clusters, since others would be charged again.

    Raises InvalidInput where there are fewer inputs than cells.
    """
    assert asked.cells is not None
    if not centers_file.exists():
        _save(centers_file, cluster(features, asked.cells, seed))
    with np.load(centers_file, allow_pickle=False) as stored:
        centers = stored["centers"]
    found = count(Cells(centers, slot))
    cells = nearest_cells(features, centers, asked.reach)
    labels, outcomes = inherit(found.counts, cells, asked.margin)
    estimate = None
    if found.counts is not None and asked.noise is not None:
        estimate = by_counts(found.counts, cells, asked.margin, asked.noise)
    return Answers(labels, outcomes, found.receipt), estimate


def cluster(features: np.ndarray, cells: int, seed: int) -> np.ndarray:
    """k-means centres of PUBLIC features (int8 [n, d]), rounded to integers: int8 [cells, d].

    Features with few distinct values give equal centres; all but the first of those stay empty.
    """
    if cells > len(features):
        rule = f"at most {len(features)}, the public rows of a round"
        raise InvalidInput("mechanism.cells", rule, cells)
    centers, _ = k_means(features.astype(np.float32), cells, seed=seed, iterations=ITERATIONS)
    return np.rint(centers).astype(np.int8)


def _save(path: Path, centers: np.ndarray) -> None:
    scratch = path.with_name(path.name + ".part")
    with scratch.open("wb") as file:
        np.savez(file, centers=centers)
    scratch.replace(path)
