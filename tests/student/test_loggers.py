"""Loggers of trainings: Lightning's own, of public metrics alone."""

import csv
from pathlib import Path
from typing import Any

import pytest
from pytorch_lightning.loggers import CSVLogger, WandbLogger
from pytorch_lightning.loggers.logger import DummyLogger

import labelwall as lw
from labelwall.wall.errors import MissingData
from tests.experiment.test_api import QUICK, arrays

METRICS = {"accuracy/test", "epoch", "loss/supervised", "loss/unlabelled"}


class Heard(DummyLogger):
    """Notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[tuple[dict[str, float], int]] = []
        self.others: list[str] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:  # type: ignore[override]
        self.metrics.append((metrics, step))

    def log_hyperparams(self, *values: object, **named: object) -> None:
        self.others += [*map(str, values), *map(str, named)]


def fit(**student: Any) -> lw.Model:
    given = {**QUICK, "student": QUICK["student"] | student.pop("student", {}), **student}
    return lw.fit(arrays(), 8.0, run_dir="run", custody="custody", quiet=True, **given)


def test_metrics_are_written_and_heard(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    heard = Heard()
    fit(student={"logger": "csv", "doubtful_folds": 2, "doubtful_steps": 5}, loggers=[heard])
    with Path("run/round_1/csv/metrics.csv").open() as file:
        written = list(csv.DictReader(file))
    assert set(written[0]) == METRICS | {"step"}
    assert {name for metrics, _ in heard.metrics for name in metrics} == METRICS
    assert max(step for _, step in heard.metrics) == 39
    assert heard.others == []
    assert not Path("run/board").exists()  # which is TensorBoard's
    count = len(heard.metrics)
    fit(student={"logger": "csv", "doubtful_folds": 2, "doubtful_steps": 5}, loggers=[heard])
    assert len(heard.metrics) == count  # finished: nothing is trained


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_logger_that_is_not_installed_is_one_line(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("labelwall.student.train.find_spec", lambda package: None)
    with pytest.raises(MissingData, match=f"another package: pip install {name}"):
        fit(student={"logger": name})
    assert not list(tmp_path.rglob("ledger.sqlite"))


def test_the_names_are_lightnings_classes(tmp_path: Path, monkeypatch) -> None:
    from labelwall.student import train

    built: dict[str, Any] = {}
    for name in ("MLFlowLogger", "WandbLogger"):
        monkeypatch.setattr(
            train, name, lambda *given, name=name, **named: built.update({name: (given, named)})
        )
    assert isinstance(train.loggers_of("csv", tmp_path)[0], CSVLogger)
    assert train.loggers_of("tensorboard", tmp_path) == []
    train.loggers_of("mlflow", tmp_path)
    train.loggers_of("wandb", tmp_path)
    assert set(built) == {"MLFlowLogger", WandbLogger.__name__}
    assert built["WandbLogger"][1]["settings"]["console"] == "off"  # lines may name places
