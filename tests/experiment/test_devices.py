"""A run whose student is trained by two processes: the same ledger, and processes that know of no
teacher. What is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labelwall import pipeline
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student import devices
from tests.experiment import tiny

RUN = ["run", "--config", "config.yaml", "--quiet"]
SHORT = ["--rounds", "[{queries: 12}]", "--student.doubtful_folds", "0"]
WATCH = """
import atexit, json, os, pathlib, sys
if "--multiprocessing-fork" in sys.orig_argv:
    opened = []
    def listen(event, args):
        if event in ("open", "sqlite3.connect") and isinstance(args[0], str):
            opened.append(os.path.abspath(args[0]))
    def write():
        rooms = {name.removeprefix("labelwall.").split(".")[0] for name in sys.modules}
        place = pathlib.Path(os.environ["WATCHED"], f"{os.getpid()}.json")
        place.write_text(json.dumps({"opened": opened, "rooms": sorted(rooms)}))
    sys.addaudithook(listen)
    atexit.register(write)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_two_devices_charge_what_one_does_and_see_no_private_side(folder: Path) -> None:
    watch = folder / "watch"
    watch.mkdir()
    (watch / "sitecustomize.py").write_text(WATCH)
    paths = os.pathsep.join([str(watch), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "WATCHED": str(watch)}
    for number in ("1", "2"):
        line = [sys.executable, "-m", "labelwall.pipeline", *RUN, *SHORT, "--run_dir", number]
        line += ["--student.devices", number]
        subprocess.run(line, env=environment, check=True)
    one, two = (RunFolder(folder / number) for number in ("1", "2"))
    assert one.ledger_state().counts()[0] == two.ledger_state().counts()[0] == 12
    assert two.summary.is_file()
    children = [json.loads(path.read_text()) for path in watch.glob("*.json")]
    children = [child for child in children if "student" in child["rooms"]]
    assert len(children) >= 2
    for child in children:
        assert not set(child["rooms"]) & {"teacher", "experiment", "sqlite3", "sqlalchemy"}
        own = [Path(path) for path in child["opened"] if path.startswith(f"{folder}{os.sep}2")]
        assert {path.relative_to(folder).parts[0] for path in own} <= {"2"}
        assert {path.relative_to(folder / "2").parts[0] for path in own} <= {"round_1"}
        assert not any(path.endswith("data.npz") for path in child["opened"])


MISTAKES = {
    "more processes than cores": (["--student.devices", "4096"], "student.devices"),
    "no GPU": (["--student.accelerator", "gpu"], "student.accelerator"),
    "an unknown accelerator": (["--student.accelerator", "abacus"], "student.accelerator"),
    "fewer rows than devices": (
        ["--student.devices", "2", "--student.batch_labelled", "1"],
        "student.batch_labelled",
    ),
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
    "compiled without a compiler": (["--student.compile", "true"], "student.compile"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_can_not_be_trained_is_refused_before_anything_is_opened(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    (folder / "data.npz").unlink()
    options, mentioned = MISTAKES[name]
    assert pipeline.main([*RUN, "--run_dir", "out", *options]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert mentioned in error
    assert not (folder / "out").exists()
    assert not (folder / "out.custodian").exists()
