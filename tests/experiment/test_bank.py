"""A bank's table in the forms in which programs export it: how each column is read is said before
the price, and a run is as right as on the clean table. Slips of names and places are one line.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import labelwall as lw
from labelwall import pipeline
from labelwall.wall.errors import InvalidInput
from tests.experiment.checks import check_one_error, named, summary

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
LEFT = GUIDE.read_text().partition("## What lies where")[2]  # has every file of a run folder
SIZES = {"private": 1200, "public": 400, "test": 300}
JOBS = np.array(["fixe", "indépendant", "aucun", "autre"])
ROWS = named({split: f"{split}.csv" for split in SIZES})
COMMAND = [*ROWS, "--label", "status", "--epsilon", "2"]
QUICK = ["--mechanism.kind", "gnmax", "--threads", "1", "--quiet"]  # a price alone, no rehearsal


def bank(seed: int) -> pd.DataFrame:
    """Customers, three in four good, whose income, job and first year tell which; with gaps."""
    rng, rows = np.random.default_rng(seed), sum(SIZES.values())
    good = rng.random(rows) < 0.75
    job = np.where(rng.random(rows) < 0.7, np.where(good, 0, 2), rng.integers(0, 4, rows))
    income = (rng.normal(2500 + 1500 * good, 700) * 100).round() / 100
    since = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1500, rows), unit="D")
    table = pd.DataFrame({"income": income, "since": since.strftime("%Y-%m-%d"), "job": JOBS[job]})
    table["debt"] = rng.integers(0, 5000, rows)
    table.loc[rng.random(rows) < 0.1, "income"] = None
    return table.assign(status=np.where(good, "good", "bad"))


def text(table: pd.DataFrame, name: str, write: Callable[[Any], str]) -> pd.DataFrame:
    """The table with a column written as texts; gaps stay."""
    return table.assign(**{name: [None if v != v else write(v) for v in table[name]]})


def euros(value: float) -> str:
    return f"{value:,.2f} €".translate({44: 46, 46: 44})


NUMBERS = "number: income, debt"
SINCE = "date (ISO 8601) with day of the week and season: since"
READ = {NUMBERS, SINCE, "category: job (4 values)"}
IDS = "left out, whole numbers that all differ, as ids do (data.keep takes it): "
UNREPEATED = "left out, texts of which none is in 5 rows (data.keep takes it): "


@dataclass(frozen=True)
class Form:
    """How a program writes the clean table, and which lines say how it is read."""

    change: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table
    written: dict[str, Any] = field(default_factory=dict)  # by to_csv
    before: bytes = b""  # of the file
    read: set[str] = field(default_factory=lambda: READ)
    classes: str = "bad, good"


FORMS = {
    "clean": Form(),
    "a numeric id in the file's order": Form(
        lambda t: t.assign(customer=np.arange(len(t))), read=READ | {f"{IDS}customer"}
    ),
    "account numbers in any order": Form(
        lambda t: t.assign(account=np.random.default_rng(9).permutation(len(t)) + 70_000),
        read=READ | {f"{IDS}account"},
    ),
    "an id of texts": Form(
        lambda t: t.assign(customer=[f"C{n:05}" for n in range(len(t))]),
        read=READ | {f"{UNREPEATED}customer"},
    ),
    "a column of one value": Form(
        lambda t: t.assign(branch="Berne"),
        read=READ | {"left out, one value in all rows (data.keep takes it): branch"},
    ),
    "decimal commas": Form(
        written={"sep": ";", "decimal": ","},
        read=READ - {NUMBERS} | {"number, decimal comma: income", "number: debt"},
    ),
    "thousands and units": Form(
        lambda t: text(t, "income", euros),
        {"sep": ";"},
        read=READ - {NUMBERS}
        | {"number, decimal comma, thousands by '.', unit €: income", "number: debt"},
    ),
    "days first": Form(
        lambda t: text(t, "since", lambda day: f"{day[8:]}/{day[5:7]}/{day[:4]}"),
        read=READ - {SINCE} | {SINCE.replace("(ISO 8601)", "like 31/12/2024")},
    ),
    "Western Europe's bytes": Form(written={"encoding": "latin-1"}),
    "Excel's mark and sep=": Form(written={"sep": ";"}, before=b"\xef\xbb\xbfsep=;\r\n"),
    "tabs": Form(written={"sep": "\t"}),
    "an index column": Form(written={"index": True}),
    "labels 1 and 2": Form(lambda t: t.assign(status=1 + (t["status"] == "good")), classes="1, 2"),
    "labels True and False": Form(
        lambda t: t.assign(status=t["status"] == "good"), classes="False, True"
    ),
    "labels Yes, yes and no": Form(
        lambda t: t.assign(
            status=[
                "no" if s == "bad" else "Yes" if n < SIZES["private"] else "yes"
                for n, s in enumerate(t["status"])
            ]
        ),
        classes="no, yes",
    ),
}


def write(form: Form) -> pd.DataFrame:
    """The three files; returns the test rows."""
    table, start = form.change(bank(1)), 0
    for split, count in SIZES.items():
        part = table[start : start + count].drop(columns=["status"] * (split == "public"))
        part.to_csv(f"{split}.csv", **{"index": False, **form.written})
        path = Path(f"{split}.csv")
        path.write_bytes(form.before + path.read_bytes())
        start += count
    return table[-SIZES["test"] :]


@pytest.mark.parametrize("name", FORMS)
def test_how_a_file_is_read_is_said_before_the_price(name: str, capsys) -> None:
    form = FORMS[name]
    write(form)
    assert pipeline.main(["plan", *COMMAND, *QUICK[:-1]]) == 0
    said, priced = capsys.readouterr()
    classes, columns, *lines = priced.splitlines()
    assert classes == f"classes: {form.classes}"
    assert columns == "columns, as the public rows show them:"
    assert {line.strip() for line in lines} == form.read
    assert said.startswith("epsilon ")


def right(name: str, capsys) -> float:
    """The share of right test rows of a whole run; the model reads the file of test rows, too."""
    tests = write(FORMS[name])
    folder = name.replace(" ", "_")
    linear = ["--mechanism.kind", "private_linear", "--mechanism.steps", "10"]
    linear += ["--mechanism.axes", "8", "--mechanism.clip", "0.1", "--mechanism.margin", "0"]
    more = ["--features", "raw", "--student.steps", "60", "--student.doubtful_folds", "0"]
    where = ["--run_dir", folder, "--custodian_dir", f"{folder}.custodian"]
    assert pipeline.main(["run", *COMMAND, *linear, *more, *where, "--threads", "1"]) == 0
    printed = capsys.readouterr().err
    assert printed.index("columns, as") < printed.index("price: epsilon") < printed.index("round 1")
    left = {path.name for path in Path(folder).rglob("*.*") if "board" not in path.parts}
    assert not {name for name in left if f"{re.sub('_[0-9]+', '_K', name)}`" not in LEFT}
    model, accuracy = lw.load(folder), summary(folder)["test_accuracy"]
    with pytest.raises(InvalidInput, match="a data frame, or a table's path, with the columns"):
        model.predict([[1.0, "2020-01-01", "fixe", 3.0]])
    predicted = model.predict("test.csv")
    assert (predicted == tests["status"]).mean() == pytest.approx(accuracy)
    assert (
        predicted.dtype.kind == model.classes_.dtype.kind == np.array([*tests["status"]]).dtype.kind
    )
    return float(accuracy)


SOON = ("a numeric id in the file's order", "thousands and units", "labels 1 and 2")
LATER = [pytest.param(name, marks=pytest.mark.slow) for name in FORMS if name not in SOON]
CLEAN: list[float] = []  # of the clean file, which is asked once


@pytest.mark.parametrize("name", [*SOON, *LATER])
def test_a_run_is_as_right_as_on_the_clean_file(name: str, capsys) -> None:
    CLEAN[:] = CLEAN or [right("clean", capsys)]
    found = right(name, capsys)
    most = bank(1)["status"][-SIZES["test"] :].value_counts(normalize=True).max()
    assert found > most + 0.05
    assert abs(found - CLEAN[0]) < 0.04  # a deviation of 300 rows' accuracy is 0.02


SLIPS = {
    "--label Status": "`data.label` must be one of income, since, job, debt, status, columns of "
    "data.test. Found 'Status'. Did you mean 'status'?",
    "--label state": "Did you mean 'status'?",
    "--data.ignore [icome]": "Found 'icome'. Did you mean 'income'?",
    "--data.keep [dept]": "Found 'dept'. Did you mean 'debt'?",
    "--data.text [jobs]": "Found 'jobs'. Did you mean 'job'?",
    "--private privat.csv": "`data.private` must be an existing file or folder. Found '",
    "--public publik.csv": "`public` must be an existing folder or file. Found 'publik.csv'.",
    "--test tset.csv": "`test` must be an existing folder or file. Found 'tset.csv'.",
    "--test public.csv": "`data.test` must be apart from `data.public`",
    "--data.classes [good,bat]": "`data.test` must be rows with a known label in the column status",
    "--id stauts": "`data.id` must be a column of the private rows, of income, since, job, debt, "
    "status. Found 'stauts'. Did you mean 'status'?",
    "--mechanism.kind private_linear --data.person jobb": "Found 'jobb'. Did you mean 'job'?",
}


@pytest.mark.parametrize("words", SLIPS)
def test_a_slip_is_one_line_before_anything_is_charged(words: str, capsys) -> None:
    write(FORMS["clean"])
    command = ["run", *COMMAND, *QUICK, "--run_dir", "run", "--custodian_dir", "custody"]
    check_one_error([*command, *words.split()], SLIPS[words], capsys)
    assert not Path("custody").exists()
