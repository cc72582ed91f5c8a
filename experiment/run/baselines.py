"""What a result is compared with: answers that cost no privacy, on public rows alone."""

import numpy as np

from ...student.asking.public_rows import MIN_LABELLED, PublicRows
from ...student.linear.labelled import labelled_classes
from ...wall.features.embedder import unit_length
from ...wall.labels import LabelSpace
from ...wall.messages import ExtractorSpec
from .summary import Baselines

MOST = 1_000  # test rows that a regression sees


def frequent(space: LabelSpace, truth: np.ndarray) -> tuple[str, float]:
    """The most frequent class of PUBLIC rows with true classes, int64 [n], and its share."""
    counts = np.bincount(truth, minlength=len(space.names))
    return space.names[int(counts.argmax())], float(counts.max() / counts.sum())


def baselines(public: PublicRows, asked: ExtractorSpec) -> Baselines | None:
    """The baselines of a classifier; None for other labels, and without test rows.

    ``asked``: the features that the first round asked with.
    """
    space, truth = public.task.labels, public.data.test_labels
    if space.kind != "class" or not len(truth):
        return None
    free, features = None, public.features
    spec = public.first if public.plain_alone else asked
    if len(truth) >= MIN_LABELLED:
        chosen = np.random.default_rng(0).permutation(len(truth))[:MOST]
        rows = features.quantised(spec, "test")[chosen]
        length = unit_length(spec, rows.shape[1])
        free = labelled_classes(rows, truth[chosen], length, len(space.names))
    return Baselines(
        frequent=frequent(space, truth),
        public=public.alone(asked),
        no_privacy=None if free is None else free.right,
    )
