"""The Python surface: what it takes, what comes back, what it refuses, and what it never shows."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import labelwall as lw
from labelwall.wall.errors import InvalidInput, LabelwallError, LedgerMismatch, MissingData
from tests.experiment import tiny
from tests.experiment.checks import check_one_error

NAMES = np.array(["ant", "bee", "cat"])
QUICK: dict[str, Any] = {
    "mechanism": {"kind": "reverse_knn", "centroids": 9},
    "student": {"steps": 40, "doubtful_folds": 0},
    "features": "raw",
    "threads": 1,
}
SPLITS = {"private": tiny.rows(200, 1), "public": tiny.rows(40, 2), "test": tiny.rows(30, 3)}


def frame(rows: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[f"x{place}" for place in range(rows.shape[1])])


def arrays() -> lw.Data:
    (private, public, test) = SPLITS.values()
    return lw.Data(private=private, public=public[0], test=test)


def named() -> lw.Data:
    (x, y), (public, _), (test, truth) = SPLITS.values()
    return lw.Data(private=(x, NAMES[y]), public=public, test=(test, NAMES[truth]))


def frames() -> lw.Data:
    (x, y), (public, _), (test, truth) = SPLITS.values()
    tests = frame(test).assign(kind=NAMES[truth])
    return lw.Data((frame(x), NAMES[y]), frame(public), tests, label="kind")


def files() -> lw.Data:
    tiny.write(Path.cwd())
    return lw.Data("data.npz")


def fit(data: lw.Data, **more: Any) -> lw.Model:
    return lw.fit(data, **{"epsilon": 8.0, "run_dir": "run", "quiet": True, **QUICK, **more})


def test_private_rows_are_their_owners_alone_and_shown_nowhere() -> None:
    model = fit(arrays(), custody="custody")
    places = [Path("custody"), *Path("custody").rglob("*")]
    assert all(place.stat().st_mode & 0o077 == 0 for place in places)
    with pytest.raises(LedgerMismatch):
        fit(arrays(), custody="custody", run_dir="other", epsilon=4.0)
    (x, y), public, test = SPLITS.values()
    with pytest.raises(InvalidInput, match="known by its place"):  # one record taken out
        fit(lw.Data((x[1:], y[1:]), public[0], test), custody="custody")
    model.save_pretrained("hub")
    assert (Path("hub") / "README.md").is_file()


@pytest.mark.parametrize("odd", [None, 1.5, "wolf", float("nan")])
def test_no_private_label_decides_how_another_one_is_read(tmp_path: Path, odd: object) -> None:
    (x, y), (public, _), test = SPLITS.values()
    for labels, own in (([*y[:9].tolist(), odd], test), ([*NAMES[y[:9]], odd], None)):
        named = own or (test[0], NAMES[test[1]])
        lw.Data((x[:10], labels), public, named).options(tmp_path)
        assert np.load(tmp_path / "private.npz")["private_y"].tolist() == [*y[:9], -1]
        (tmp_path / "private.npz").unlink()
    rows = frame(x[:10]).astype(object)
    rows.iloc[9, 0] = odd
    lw.Data((rows, labels), frame(public), (frame(test[0]), test[1])).options(tmp_path)
    stored = pd.read_parquet(tmp_path / "private.parquet")
    assert stored["label"].tolist()[:9] == NAMES[y[:9]].tolist()
    np.testing.assert_allclose(stored["x0"][:9].astype(float), x[:9, 0], rtol=1e-6)


def test_a_price_reads_no_private_row() -> None:
    data = lw.Data(private=object(), public=SPLITS["public"][0], test=SPLITS["test"])
    price = lw.plan(data, 8.0, quiet=True, **QUICK)
    assert 0 < price.epsilon <= 8
    assert "epsilon" in str(price)
    assert str(price.epsilon)[:3] in price._repr_html_()
    curve = [price.epsilon_at(delta) for delta in (1e-9, 1e-7, price.delta, 1e-3)]
    assert curve == sorted(curve, reverse=True)
    assert curve[0] > curve[2] == price.epsilon > curve[3]
    with pytest.raises(InvalidInput, match=r"budget\.delta"):
        price.epsilon_at(0.0)
    assert not list(Path.cwd().iterdir())


def test_methods_are_compared_and_what_privacy_costs_stands_beside_them() -> None:
    quick = {name: QUICK[name] for name in ("student", "threads")}
    sweep = {"mechanism.teachers": [4, 5]}
    table = lw.compare(arrays(), ["gnmax"], 8.0, out="out", sweep=sweep, quiet=True, **quick)
    variants = ["gnmax teachers=4", "gnmax teachers=5"]
    assert [row["method"] for row in table.rows] == [*variants, "private labels without privacy"]
    assert "gnmax" in str(table)
    frame = table.frame()
    assert list(frame.method) == [row["method"] for row in table.rows]
    assert list(frame.accuracy) == [row["accuracy"] for row in table.rows]
    assert Path("out.custodian").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"custody": None}, InvalidInput, "`custody` must be the custodian's directory"),
        ({"data": None}, InvalidInput, "`data` must be labelwall.Data("),
        ({"students": {}}, LabelwallError, "Did you mean `student`?"),
        (
            {"data": lw.Data(SPLITS["private"])},
            InvalidInput,
            "Give `public`: a run needs these rows.",
        ),
        ({"data": lw.Data("here", SPLITS["public"][0])}, InvalidInput, "`public` must be a path"),
        ({"data": lw.Data("absent.npz")}, MissingData, "`data` must be an existing file"),
        (
            {"data": lw.Data(SPLITS["private"][0], SPLITS["public"][0], SPLITS["test"])},
            InvalidInput,
            "`private` must be a pair: rows and their labels",
        ),
        (
            {"data": lw.Data(([object()], [1]), SPLITS["public"][0], SPLITS["test"])},
            InvalidInput,
            "`private_x` must be an array of numbers",
        ),
    ],
)
def test_a_mistake_is_one_line_and_charges_nothing(change, error, text) -> None:
    more = {"data": arrays(), "custody": "custody", **change}
    with pytest.raises(error) as refusal:
        fit(more.pop("data"), **more)
    assert text in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not list(Path.cwd().rglob("ledger.sqlite"))


@pytest.mark.parametrize("python", [True, False])
def test_a_full_disk_is_said(python: bool, monkeypatch, capsys) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")

    monkeypatch.setattr("labelwall.student.round_files.write_file", full)
    monkeypatch.setattr("labelwall.experiment.whole_run.write_file", full)
    rule = "the disk is full. Make room; the same command continues where it stopped."
    if python:
        with pytest.raises(LabelwallError, match=rule):
            fit(arrays(), custody="custody")
    else:
        tiny.write()
        check_one_error(["run", "--data", "data.npz", "--epsilon", "8"], rule, capsys)


def test_the_names_load_nothing_until_they_are_used() -> None:
    program = (
        "import sys, labelwall as lw; print(lw.__version__);"
        "print(sorted({'torch', 'labelwall.experiment', 'labelwall.teacher'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ
    )
    assert run.stdout.split("\n")[1:2] == ["[]"], run.stderr
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = lw.absent
