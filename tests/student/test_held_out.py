"""Cross-validation finds planted wrong labels, keeps the others, and leaves rare classes alone."""

from dataclasses import replace

import numpy as np
import pytest

from labelwall.student import held_out
from labelwall.student.data import Pool
from labelwall.student.held_out import drop_doubtful
from tests.student import cases
from tests.student.cases import TASKS

CONFIG = replace(cases.CONFIG, doubtful_folds=3, doubtful_steps=100)
CLASSES = TASKS["classes"]
APART = CLASSES.pool.inputs + 3 * np.eye(cases.CLASSES, 8, dtype=np.float32)[CLASSES.truth]
RELEASED = np.where(np.arange(cases.PUBLIC) % 6 == 5, -1, CLASSES.truth)


@pytest.mark.parametrize(
    ("kind", "found", "kept"), [("classes", 0.8, 0.97), ("attributes", 0.5, 0.85)]
)
def test_planted_labels_go_one_by_one_and_the_others_stay(
    kind: str, found: float, kept: float
) -> None:
    task = TASKS[kind]
    if kind == "classes":
        task = replace(task, pool=Pool(APART, task.pool.labels), labels=RELEASED)
    labels = task.labels.copy()
    wrong = np.argwhere(labels >= 0)[::20]
    labels[tuple(wrong.T)] = 1 - np.minimum(labels[tuple(wrong.T)], 1)
    cleaned = drop_doubtful(CONFIG, task.pool, labels, seed=3).labels
    assert (cleaned[tuple(wrong.T)] == -1).mean() > found
    right = (labels >= 0) & (labels == task.truth)
    assert (cleaned == labels)[right].mean() > kept
    assert ((cleaned == labels) | (cleaned == -1)).all()  # a label is dropped, never changed
    again = drop_doubtful(CONFIG, task.pool, labels, seed=3).labels
    np.testing.assert_array_equal(cleaned, again)


def test_without_folds_and_of_values_nothing_is_dropped() -> None:
    task = TASKS["values"]
    for config, pool, labels in (
        (replace(CONFIG, doubtful_folds=0), CLASSES.pool, RELEASED),
        (CONFIG, task.pool, task.labels),
    ):
        np.testing.assert_array_equal(drop_doubtful(config, pool, labels, seed=3).labels, labels)


def test_a_class_with_few_labels_keeps_them(monkeypatch) -> None:
    monkeypatch.setattr(held_out, "DOUBTFUL", 0.9)
    labels = RELEASED.copy()
    labels[np.flatnonzero(labels == 2)[5:]] = -1  # five left, fewer than two a fold
    kept = drop_doubtful(replace(CONFIG, doubtful_steps=5), CLASSES.pool, labels, seed=3).labels
    assert (kept == 2).sum() == 5
    assert (kept >= 0).sum() < (labels >= 0).sum()


def test_rows_with_probabilities_are_judged_and_kept(monkeypatch) -> None:
    monkeypatch.setattr(held_out, "DOUBTFUL", 0.9)
    config = replace(CONFIG, doubtful_steps=20)
    soft = np.full((cases.PUBLIC, cases.CLASSES), np.nan, dtype=np.float32)
    soft[:120] = 1 / cases.CLASSES
    usual, kept = (
        drop_doubtful(config, CLASSES.pool, CLASSES.truth, seed=1, soft=s) for s in (None, soft)
    )
    assert (usual.labels[:120] == -1).any()
    np.testing.assert_array_equal(kept.labels[:120], CLASSES.truth[:120])
    np.testing.assert_array_equal(kept.labels[120:], usual.labels[120:])
    assert (kept.agreement, kept.judged) == (usual.agreement, usual.judged)
