"""Cross-validation finds planted wrong labels, keeps the others, and leaves rare classes alone."""

from dataclasses import replace

import numpy as np

from labelwall.student.config import StudentConfig
from labelwall.student.data import Pool
from labelwall.student.held_out import drop_doubtful
from labelwall.wall.label_kinds import ClassLabels
from tests.experiment import tiny
from tests.student import cases
from tests.student.cases import TASKS

CONFIG = StudentConfig(
    backbone="mlp",
    objective="supervised",
    augment="none",
    doubtful_folds=4,
    doubtful_steps=60,
    steps=40,
    batch_unlabelled=1,
)
CLASSES = ClassLabels.of(tiny.CLASSES)


def cleaned(x: np.ndarray, labels: np.ndarray, config: StudentConfig = CONFIG) -> np.ndarray:
    return drop_doubtful(config, Pool(x, CLASSES), labels, seed=3).labels


def planted() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, labels, wrong rows): well separated clusters, every sixth row unlabelled, eight labels
    wrong."""
    x, truth = tiny.rows(240, 5)
    x = (x + 3 * np.eye(tiny.CLASSES, tiny.DIMENSIONS)[truth]).astype(np.float32)
    labels = np.where(np.arange(240) % 6 == 5, -1, truth).astype(np.int64)
    wrong = np.flatnonzero(labels >= 0)[::25]
    labels[wrong] = (labels[wrong] + 1) % tiny.CLASSES
    return x, labels, wrong


def test_planted_labels_go_and_the_others_stay() -> None:
    x, labels, wrong = planted()
    kept = cleaned(x, labels)
    right = np.setdiff1d(np.flatnonzero(labels >= 0), wrong)
    assert (kept[wrong] == -1).mean() > 0.8
    assert (kept[right] == labels[right]).mean() > 0.97
    assert (kept[labels < 0] == -1).all()
    assert ((kept == labels) | (kept == -1)).all()  # a label is dropped, never changed
    np.testing.assert_array_equal(kept, cleaned(x, labels))


def test_without_folds_and_of_values_nothing_is_dropped() -> None:
    x, labels, _ = planted()
    np.testing.assert_array_equal(cleaned(x, labels, replace(CONFIG, doubtful_folds=0)), labels)
    task = TASKS["values"]
    kept = drop_doubtful(cases.CONFIG, task.pool, task.labels, seed=3).labels
    np.testing.assert_array_equal(kept, task.labels)


def test_a_class_with_few_labels_keeps_them() -> None:
    x, labels, _ = planted()
    rare = np.flatnonzero(labels == 2)[7:]
    labels[rare] = -1  # seven left, fewer than two a fold
    assert (cleaned(x, labels) == 2).sum() == 7


def test_doubtful_attributes_go_one_by_one() -> None:
    task = TASKS["attributes"]
    labels = task.labels.copy()
    wrong = np.argwhere(labels >= 0)[::20]
    labels[tuple(wrong.T)] = 1 - labels[tuple(wrong.T)]
    config = replace(cases.CONFIG, doubtful_folds=3, doubtful_steps=100)
    kept = drop_doubtful(config, task.pool, labels, seed=3).labels
    assert (kept[tuple(wrong.T)] == -1).mean() > 0.5
    right = (labels >= 0) & (labels == task.truth)
    assert (kept == labels)[right].mean() > 0.85
    assert ((kept == labels) | (kept == -1)).all()
