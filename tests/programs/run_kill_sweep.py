"""SIGKILL a whole command before each change of its disk; then give the same command again."""

import contextlib
import io
import os
import pickle
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import yaml

import labelwall as lw
import labelwall.experiment.api
import labelwall.experiment.compare.run_cells
import labelwall.experiment.report.report
import labelwall.experiment.run.rounds  # loaded before the forks
from labelwall import pipeline
from labelwall.experiment.plan import search
from labelwall.teacher.ledger.auditor.auditor import audit
from tests import ledgers
from tests.experiment import tiny
from tests.experiment.checks import QUICK, RUN
from tests.programs.kill_runner import forked, killed_at, sweep

STEPS = 2
SUMS = {"kind": "private_linear", "steps": STEPS, "axes": 4}
AUTO = {"kind": "auto", "among": "private_linear"}
STUDENT = {"backbone": "mlp", "objective": "supervised", "augment": "none", "steps": 5}
STUDENT |= {"doubtful_folds": 0}
BASELINE = {"kind": "linear_noisy_sgd", "batch_size": 50, "expected_records": 200, "epochs": 1}
METHODS = [
    {"name": "auto", "points": [{"epsilon": 8.0, "mechanism": AUTO, "rounds": [{}]}]},
    {"name": "baseline", "baseline": BASELINE, "epsilons": [8.0]},
    {"name": "labels", "reference": "non_private"},
]
BUDGET = {"epsilon": 8.0, "delta": 1e-5, "periods": 2}
OWN = ("--data", "data.npz", "--epsilon", "8", "--student.steps", "5", "--threads", "1")
COMMANDS = {
    "votes": [*RUN, *QUICK],
    "auto": ["run", *OWN, "--run_dir", "out", "--mechanism.among", "private_linear"],
    "update": ["update", "--run_dir", "out"],
    "compare": ["compare", "--config", "compare.yaml", "--out", "out"],
}


def first_fit() -> None:
    (public, _), tests = tiny.rows(40, 2), tiny.rows(30, 3)
    settings: dict[str, Any] = {"mechanism": SUMS, "rounds": [{}], "student": STUDENT, "threads": 1}
    place: dict[str, Any] = {"custody": "custody", "run_dir": "out", "quiet": True}
    lw.fit(lw.Data(tiny.rows(60, 1), public, tests), 8.0, periods=2, **place, **settings)


def prepare(scenario: str) -> None:
    """What lies there when a scenario's command is given first."""
    if scenario in ("fit", "replace"):
        return first_fit() if scenario == "replace" else None
    sums: dict[str, Any] = {"mechanism": SUMS, "caps": None, "rounds": [{}], "student": STUDENT}
    tiny.write(**({} if scenario == "votes" else {**sums, "budget": BUDGET}))
    compared = {"data": {"source": "arrays", "path": "data.npz"}, "seeds": [0], "methods": METHODS}
    Path("compare.yaml").write_text(yaml.safe_dump({**compared, "student": STUDENT, "threads": 1}))
    x, y = tiny.rows(150, 2)
    if scenario in ("auto", "compare"):  # rehearsed on labelled rows
        tiny.change(public_x=x, public_y=y)
    if scenario == "update":
        pipeline.main([*RUN])
        tiny.change(private_x=tiny.rows(200, 9)[0])


def remembered(*arguments: Any, look: Any = search.search) -> Any:
    """What the first search found."""
    kept = Path("../search.pickle")
    if not kept.exists():
        kept.write_bytes(pickle.dumps(look(*arguments)))
    return pickle.loads(kept.read_bytes())


def planned(*arguments: Any, plan: Any = search.planned_config) -> Any:
    """With few steps."""
    config = plan(*arguments)
    return replace(config, mechanism=replace(config.mechanism, steps=STEPS))


def work(scenario: str, point: int = 0) -> int:
    search.search, search.planned_config = remembered, planned  # type: ignore[assignment]
    killed_at(point)
    if scenario == "fit":
        first_fit()
    elif scenario == "replace":
        lw.load("out").update(tiny.rows(70, 9), quiet=True)
    else:
        with contextlib.redirect_stdout(io.StringIO()):
            return pipeline.main(COMMANDS[scenario])
    return 0


def live(folder: Path) -> Path | None:
    """The custodian's ledger, once it has begun."""
    found = [lock.with_name("ledger.sqlite") for lock in folder.rglob("lock")]
    return next((path for path in found if path.exists() and path.stat().st_size), None)


def kill(own: Path, point: int, scenario: str) -> tuple[bool, dict[str, Any]]:
    """Each kill's folder is the same copy of what the first one prepared."""
    made, folder = own.parent / "made", own.parent / "at"
    shutil.rmtree(folder, ignore_errors=True)
    if not made.exists():
        folder.mkdir()
        os.chdir(folder)
        assert forked(lambda: prepare(scenario)) == 0
        if scenario in ("auto", "compare"):
            assert forked(lambda: work(scenario)) == 0
            shutil.rmtree(folder)
            folder.mkdir()
            os.chdir(folder)
            prepare(scenario)
        folder.rename(made)
    shutil.copytree(made, folder)
    os.chdir(folder)
    status = forked(lambda: work(scenario, point))
    before = ledgers.results(ledger) if (ledger := live(folder)) else {}
    resumed = forked(lambda: work(scenario)) if status else 0
    ledger = live(folder)
    assert ledger is not None
    after, charged = ledgers.results(ledger), Counter[str]()
    for entry in ledgers.contents(ledger, "charge"):
        charged[f"{entry['slot']}/{entry['release']}"] += entry["count"]
    exported, stored = [*folder.glob("out/**/ledger.sqlite")], folder / "custody/rows/private.npz"
    return status != -signal.SIGKILL, {
        "status": status,
        "resumed": resumed,
        "kept": before.items() <= after.items(),
        "exported": [ledgers.results(path) == after for path in exported],
        "problems": [audit(path).problems for path in exported],
        "charged": charged,
        "answered": len(after),
        "left": [str(path.relative_to(folder)) for path in folder.rglob("*.part")],
        "made": sorted(path.name for path in Path("out").glob("*.*")),
        "rows": {k: len(v) for k, v in np.load(stored).items()} if stored.exists() else {},
    }


if __name__ == "__main__":
    matplotlib.use("Agg")
    sweep(kill)
