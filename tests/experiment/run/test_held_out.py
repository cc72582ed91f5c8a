"""Doubtful labels: planted ones go, the others stay, and what was judged is said."""

from dataclasses import replace

import numpy as np
import pytest

from labelwall.experiment.run import held_out
from labelwall.experiment.run.held_out import drop_doubtful
from labelwall.student.data import Pool
from tests.student import cases
from tests.student.cases import TASKS

OF_CLASSES = TASKS["classes"]
POOL = OF_CLASSES.pool
APART = POOL.inputs + 3 * np.eye(cases.CLASSES, 8, dtype=np.float32)[OF_CLASSES.truth]
RELEASED = np.where(np.arange(cases.PUBLIC) % 6 == 5, -1, OF_CLASSES.truth)


@pytest.mark.parametrize(
    ("kind", "found", "kept"), [("classes", 0.8, 0.97), ("attributes", 0.5, 0.85)]
)
def test_planted_labels_go_one_by_one_and_the_others_stay(kind, found, kept) -> None:
    task = TASKS[kind]
    if kind == "classes":
        task = replace(task, pool=Pool(APART, task.pool.labels), labels=RELEASED)
    labels = task.labels.copy()
    wrong = np.argwhere(labels >= 0)[::20]
    labels[tuple(wrong.T)] = 1 - np.minimum(labels[tuple(wrong.T)], 1)
    cleaned = drop_doubtful(3, task.pool.labels, task.pool.inputs, labels, seed=3).labels
    assert (cleaned[tuple(wrong.T)] == -1).mean() > found
    right = (labels >= 0) & (labels == task.truth)
    assert (cleaned == labels)[right].mean() > kept
    assert ((cleaned == labels) | (cleaned == -1)).all()  # a label is dropped, never changed
    again = drop_doubtful(3, task.pool.labels, task.pool.inputs, labels, seed=3).labels
    np.testing.assert_array_equal(cleaned, again)


def test_without_folds_and_of_values_nothing_is_dropped() -> None:
    task = TASKS["values"]
    for folds, pool, labels in ((0, POOL, RELEASED), (3, task.pool, task.labels)):
        cleaned = drop_doubtful(folds, pool.labels, pool.inputs, labels, seed=3)
        np.testing.assert_array_equal(cleaned.labels, labels)


def test_a_class_with_few_labels_keeps_them(monkeypatch) -> None:
    monkeypatch.setattr(held_out, "DOUBTFUL", 0.9)
    labels = RELEASED.copy()
    labels[np.flatnonzero(labels == 2)[5:]] = -1  # five left, fewer than two a fold
    kept = drop_doubtful(3, POOL.labels, POOL.inputs, labels, seed=3).labels
    assert (kept == 2).sum() == 5
    assert (kept >= 0).sum() < (labels >= 0).sum()


def test_rows_that_are_sure_are_judged_and_kept(monkeypatch) -> None:
    monkeypatch.setattr(held_out, "DOUBTFUL", 0.9)
    sure = np.arange(cases.PUBLIC) < 120
    usual, kept = (
        drop_doubtful(3, POOL.labels, POOL.inputs, OF_CLASSES.truth, seed=1, sure=s)
        for s in (None, sure)
    )
    assert (usual.labels[:120] == -1).any()
    np.testing.assert_array_equal(kept.labels[:120], OF_CLASSES.truth[:120])
    np.testing.assert_array_equal(kept.labels[120:], usual.labels[120:])
    assert (kept.agreement, kept.judged) == (usual.agreement, usual.judged)
