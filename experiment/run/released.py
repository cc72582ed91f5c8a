"""Labels and probabilities that a run's rounds released, read from its folder."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ...wall.labels.base import has_label
from ...wall.messages import ABSTAINED, Outcome
from .run_folder import RunFolder


def released_labels(
    folder: RunFolder, number: int, size: int, worse: Collection[int] = ()
) -> np.ndarray:
    """All labels released up to round ``number``; -1 where there is none.

    int64 [size], or [size, c] for attributes. For a row that was asked again the later outcome
    counts, an abstention too: better features found the row doubtful. Of a round that is ``worse``
    than an earlier one, labels count where there is no other. A query refused by a cap changes
    nothing.
    """
    labels = np.full((size, *folder.load_answers(number)[1].shape[1:]), ABSTAINED, dtype=np.int64)
    for earlier in range(1, number + 1):
        rows, answered, outcomes = folder.load_answers(earlier)
        counted = outcomes != Outcome.CAP_REACHED
        if earlier in worse:
            counted &= ~has_label(labels[rows])
        labels[rows[counted]] = answered[counted]
    return labels


def released_probabilities(
    folder: RunFolder, number: int, labels: np.ndarray, worse: Collection[int] = ()
) -> np.ndarray | None:
    """Class probabilities that rounds up to ``number`` released: float32 [n, c], NaN without.

    ``labels``: of ``released_labels``; a row has the probabilities of the round that its label is
    of. None where no round released any.
    """
    found = None
    for earlier in range(1, number + 1):
        rows, _, outcomes = folder.load_answers(earlier)
        counted = outcomes != Outcome.CAP_REACHED
        chances = folder.load_probabilities(earlier)
        if found is None:
            if chances is None:
                continue
            found = np.full((len(labels), chances.shape[1]), np.nan, dtype=np.float32)
        if earlier in worse:
            counted &= np.isnan(found[rows, 0])
        found[rows[counted]] = np.nan if chances is None else chances[counted]
    return found
