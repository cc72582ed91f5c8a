"""Training on released labels, resumable and blind to the truth; planted wrong labels are found."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from labelwall.student import held_out
from labelwall.student.batches import STEPS_A_CHAPTER, Lesson, Pool
from labelwall.student.held_out import drop_doubtful
from labelwall.student.module import Regressor, Student
from labelwall.student.round_files import EVENTS
from tests.student import cases
from tests.student.cases import CLASSES, CONFIG, TASKS

TASK = TASKS["classes"]
BRIEF = replace(CONFIG, steps=STEPS_A_CHAPTER + 10)  # one checkpoint, and some steps after it


@pytest.mark.parametrize(("objective", "stop"), [("uda", 150), ("vat", 200)])
def test_a_killed_training_ends_with_the_same_bytes(objective, stop, tmp_path, monkeypatch) -> None:
    config = replace(CONFIG, objective=objective)
    whole = TASK.train(tmp_path / "whole", config)
    steps, original = [], Student.training_step

    def killed(self: Student, batch: object, index: int) -> torch.Tensor:
        steps.append(self.global_step)
        if self.global_step == stop and len(steps) <= stop + 1:
            raise InterruptedError
        return original(self, batch, index)

    monkeypatch.setattr(Student, "training_step", killed)
    with pytest.raises(InterruptedError):
        TASK.train(tmp_path / "killed", config)
    torch.manual_seed(99)  # another process would have another global state
    resumed = TASK.train(tmp_path / "killed", config)
    # It went on from the checkpoint, not from the start
    assert steps[stop + 1] == stop // STEPS_A_CHAPTER * STEPS_A_CHAPTER
    assert resumed.weights == whole.weights
    assert [row["step"] for row in resumed.history] == [row["step"] for row in whole.history]
    assert resumed.history[-1]["accuracy/test"] == whole.history[-1]["accuracy/test"]


def test_a_finished_training_is_returned_as_it_ended_and_another_seed_is_another(tmp_path) -> None:
    first, again = (TASK.train(tmp_path / "one", BRIEF) for _ in range(2))
    assert again.weights == first.weights != TASK.train(tmp_path / "other", BRIEF, 5).weights


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.999])
def test_a_checkpoint_that_does_not_load_is_deleted_and_said(tmp_path: Path, share: float) -> None:
    first, said = TASK.train(tmp_path, BRIEF), list[str]()
    (last,) = (tmp_path / "checkpoints").iterdir()
    content = last.read_bytes()
    last.write_bytes(content[: int(share * len(content))])
    assert TASK.train(tmp_path, BRIEF, say=said.append).weights == first.weights
    assert len(said) == 1
    assert f"{last} is damaged" in said[0]


def test_vectors_are_learned_on_one_thread(tmp_path: Path) -> None:
    before, seen = torch.get_num_threads(), list[int]()
    torch.set_num_threads(2)
    try:
        TASK.train(
            tmp_path,
            replace(CONFIG, steps=3),
            progress=lambda *_: seen.append(torch.get_num_threads()),
        )
    finally:
        torch.set_num_threads(before)
    assert seen == [2, 1, 1, 1, 2]  # around the training it has what the caller gave it


def test_true_labels_change_metrics_alone(tmp_path: Path) -> None:
    """Another test split, or none, and the weights are the same bytes."""
    usual = TASK.train(tmp_path / "usual", BRIEF)
    lied_to = TASK.train(
        tmp_path / "lied_to", BRIEF, test=(TASK.test_x, (TASK.test_y + 1) % CLASSES)
    )
    without = TASK.train(tmp_path / "without", BRIEF, test=None)
    assert usual.weights == lied_to.weights == without.weights
    assert usual.history != lied_to.history


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_half_precision_is_for_products_alone(kind: str, tmp_path: Path, monkeypatch) -> None:
    """Losses see float32: a class prior's running shares, and labels of 4,096 steps that bfloat16
    can not tell apart."""
    prior = "uniform" if kind == "classes" else "none"
    config = replace(CONFIG, precision="bf16-mixed", class_prior=prior, steps=120)
    owner, seen = Student if kind == "classes" else Regressor, []
    original = owner.supervised

    def noted(self: Student, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(outputs.dtype)
        return original(self, outputs, y)

    monkeypatch.setattr(owner, "supervised", noted)
    trained = TASKS[kind].train(tmp_path, config, test=None)
    tensors = safetensors.torch.load(trained.weights).values()
    assert {*seen, *(tensor.dtype for tensor in tensors)} == {torch.float32}
    first, last = trained.history[0], trained.history[-1]
    assert last["loss/supervised"] < 0.7 * first["loss/supervised"]


def test_writes_checkpoints_and_events_whose_bytes_name_no_time_host_or_process(
    tmp_path, capfd, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained = [TASK.train(tmp_path / name, BRIEF) for name in ("one", "two")]
    assert capfd.readouterr().out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    for folder in tmp_path.iterdir():
        assert {path.name for path in folder.iterdir()} == {"checkpoints", EVENTS}
    one, two = ((tmp_path / name / EVENTS).read_bytes() for name in ("one", "two"))
    assert one == two
    events = EventAccumulator(str(tmp_path / "one")).Reload()
    for name in ("accuracy/test", "loss/supervised"):
        assert [(e.step, round(e.value, 6)) for e in events.Scalars(name)] == [
            (int(row["step"]), pytest.approx(row[name])) for row in trained[0].history
        ]


IN_FOLDS = replace(cases.CONFIG, doubtful_folds=3, doubtful_steps=100)
OF_CLASSES = TASKS["classes"]
APART = OF_CLASSES.pool.inputs + 3 * np.eye(cases.CLASSES, 8, dtype=np.float32)[OF_CLASSES.truth]
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
    lesson = Lesson(pool=task.pool, labels=labels)
    cleaned = drop_doubtful(IN_FOLDS, lesson, seed=3).labels
    assert (cleaned[tuple(wrong.T)] == -1).mean() > found
    right = (labels >= 0) & (labels == task.truth)
    assert (cleaned == labels)[right].mean() > kept
    assert ((cleaned == labels) | (cleaned == -1)).all()  # a label is dropped, never changed
    again = drop_doubtful(IN_FOLDS, lesson, seed=3).labels
    np.testing.assert_array_equal(cleaned, again)


def test_without_folds_and_of_values_nothing_is_dropped() -> None:
    task = TASKS["values"]
    for config, lesson in (
        (replace(IN_FOLDS, doubtful_folds=0), Lesson(pool=OF_CLASSES.pool, labels=RELEASED)),
        (IN_FOLDS, task.lesson),
    ):
        kept = drop_doubtful(config, lesson, seed=3).labels
        np.testing.assert_array_equal(kept, lesson.labels)


def test_a_class_with_few_labels_keeps_them(monkeypatch) -> None:
    monkeypatch.setattr(held_out, "DOUBTFUL", 0.9)
    labels = RELEASED.copy()
    labels[np.flatnonzero(labels == 2)[5:]] = -1  # five left, fewer than two a fold
    lesson = Lesson(pool=OF_CLASSES.pool, labels=labels)
    kept = drop_doubtful(replace(IN_FOLDS, doubtful_steps=5), lesson, seed=3).labels
    assert (kept == 2).sum() == 5
    assert (kept >= 0).sum() < (labels >= 0).sum()


def test_rows_with_probabilities_are_judged_and_kept(monkeypatch) -> None:
    monkeypatch.setattr(held_out, "DOUBTFUL", 0.9)
    config = replace(IN_FOLDS, doubtful_steps=20)
    soft = np.full((cases.PUBLIC, cases.CLASSES), np.nan, dtype=np.float32)
    soft[:120] = 1 / cases.CLASSES
    usual, kept = (
        drop_doubtful(
            config,
            Lesson(pool=OF_CLASSES.pool, labels=OF_CLASSES.truth, chances=chances),
            seed=1,
        )
        for chances in (None, soft)
    )
    assert (usual.labels[:120] == -1).any()
    np.testing.assert_array_equal(kept.labels[:120], OF_CLASSES.truth[:120])
    np.testing.assert_array_equal(kept.labels[120:], usual.labels[120:])
    assert (kept.agreement, kept.judged) == (usual.agreement, usual.judged)
