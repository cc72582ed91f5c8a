"""A run whose student is trained by two processes: the same ledger, and processes that know of no
teacher. What is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from labelwall import pipeline
from labelwall.experiment.config.settings import config_parser, parse
from labelwall.experiment.run.console import Console
from labelwall.experiment.run.rounds import run
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student import devices, launch
from tests.experiment import tiny
from tests.seeded_noise import SeededNoise


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(name: str, *options: str) -> dict[str, object]:
    args = [
        "--config",
        "config.yaml",
        "--rounds",
        "[{queries: 12}]",
        "--student.prune_folds",
        "0",
        *options,
    ]
    config, _ = parse(config_parser("run", "", args), args)
    return run(config, Path(name), entropy=SeededNoise(3), console=Console(quiet=True))


@pytest.mark.slow
def test_two_devices_charge_what_one_does_and_see_no_private_side(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = _run("one")
    monkeypatch.setenv("LABELWALL_KEY", "secret")
    monkeypatch.setattr(launch, "WORKER", "labelwall.tests.programs.watched_training")
    two = _run("two", "--student.devices", "2")
    first, second = (RunFolder(folder / name).ledger_state() for name in ("one", "two"))
    assert first.counts() == second.counts()
    assert first.counts()[0] == 12
    assert two["rounds"][0]["answered"] == one["rounds"][0]["answered"]
    assert two["test_accuracy"] == pytest.approx(one["test_accuracy"], abs=1 / 30)  # of 30 rows
    place = folder / "two" / "round_1"
    for rank in range(2):
        found = json.loads((place / f"watched_{rank}.json").read_text())
        assert not set(found["loaded"]) & {
            "teacher",
            "experiment",
            "pipeline",
            "sqlite3",
            "sqlalchemy",
        }
        assert {"student", "wall"} <= set(found["loaded"])
        assert found["variables"] == []
        # Nothing outside of the round's folder
        own = [Path(path).relative_to(place) for path in found["opened"]]
        assert {path.parts[0].split(".")[0] for path in own} <= {
            "checkpoints",
            "events",
            "hparams",
            ".",
        }
        assert found["all"] > 100
    assert not (place / "checkpoints").exists()


MISTAKES = {
    "more processes than cores": (["--student.devices", "4096"], "student.devices"),
    "no GPU": (["--student.accelerator", "gpu"], "student.accelerator"),
    "an unknown accelerator": (["--student.accelerator", "abacus"], "student.accelerator"),
    "fewer rows than devices": (
        ["--student.devices", "2", "--student.batch_labelled", "1"],
        "student.batch_labelled",
    ),
    "a strategy that forks": (["--student.strategy", "ddp_spawn"], "student.strategy"),
    "half precision that needs a GPU": (["--student.precision", "16-mixed"], "student.precision"),
    "half precision, wherever there is no GPU": (
        ["--student.precision", "16-mixed", "--student.accelerator", "auto"],
        "precision",
    ),
    "weights that can not cross the wall": (
        ["--student.precision", "64-true"],
        "student.precision",
    ),
    "half precision of finite differences": (
        ["--student.precision", "bf16-mixed", "--student.objective", "vat"],
        "precision",
    ),
    "compiled and shared": (
        ["--student.compile", "true", "--student.devices", "2"],
        "student.compile",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_can_not_be_trained_is_refused_before_anything_is_opened(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    (folder / "data.npz").unlink()
    options, mentioned = MISTAKES[name]
    capsys.readouterr()
    assert (
        pipeline.main(["run", "--config", "config.yaml", "--run_dir", "out", "--quiet", *options])
        == 2
    )
    said = capsys.readouterr().err
    assert len(said.strip().splitlines()) == 1
    assert mentioned in said
    assert not (folder / "out").exists()
    assert not (folder / "out.custodian").exists()


def test_a_machine_without_a_compiler_does_not_compile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    assert (
        pipeline.main(
            [
                "run",
                "--config",
                "config.yaml",
                "--run_dir",
                "out",
                "--quiet",
                "--student.compile",
                "true",
            ]
        )
        == 2
    )
    assert not (folder / "out").exists()
