"""Cross-validation finds planted wrong labels, keeps the others, and leaves rare classes alone; the
temperature finds what was planted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labelwall.student.config import StudentConfig
from labelwall.student.data import Pool
from labelwall.student.held_out import FEWEST, drop_doubtful, most_likely, temperature
from labelwall.student.module import AttributeStudent, Student
from labelwall.wall.label_kinds import ClassLabels, ValueLabels
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


@pytest.mark.parametrize("planted", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("kind", [Student, AttributeStudent])
def test_a_planted_temperature_is_found(kind: type[Student], planted: float) -> None:
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(20_000, 3)) * 2
    noise = rng.gumbel(size=(2, *logits.shape))
    if kind is Student:  # the largest of logits with Gumbel noise has the softmax's law
        labels = (logits / planted + noise[0]).argmax(axis=1)
        soft = torch.from_numpy(logits / planted).softmax(dim=1)
        assert most_likely(kind, torch.from_numpy(logits), soft) == pytest.approx(planted, rel=0.01)
    else:
        labels = (logits / planted + noise[0] - noise[1] > 0).astype(np.int64)
        labels[:5000, 1] = -1
    best = most_likely(kind, torch.from_numpy(logits), torch.from_numpy(labels))
    assert best == pytest.approx(planted, rel=0.05)


def test_a_student_that_learns_noise_becomes_less_sure() -> None:
    """Labels without meaning: what the second student did not see, it gets wrong."""
    x, truth = tiny.rows(300, 5)
    guesses = np.random.default_rng(0).permutation(truth)
    long = replace(CONFIG, steps=120, learning_rate=1e-2)
    sure, unsure = (
        temperature(long, Pool(x, CLASSES), labels, seed=2) for labels in (truth, guesses)
    )
    assert unsure > 2 * sure


def test_without_enough_to_choose_by_it_is_one() -> None:
    x, truth = tiny.rows(5 * FEWEST + 30, 5)
    pool, few = Pool(x, CLASSES), np.where(np.arange(len(truth)) < 4 * FEWEST, truth, -1)
    for rows, labels in ((pool, few), (Pool(x, ValueLabels(0.0, 1.0)), truth)):
        assert temperature(CONFIG, rows, labels, seed=2) == 1.0
    assert temperature(replace(CONFIG, calibration_folds=0), pool, truth, seed=2) == 1.0
    assert temperature(CONFIG, pool, truth, seed=2) != 1.0
