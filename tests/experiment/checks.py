"""Commands and checks that several tests of whole runs share."""

import csv
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline

# For a run whose students do not matter: one training a round instead of several.
QUICK = ("--student.doubtful_folds", "0")
PREDICT = ("predict", "--config", "config.yaml", "--queries", "q.npz", "--out", "a.npz")


def check_one_error(command: list[str], mentioned: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with code 2 and one last line for its user that has ``mentioned`` in it."""
    capsys.readouterr()
    assert pipeline.main(command) == 2
    *before, line = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("labelwall: ")
    assert mentioned in line
    assert not any(text.startswith(("labelwall", "Traceback")) for text in before)


def classified(x: np.ndarray) -> list[dict[str, str]]:
    """The lines that `classify` writes about vectors float32 [n, d] with the run out.

    In the working folder.
    """
    np.save("rows.npy", x)
    command = ["classify", "--student", "out", "--vectors", "rows.npy", "--out", "labels.csv"]
    assert pipeline.main(command) == 0
    with Path("labels.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
