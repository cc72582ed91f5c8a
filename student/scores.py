"""How good a round's labels and its student are."""

from typing import Any

import numpy as np

from ..wall.datasets.data_config import PublicData, Task
from ..wall.files import digest
from ..wall.labels import Score, has_truth
from ..wall.messages import ABSTAINED
from .asking.public_rows import PublicRows
from .measures import by_group, calibration_error, measures
from .results import StudentScore


def student_score(public: PublicRows, outputs: np.ndarray) -> StudentScore:
    """How good a student is. ``outputs``: its for the test rows, float32 [n, c]."""
    space, truth = public.task.labels, public.data.test_labels
    predicted = space.predict(outputs)
    probabilities = space.probabilities(outputs)
    certainty = space.certainty(probabilities)
    right = predicted == truth if certainty.size else certainty
    score = space.score(predicted, truth)
    return StudentScore(
        student_accuracy=score["accuracy"],
        student_errors=score.get("errors"),
        confusion=space.confusion(truth, predicted).tolist(),
        calibration_error=calibration_error(certainty, right),
        test_sha256=digest_of_tests(public),
        **measured(public.task, public.data, probabilities),
    )


def measured(task: Task, data: PublicData, probabilities: np.ndarray) -> dict[str, Any]:
    """``measures`` of the test rows, and those of their ``groups`` by name."""
    space, truth, groups = task.labels, data.test_labels, data.test_groups
    of = {} if groups is None else by_group(space, probabilities, truth, groups)
    return {"measures": measures(space, probabilities, truth), "groups": of}


def digest_of_tests(public: PublicRows) -> str:
    """SHA-256 (hex) of the test rows, their labels and their groups."""
    groups = public.data.test_groups
    more = [] if groups is None else [groups.tolist()]
    return digest(public.data.test_inputs, digest(public.data.test_labels), *more)


def label_score(public: PublicRows, rows: np.ndarray, labels: np.ndarray) -> Score:
    """How good released ``labels`` of public ``rows`` are, where these have true ones."""
    space = public.task.labels
    if public.data.labels is None:
        return {"accuracy": None}
    truth = public.data.labels[rows]
    with_truth = has_truth(truth)
    labels, truth = labels[with_truth], truth[with_truth]
    return space.score(space.decode(labels), truth, labels != ABSTAINED)
