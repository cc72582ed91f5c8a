"""A whole run for persons: every epsilon says so, and the ledger is for no other unit."""

from pathlib import Path

import numpy as np
import pytest

from labelwall.student.student_model import unpack
from tests.experiment import tiny
from tests.experiment.checks import shown, summary

WHERE = ("--config", "config.yaml")
PERSONS = "for persons (all rows of one together)"


@pytest.fixture
def folder(folder: Path) -> Path:
    tiny.change(private_person=np.array([f"p{number % 40}" for number in range(200)]))
    tiny.configure(privacy={"unit": "person"}, custodian_dir="custody")
    return folder


def test_a_run_says_what_it_protects(folder: Path, capsys) -> None:
    text = shown(capsys, "plan", *WHERE)
    assert "(add or remove all rows of one person)" in text
    text = shown(capsys, "run", *WHERE, "--run_dir", "run")
    assert text.count(PERSONS) == 2  # the price before, the guarantee after
    told = summary("run")
    assert told["unit"] == "person"
    shown(capsys, "report", "run")
    assert "A record is a person" in Path("run/report.html").read_text()
    card = Path("run/MODEL_CARD.md").read_text()
    assert "| protected unit | one person: all private rows of one together |" in card
    assert "A person with several" not in card
    info = unpack(Path("run/student.safetensors").read_bytes())
    assert info is not None
    assert info.privacy.unit == "person"
    text = shown(capsys, "audit", "run/ledger.sqlite")
    assert text.startswith("consistent")
    assert PERSONS in text
    assert "p17" not in text
    resumed = shown(capsys, "run", *WHERE, "--run_dir", "run")
    assert summary("run") == told, resumed


def test_records_come_and_persons_go(folder: Path, capsys) -> None:
    x, y = tiny.rows(4, 5)
    np.savez("q.npz", x=x)
    shown(capsys, "predict", *WHERE, "--queries", "q.npz", "--out", "a.npz")
    new = {"private_x": x, "private_y": y, "private_id": np.arange(4)}
    np.savez("more.npz", **new)
    text = shown(capsys, "records", "add", *WHERE, "--rows", "more.npz", code=2)
    assert "private_person" in text
    np.savez("more.npz", **new, private_person=np.array(["p1", "p1", "", "new"]))
    text = shown(capsys, "records", "add", *WHERE, "--rows", "more.npz")
    assert "3 usable" in text
    assert "1 rows without a person, or of two" in text
    text = shown(capsys, "records", "remove", *WHERE, "--persons", "new, p1,gone")
    assert "3 persons, 2 of them present" in text
    text = shown(capsys, "records", "remove", *WHERE, "--persons", "p1")
    assert "1 persons, 0 of them present" in text
    for wrong in (("--ids", "1000"), ("--ids", "1", "--persons", "p1"), ("--persons", " ,")):
        text = shown(capsys, "records", "remove", *WHERE, *wrong, code=2)
        assert text.count("\n") == 1
        assert "persons" in text
    # A row is another unit
    asked = ("predict", *WHERE, "--queries", "q.npz", "--out", "a.npz")
    text = shown(capsys, *asked, "--privacy.unit", "row", code=2)
    assert "the ledger was begun for privacy.unit: person" in text
    rows = ("--privacy.unit", "row", "--persons", "a")
    text = shown(capsys, "records", "remove", *WHERE, *rows, code=2)
    assert "Leave out `persons`: privacy.unit is row." in text
