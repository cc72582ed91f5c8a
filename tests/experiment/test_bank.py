"""A bank's table in ten forms in which programs export it: each gives a model well above the most
frequent class, and what is no feature is left out."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import labelwall as lw
from tests.experiment.test_api import QUICK

SIZES = {"private": 1200, "public": 400, "test": 300}
LINEAR = {**QUICK, "mechanism": {"kind": "private_linear", "steps": 10}}
JOBS = np.array(["fixed", "free", "none", "other"])


def bank(seed: int) -> pd.DataFrame:
    """Customers, three in four good, whose income, debt and job tell which; with gaps."""
    rng, rows = np.random.default_rng(seed), sum(SIZES.values())
    good = rng.random(rows) < 0.75
    job = np.where(rng.random(rows) < 0.7, np.where(good, 0, 2), rng.integers(0, 4, rows))
    income = (rng.normal(2500 + 1500 * good, 700) * 100).round() / 100
    table = pd.DataFrame({"income": income, "debt": rng.integers(0, 5000, rows), "job": JOBS[job]})
    table.loc[rng.random(rows) < 0.1, "income"] = None
    return table.assign(status=np.where(good, "good", "bad"))


def numbered(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(customer_id=np.arange(len(table)))


def coded(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(customer=[f"C{n:05}" for n in range(len(table))])


def shuffled(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(account=np.random.default_rng(9).permutation(len(table)) + 70_000)


def constant(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(branch="Berne")


def flags(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(status=table["status"] == "good")


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(status=1 + (table["status"] == "good"))


def euros(table: pd.DataFrame) -> pd.DataFrame:
    shown = [None if v != v else f"{v:,.2f} €".translate({44: 46, 46: 44}) for v in table["income"]]
    return table.assign(income=shown)


def dated(table: pd.DataFrame) -> pd.DataFrame:
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(table["debt"] % 1500, unit="D")
    return table.assign(since=days.dt.strftime("%d/%m/%Y"))


def as_is(table: pd.DataFrame) -> pd.DataFrame:
    return table


# the form, how it is written, and the columns that are no features
FILES: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], dict, set[str]]] = {
    "an id that counts up": (numbered, {}, {"customer_id"}),
    "an id of texts": (coded, {}, {"customer"}),
    "an account in any order": (shuffled, {}, {"account"}),
    "a column of one value": (constant, {}, {"branch"}),
    "labels True and False": (flags, {}, set()),
    "labels 1 and 2": (numbers, {}, set()),
    "euros with decimal commas": (euros, {"sep": ";"}, set()),
    "dates by day": (dated, {}, set()),
    "Excel's UTF-16 and tabs": (as_is, {"sep": "\t", "encoding": "utf-16"}, set()),
    "an index column": (as_is, {"index": True}, set()),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bank_s_file(name: str, capsys) -> None:
    changed, form, no_features = FILES[name]
    table, start = changed(bank(1)), 0
    for split, count in SIZES.items():
        part = table[start : start + count].drop(columns=["status"] * (split == "public"))
        part.to_csv(f"{split}.csv", **{"index": False, **form})
        start += count
    data = lw.Data("private.csv", "public.csv", "test.csv", label="status")
    model = lw.fit(data, 2.0, run_dir="run", **LINEAR)
    tests = table[-SIZES["test"] :]
    most = tests["status"].value_counts(normalize=True).max()
    assert model.score(tests.drop(columns="status"), tests["status"]) > most + 0.05
    predicted = model.predict(Path("test.csv"))
    assert (predicted == tests["status"]).mean() > most + 0.05
    assert model.student.info.table is not None
    features = set(model.student.info.table.features)
    assert {"income", "debt", "job"} == features - {"since"}
    said = capsys.readouterr().err
    assert not no_features or "left out" in said
