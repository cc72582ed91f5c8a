"""Each kind of input of ``Data``: a model, a second call that charges nothing, and a killed one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import labelwall as lw
from tests.experiment import tiny
from tests.experiment.test_api import QUICK, SPLITS, arrays, files, frame, frames, named
from tests.experiment.test_untested import in_folders

NAMES = [f"x{place}" for place in range(tiny.DIMENSIONS)]


def polars() -> lw.Data:
    library = pytest.importorskip("polars")
    return lw.Data(
        *(library.DataFrame(dict(zip(NAMES, x.T, strict=True)) | {"label": y})
          for x, y in SPLITS.values())
    )  # fmt: skip


def datasets() -> lw.Data:
    library = pytest.importorskip("datasets")
    return lw.Data(
        *(library.Dataset.from_dict({**{n: x[:, i] for i, n in enumerate(NAMES)}, "label": y})
          for x, y in SPLITS.values())
    )  # fmt: skip


def paths_of_tables() -> lw.Data:
    for name, (x, y) in SPLITS.items():
        frame(x).assign(label=y).to_csv(f"{name}.csv", index=False)
    return lw.Data("private.csv", "public.csv", "test.csv")


def folder_of_arrays() -> lw.Data:
    Path("rows").mkdir(exist_ok=True)
    for name, (x, y) in SPLITS.items():
        np.save(f"rows/{name}_x.npy", x)
        np.save(f"rows/{name}_y.npy", y)
    return lw.Data("rows")


def images() -> lw.Data:
    return in_folders(Path.cwd())


def arrays_of_images() -> lw.Data:
    rng, splits = np.random.default_rng(0), []
    for count in (200, 60, 30):
        y = np.arange(count) % 3
        x = rng.integers(0, 60, (count, 12, 12), dtype=np.uint8)
        for row, label in enumerate(y):
            x[row, 4 * label : 4 * label + 3] += 150
        splits.append((x, y))
    return lw.Data(*splits)


# Each kind with what predict takes of it
KINDS: dict[Callable[[], lw.Data], Callable[[], Any]] = {
    arrays: lambda: SPLITS["test"][0],
    named: lambda: SPLITS["test"][0],
    frames: lambda: frame(SPLITS["test"][0]),
    polars: lambda: polars().test,
    datasets: lambda: datasets().test,
    files: lambda: SPLITS["test"][0],
    folder_of_arrays: lambda: SPLITS["test"][0],
    paths_of_tables: lambda: pd.read_csv("test.csv"),
    images: lambda: sorted(map(str, Path("public").rglob("*.png")))[:30],
    arrays_of_images: lambda: arrays_of_images().test[0],
}
SLOW = (images, arrays_of_images)


def fit(make: Callable[[], lw.Data], steps: int = 40) -> lw.Model:
    given = {**QUICK, "student": QUICK["student"] | {"steps": steps}, "seed": 1}
    if make in SLOW:
        given["features"] = "hog"
        given["student"] |= {"backbone": "small_cnn", "objective": "supervised"}
    return lw.fit(make(), 8.0, run_dir="run", custody="custody", quiet=True, **given)


@pytest.mark.parametrize(
    "make",
    [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in KINDS],
    ids=lambda make: make.__name__,
)
def test_it_becomes_a_model_and_a_second_call_charges_nothing(make: Callable[[], lw.Data]) -> None:
    model = fit(make)
    rows = KINDS[make]()
    predicted = model.predict(rows)
    assert len(predicted) == 30
    assert set(predicted) <= set(model.classes_)
    np.testing.assert_allclose(model.predict_proba(rows).sum(axis=1), 1, atol=1e-6)
    assert model.summary.test_accuracy > 0.5
    assert 0 < (model.epsilon_ or 0) <= 8
    assert model.delta_ == 1e-5
    assert model.report_._repr_html_().startswith("<iframe")
    finding = lw.audit("run/ledger.sqlite")
    assert (finding.epsilon, finding.problems) == (model.epsilon_, [])
    again = fit(make)
    np.testing.assert_array_equal(again.predict(rows), predicted)
    assert lw.audit("run/ledger.sqlite").head == finding.head
    assert model.student.weights == lw.load("run").student.weights


KILLED = [arrays, frames, files]


@pytest.mark.slow
@pytest.mark.parametrize("make", KILLED, ids=lambda make: make.__name__)
def test_a_killed_fit_goes_on_at_no_additional_charge(make: Callable[[], lw.Data]) -> None:
    """Killed in the middle of the student's training, after the release was charged."""
    program = f"from tests.experiment.test_inputs import *; fit({make.__name__}, 400)"
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": path}
    )
    answers, deadline = Path("run/round_1/answers.npz"), time.monotonic() + 300
    while not answers.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not Path("run/summary.json").exists()
    assert lw.audit("custody/ledger.sqlite").charged == {"0/histogram": 1}
    model = fit(make, 400)
    finding = lw.audit("custody/ledger.sqlite")
    assert finding.charged == {"0/histogram": 1, "1/score": 1}  # the score comes last
    assert finding.problems == []
    assert model.summary.test_accuracy > 0.5
