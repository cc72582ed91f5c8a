"""Objectives by name, and the one that docs/extend adds."""

from dataclasses import replace
from pathlib import Path

import pytest

from labelwall.experiment.config.settings import build
from labelwall.student.objectives import OBJECTIVES, Objective
from labelwall.student.student_config import StudentConfig
from labelwall.wall.errors import InvalidInput
from tests.pages import example
from tests.student.cases import CONFIG, TASKS


@pytest.fixture
def added(monkeypatch) -> str:
    """The name of the page's objective, which is registered."""
    known: dict = {"Objective": Objective}
    exec(example("objective", most=20), known)
    (objective,) = (k for k in known.values() if isinstance(k, type) and k is not Objective)
    monkeypatch.setitem(OBJECTIVES, objective.name, objective())
    return objective.name


@pytest.mark.parametrize("kind", TASKS)
def test_the_objective_of_the_page_learns_from_each_kind(added, kind: str, tmp_path: Path) -> None:
    task, config = TASKS[kind], replace(CONFIG, objective=added)
    trained = task.train(tmp_path / "added", config)
    alone = task.train(tmp_path / "alone", replace(config, objective="supervised"))
    changed = kind != "values"  # which have no entropy
    assert (trained.weights != alone.weights) == changed
    first, last = trained.history[0], trained.history[-1]
    assert last["loss/supervised"] < first["loss/supervised"]
    assert (last["loss/unlabelled"] > 0) == changed
    score = task.pool.labels.score(task.predicted(trained), task.test_y)
    right = score["accuracy"] if kind != "values" else score["errors"]["r2"]
    assert right > 0.75


def test_settings_take_the_registered_names_alone() -> None:
    for name in OBJECTIVES:
        assert build(StudentConfig, {"objective": name}, "student").objective == name
    with pytest.raises(InvalidInput, match=r"student.objective.*'supervised', 'vat', 'uda' or"):
        build(StudentConfig, {"objective": "nonsense"}, "student")


def test_a_rule_follows_from_what_an_objective_declares() -> None:
    with pytest.raises(InvalidInput, match="32-true with objective vat"):
        StudentConfig(objective="vat", precision="bf16-mixed")
    with pytest.raises(InvalidInput, match="batch_unlabelled"):
        StudentConfig(objective="uda", batch_unlabelled=1, devices=2)
    assert StudentConfig(objective="supervised", batch_unlabelled=1, devices=2).devices == 2
