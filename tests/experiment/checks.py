"""Commands and checks that several tests of whole runs share."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall import pipeline
from tests.programs import PROGRAMS, environment

# For a run whose students do not matter: one training a round instead of several.
QUICK = ("--student.doubtful_folds", "0")
RUN = ("run", "--config", "config.yaml", "--run_dir", "out", "--quiet")
CLASSIFY = ("classify", "--student", "out", "--vectors", "rows.npy", "--out", "labels.csv")
PREDICT = ("predict", "--config", "config.yaml", "--queries", "q.npz", "--out", "a.npz")


def check_one_error(command: list[str], mentioned: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with code 2 and one last line for its user that has ``mentioned`` in it."""
    capsys.readouterr()
    assert pipeline.main(command) == 2
    *before, line = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("labelwall: ")
    assert mentioned in line
    assert not any(text.startswith(("labelwall", "Traceback")) for text in before)


def killed(*_: object, **__: object) -> None:
    """In place of a function: the process ends before it does anything."""
    raise KeyboardInterrupt


def run(*options: str) -> int:
    return pipeline.main([*RUN, *options])


def predict(*options: str) -> int:
    return pipeline.main([*PREDICT, "--quiet", *options])


def on_the_tape(*folders: Path, seed: int = 7) -> str:
    """What the program prints that runs each folder's experiment on the unsafe tape."""
    done = subprocess.run(
        [sys.executable, PROGRAMS / "tape_run.py", str(seed), *folders],
        env=environment(PYTHONHASHSEED="0"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def named(places: dict[str, str]) -> list[str]:
    """Options of the places of splits."""
    return [word for name, place in places.items() for word in (f"--{name}", place)]


def summary(run_dir: str = "out") -> dict[str, Any]:
    return json.loads(Path(run_dir, "summary.json").read_text())


def receipt() -> dict[str, Any]:
    """That of a prediction."""
    return json.loads(Path("a.receipt.json").read_text())


def check_known(head: str) -> None:
    """The same run and a prediction by it pay for nothing beyond the ledger's entry ``head``."""
    assert run() == 0
    assert summary()["ledger_head"] == head
    assert predict() == 0
    assert receipt()["charged"] == {"sum": 0}
    assert receipt()["ledger_head"] == head


def stored(path: str) -> dict[str, np.ndarray]:
    """A file of arrays."""
    with np.load(path) as arrays:
        return dict(arrays)


def shown(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    """What a command prints, on both streams."""
    capsys.readouterr()
    assert pipeline.main(list(args)) == code
    return "".join(capsys.readouterr())


def classified(x: np.ndarray, *options: str) -> list[dict[str, str]]:
    """The lines that `classify` writes about vectors float32 [n, d] with the run out."""
    np.save("rows.npy", x)
    assert pipeline.main([*CLASSIFY, *options]) == 0
    with Path("labels.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
