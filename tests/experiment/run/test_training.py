"""The temperature that is chosen beside a training is the one that is chosen after it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from labelwall import pipeline
from labelwall.experiment.run import training
from labelwall.student import held_out
from labelwall.student.devices import Task, parallel
from tests.experiment import tiny


def test_the_temperature_beside_is_the_one_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(held_out, "FEWEST", 1)
    begun: list[tuple[int, int]] = []

    def here(processes: int, tasks: Iterable[Task[float]]) -> Iterator[float]:
        given = list(tasks)
        begun.append((processes, len(given)))
        return parallel(1, given)

    line = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet"]
    line += ["--student.calibration_folds", "2"]
    with monkeypatch.context() as patch:
        patch.setattr(training, "process_count", lambda *_: 3)
        patch.setattr(training, "parallel", here)
        assert pipeline.main(line) == 0
    assert begun == [(1, 0), (2, 1)]  # in the last round alone
    place = tmp_path / "out/round_2/metrics.json"
    complete = place.read_bytes()
    metrics = json.loads(complete)
    assert metrics.pop("temperature") != 1.0
    place.write_text(json.dumps(metrics))
    assert pipeline.main(line) == 0
    assert json.loads(place.read_text()) == json.loads(complete)
