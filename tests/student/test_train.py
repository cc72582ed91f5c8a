"""Training on released labels, resumable and blind to the truth; planted wrong labels are found."""

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from labelwall.student.data import STEPS_A_CHAPTER
from labelwall.student.module import Regressor, Student
from labelwall.student.train import EVENTS
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


def test_true_labels_change_metrics_alone(tmp_path: Path) -> None:
    """Another test split, or none, and the weights are the same bytes."""
    usual = TASK.train(tmp_path / "usual", BRIEF)
    lied_to = TASK.train(tmp_path / "lied_to", BRIEF, test_y=(TASK.test_y + 1) % CLASSES)
    without = TASK.train(tmp_path / "without", BRIEF, test_x=None, test_y=None)
    assert usual.weights == lied_to.weights == without.weights
    assert usual.history != lied_to.history


@pytest.mark.parametrize("kind", ["classes", "values"])
def test_half_precision_is_for_products_alone(kind: str, tmp_path: Path, monkeypatch) -> None:
    """Losses see float32: a class prior's running shares, and labels of 4,096 steps that bfloat16
    can not tell apart."""
    prior = "uniform" if kind == "classes" else "none"
    config = replace(CONFIG, precision="bf16-mixed", class_prior=prior, steps=120)
    owner, seen = Student if kind == "classes" else Regressor, []
    original = owner._supervised

    def noted(self: Student, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(outputs.dtype)
        return original(self, outputs, y)

    monkeypatch.setattr(owner, "_supervised", noted)
    trained = TASKS[kind].train(tmp_path, config, test_x=None)
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
