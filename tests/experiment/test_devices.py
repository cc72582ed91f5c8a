"""Devices of a run: two of a student, the custodian's machine, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student import several_devices
from tests.experiment.checks import check_one_error

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
        keys = [name for name in os.environ if name.startswith("LABELWALL_")]
        place.write_text(json.dumps({"opened": opened, "rooms": sorted(rooms), "keys": keys}))
    sys.addaudithook(listen)
    atexit.register(write)
"""


@pytest.mark.slow
def test_two_devices_charge_what_one_does_and_see_no_private_side(folder: Path) -> None:
    watch = folder / "watch"
    watch.mkdir()
    (watch / "sitecustomize.py").write_text(WATCH)
    paths = os.pathsep.join([str(watch), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "WATCHED": str(watch)}
    environment["LABELWALL_KEY"] = "a secret"
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
        assert not child["keys"]
        assert not set(child["rooms"]) & {"teacher", "experiment", "sqlite3", "sqlalchemy"}
        own = [Path(path) for path in child["opened"] if path.startswith(f"{folder}{os.sep}2")]
        assert {path.relative_to(folder).parts[0] for path in own} <= {"2"}
        assert {path.relative_to(folder / "2").parts[0] for path in own} <= {"round_1"}
        assert not any(path.endswith("data.npz") for path in child["opened"])


MISTAKES = [  # the error names the first
    "--budget.epsilon=0.5",
    "--student.devices=4096",  # more processes than cores
    "--student.accelerator=gpu",  # that is not there
    "--student.accelerator=abacus",
    "--student.batch_labelled=1 --student.devices=2",  # fewer rows than devices
    "--student.precision=16-mixed",  # half precision needs a GPU
    "--student.precision=16-mixed --student.accelerator=auto",
    "--student.precision=64-true",  # weights that can not cross the wall
    "--student.precision=bf16-mixed --student.objective=vat",  # finite differences
]


@pytest.mark.parametrize(
    ("device", "mentioned"), [("cuda", "`device` must be cpu on this machine."), ("tpu", "device")]
)
def test_a_device_that_is_not_there_is_one_line_and_costs_nothing(
    folder, device, mentioned, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **named: None)
    check_one_error([*RUN, "--run_dir", "out", "--device", device], mentioned, capsys)
    assert not list(folder.glob("out/round_*/answers.npz"))


@pytest.mark.parametrize("options", MISTAKES)
def test_what_can_not_be_trained_or_paid_is_refused_before_anything_is_opened(
    folder, options, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(several_devices, "gpus", lambda: 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    (folder / "data.npz").unlink()
    named = options.partition("=")[0].removeprefix("--")
    check_one_error([*RUN, "--run_dir", "out", *options.split()], named, capsys)
    assert not (folder / "out").exists()
    assert not (folder / "out.custodian").exists()
