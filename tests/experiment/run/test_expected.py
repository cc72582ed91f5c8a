"""How long a run is expected to take: by public facts alone, and without a trace in its result."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from labelwall.experiment.config.settings import load_config
from labelwall.experiment.run import expected
from labelwall.experiment.run.expected import forecast, guessed, tried
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.experiment.whole_run import rounds_left
from labelwall.student.asking.features import first_extractor
from labelwall.wall.datasets.sources import describe, read_public
from tests.experiment import tiny


def parts(monkeypatch, rounds=(1, 2)) -> dict[str, float]:
    """Expected of the working folder's run where every trial takes a tenth of a second."""
    monkeypatch.setattr(expected, "_seconds", lambda does: does() is None or 0.1)
    settings = load_config(Path("config.yaml")).public_side()
    task, public = describe(settings.data), read_public(settings.data)
    return tried(settings, task, public, rounds, first_extractor(settings, task, public.inputs))


def test_parts_come_in_the_order_of_a_run(folder, monkeypatch) -> None:
    tiny.write()
    rounds = [f"round {n}: {part}" for n in (3, 4) for part in ("asking", "embedding", "training")]
    assert [*parts(monkeypatch, (3, 4))] == ["rehearsal", "reading", *rounds, "report"]
    assert [*guessed((3, 4), 9.0)] == [*parts(monkeypatch, (3, 4))]


@pytest.mark.parametrize(
    ("done", "update", "left"),
    [
        (0, False, [1, 2]),
        (1, False, [2]),
        (2, False, []),
        (2, True, [3, 4]),
        (3, False, [4]),
        (3, True, [4]),
    ],
)
def test_rounds_that_are_done_are_not_expected(folder, monkeypatch, done, update, left) -> None:
    tiny.write(mechanism={"kind": "private_linear"}, rounds=[{}, {}], caps=None)
    monkeypatch.setattr(RunFolder, "results", lambda self, rounds: [None] * min(done, rounds))
    config = load_config(Path("config.yaml"))
    config = replace(config, budget=replace(config.budget, periods=3))
    assert [*rounds_left(RunFolder(Path("out")), config, update)] == left


def test_more_expected_records_and_steps_take_longer_and_private_rows_tell_nothing(
    folder, monkeypatch
) -> None:
    tiny.write(expected_records=1000)
    few = parts(monkeypatch)
    assert few["round 1: embedding"] == 0.1 / 8 * (40 + 30 + 1000)
    tiny.write(expected_records=2000, mechanism=None)
    assert parts(monkeypatch)["round 1: embedding"] == 0.1 / 8 * (40 + 30 + 2000)
    tiny.write(expected_records=1000)
    tiny.change(private_x=np.zeros((9, 8)), private_y=np.zeros(9, int), private_id=np.arange(9))
    assert parts(monkeypatch) == few


def test_a_trial_leaves_the_public_randomness_as_it_was(folder, monkeypatch) -> None:
    tiny.write()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    parts(monkeypatch)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_plan_says_a_range(folder, monkeypatch) -> None:
    tiny.write()
    seconds = 100.0 + sum(parts(monkeypatch).values())
    config = load_config(Path("config.yaml"))
    told, line = forecast(config.public_side(), len(config.rounds), 100.0)
    assert 0.4 * seconds < told["from"] < seconds < told["to"] < 2.6 * seconds
    assert f"about {told['from']} to {told['to']} s on {told['cores']} free cores: an est" in line
